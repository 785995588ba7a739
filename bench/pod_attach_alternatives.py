"""The same pods attached in other ways, in turn with ours: by a script of 2015's kind, and by CNI's bridge plugin."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path

from api.network.attach import CNI, AttachRequest
from bench.measurement import Measure, Measurement, Progress, at_peer
from bench.pod_attach import device_in
from lab.topology import LabNode
from node_agent.network.sdn import SdnNetwork
from tests.testbed.netns.cluster import NetnsCluster, bench_lab

OURS = "podlane"
PLUGINS = Path("/usr/lib/cni")


@dataclass(frozen=True, slots=True)
class Size:
    """How many pods are attached in each way."""

    rounds: int


FULL = Size(rounds=20)
SMALLEST = Size(rounds=1)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Measure one pod at a time, in each way in each round. Each attachment of ours has a new connection, as the others
    have a new process.
    """
    with NetnsCluster(bench_lab(2), with_sdn=1) as cluster:
        lab_node, bare = cluster.lab.nodes
        spaces = cluster.add_namespaces([f"r{number}" for number in range(size.rounds)])
        script, bridge = Script(bare), BridgePlugin(bare)
        script.prepare()
        times: dict[str, list[float]] = {OURS: [], "script": [], "bridge": []}
        progress(f"{size.rounds} pods, attached and detached in three ways")
        for number, space in enumerate(spaces):
            for name, attach, detach in (
                (OURS, partial(_attach, lab_node, space), partial(_detach, lab_node, space)),
                ("script", partial(script.attach, space, number), partial(script.detach, space)),
                ("bridge", partial(bridge.call, "ADD", space), partial(bridge.call, "DEL", space)),
            ):
                begin = time.perf_counter()
                attach()
                times[name].append((time.perf_counter() - begin) * 1000)
                detach()
    return [
        Measurement(
            f"attach, a new connection each, beside {name}",
            "ms",
            tuple(times[OURS]),
            budget,
            peer=name,
            peer_samples=tuple(times[key]),
        )
        for key, name, budget in (
            ("bridge", "CNI's bridge plugin (no isolation, one node)", at_peer(1)),
            ("script", "a script of ip, ovs-vsctl and ovs-ofctl", None),
        )
    ]


MEASURE = Measure("pods attached by us, by CNI's bridge plugin and by a script, in turn", measure, FULL, SMALLEST)


def _attach(node: LabNode, space: str) -> None:
    request = AttachRequest(sandbox=space, netns=f"/run/netns/{space}", namespace="default", name=space, runtime=CNI)

    async def asking() -> None:
        async with SdnNetwork(f"{node.root}/sdn.sock") as network:
            await network.attach(request)

    asyncio.run(asking())


def _detach(node: LabNode, space: str) -> None:
    async def asking() -> None:
        async with SdnNetwork(f"{node.root}/sdn.sock") as network:
            await network.detach(space)

    asyncio.run(asking())


@dataclass(frozen=True, slots=True)
class Script:
    """A command for every step, as shell scripts of 2015 did it; no allocation of addresses is counted."""

    node: LabNode

    def prepare(self) -> None:
        """Create the bridge."""
        self._vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "fail_mode=secure")

    def attach(self, space: str, number: int) -> None:
        """Wire one namespace and write its flows."""
        device, address = device_in(space), IPv4Address("10.128.0.2") + number
        here = ("ip", "netns", "exec", self.node.namespace)
        _run(*here, "ip", "link", "add", device, "type", "veth", "peer", "name", f"p{device}"[:15])
        _run(*here, "ip", "link", "set", f"p{device}"[:15], "netns", space)
        inside = ("ip", "netns", "exec", space, "ip")
        _run(*inside, "link", "set", f"p{device}"[:15], "name", "eth0")
        _run(*inside, "addr", "add", f"{address}/23", "dev", "eth0")
        _run(*inside, "link", "set", "eth0", "mtu", "1450", "up")
        _run(*inside, "route", "add", "default", "via", "10.128.0.1", "dev", "eth0")
        _run(*here, "ip", "link", "set", device, "up")
        self._vsctl("add-port", "br0", device)
        port = self._vsctl("get", "interface", device, "ofport").strip()
        source = f"table=0,priority=100,in_port={port},ip,nw_src={address},actions=load:10->NXM_NX_REG0[],goto_table:20"
        for flow in (
            source,
            f"table=0,priority=100,in_port={port},arp,arp_spa={address},actions=goto_table:10",
            f"table=30,priority=100,ip,nw_dst={address},reg0=10,actions=output:{port}",
            f"table=30,priority=100,ip,nw_dst={address},reg0=0,actions=output:{port}",
        ):
            _run("ovs-ofctl", "-O", "OpenFlow13", "add-flow", f"{self.node.ovs}/br0.mgmt", flow)

    def detach(self, space: str) -> None:
        """Undo it."""
        self._vsctl("del-port", "br0", device_in(space))
        _run("ip", "netns", "exec", self.node.namespace, "ip", "link", "del", device_in(space))

    def _vsctl(self, *words: str) -> str:
        return _run("ovs-vsctl", f"--db=unix:{self.node.ovs}/db.sock", *words)


@dataclass(frozen=True, slots=True)
class BridgePlugin:
    """Linux bridge, host-local addresses."""

    node: LabNode

    def call(self, verb: str, space: str) -> None:
        """Call the plugin once in the node's namespace."""
        ipam = {"type": "host-local", "subnet": "10.200.0.0/16", "dataDir": f"{self.node.root}/cni-ipam"}
        network = {
            "cniVersion": "1.0.0",
            "name": "b",
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipam": ipam,
        }
        words = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": space,
            "CNI_NETNS": f"/run/netns/{space}",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(PLUGINS),
        }
        command = ("ip", "netns", "exec", self.node.namespace, str(PLUGINS / "bridge"))
        subprocess.run(
            command, input=json.dumps(network), env={**os.environ, **words}, text=True, check=True, capture_output=True
        )


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
