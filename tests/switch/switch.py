"""Real Open vSwitch with its dummy datapath: no root, no packets, answers by trace."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, TypeVar

from ovs.unixctl.client import UnixctlClient

from sdn.drivers.openflow.bridge_state import DiffCount
from sdn.drivers.openflow.client import OpenFlowClient
from sdn.drivers.openflow.messages import UnknownFlow
from sdn.model.flow import Flow, FlowSet
from sdn.pipeline.compiler import compile_flows
from sdn.topology import TUN0, VXLAN0, Cluster, Node, NodeNetwork, Peer, Pod
from tests.world import NODES, PLACES, Inhabitant

T = TypeVar("T")

SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
DEADLINE_SECONDS = 10.0
HASHES = (1, 2, 3)
CLUSTER = Cluster((IPv4Network("10.128.0.0/14"),), IPv4Network("172.30.0.0/16"), True, 4789, 1450)


class DummySwitch:
    """One ovsdb-server and one ovs-vswitchd with a bridge br0; use as a context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="podlane-switch-")
        self.rundir = Path(self._folder.name)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._control: Any = None

    def __enter__(self) -> DummySwitch:
        self._run("ovsdb-tool", "create", f"{self.rundir}/conf.db", SCHEMA)
        self._start("ovsdb-server", f"--remote=punix:{self.rundir}/db.sock", f"{self.rundir}/conf.db")
        self._wait_for("db.sock")
        self.start_vswitchd()
        self.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "fail_mode=secure")
        return self

    def __exit__(self, *_: object) -> None:
        self._hang_up()
        for process in self._processes:
            process.kill()
            process.wait()
        self._folder.cleanup()

    def start_vswitchd(self) -> None:
        """Start the switch itself; what it held in memory is gone."""
        arguments = (f"unix:{self.rundir}/db.sock", "--enable-dummy=override", "--disable-system")
        self._start("ovs-vswitchd", *arguments)

    def kill_vswitchd(self) -> None:
        """As SIGKILL does it."""
        self._hang_up()
        process = self._processes.pop()
        process.kill()
        process.wait()
        (self.rundir / "br0.mgmt").unlink(missing_ok=True)

    def _hang_up(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    def add_ports(self, ports: Mapping[str, int]) -> None:
        """Ports that lead nowhere, by name and OpenFlow number."""
        words: list[str] = []
        for name, number in ports.items():
            words += ["--", "add-port", "br0", name, "--", "set", "interface", name, "type=dummy"]
            words += [f"ofport_request={number}"]
        self.vsctl(*words[1:])

    def vsctl(self, *words: str) -> str:
        """Run ovs-vsctl on this switch."""
        return self._run("ovs-vsctl", "--timeout=10", f"--db=unix:{self.rundir}/db.sock", *words)

    def ofctl(self, *words: str) -> str:
        """Run ovs-ofctl with OpenFlow 1.4."""
        return self._run("ovs-ofctl", "-O", "OpenFlow14", *words)

    def replace(self, flows: frozenset[Flow]) -> DiffCount:
        """Load flows through the driver that the daemon uses."""
        return asyncio.run(self._with_driver(lambda driver: driver.replace(flows)))

    def replace_services(self, rows: FlowSet) -> DiffCount:
        """The same for services."""
        return asyncio.run(self._with_driver(lambda driver: driver.replace_services(rows)))

    def serve(self, rows: FlowSet) -> DiffCount:
        """Load rows and groups of services through the same driver."""
        return asyncio.run(self._with_driver(lambda driver: driver.replace_services(rows)))

    def read(self) -> frozenset[Flow | UnknownFlow]:
        """Read flows back."""
        return asyncio.run(self._with_driver(lambda driver: driver.read()))

    async def _with_driver(self, act: Callable[[OpenFlowClient], Awaitable[T]]) -> T:
        driver = OpenFlowClient(self.rundir / "br0.mgmt", lambda: None)
        running = asyncio.create_task(driver.run())
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not driver.connected:
                    await asyncio.sleep(0.005)
                return await act(driver)
        finally:
            running.cancel()

    def trace(self, flow: str, frame: bytes) -> str:
        """What would become of a frame."""
        if self._control is None:
            error, self._control = UnixctlClient.create(f"{self.rundir}/ovs-vswitchd.ctl")
            assert not error, os.strerror(error)
        error, refusal, answer = self._control.transact("ofproto/trace", ["br0", flow, frame.hex()])
        assert not error, os.strerror(error)
        assert refusal is None, refusal
        return str(answer)

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self._environment())
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def _start(self, program: str, *arguments: str) -> None:
        control = f"--unixctl={self.rundir}/{program}.ctl"
        process = subprocess.Popen(
            [program, *arguments, control, "--no-chdir"],
            env=self._environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._processes.append(process)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **dict.fromkeys(("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"), str(self.rundir))}

    def _wait_for(self, name: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (self.rundir / name).exists():
            assert time.monotonic() < deadline, f"{name} does not appear"
            time.sleep(0.005)


@dataclass(slots=True)
class TraceWorld:
    """One dummy switch a node; a frame that enters the tunnel is asked of the peer's switch again."""

    switches: dict[str, DummySwitch]
    views: dict[str, NodeNetwork]
    lanes: dict[str, int]
    pods: dict[str, Inhabitant]
    ports: dict[str, int] = field(default_factory=dict)

    def vnid(self, project: str) -> int:
        return self.lanes[project]

    def node_address(self, node: str) -> IPv4Address:
        return self.views[node].node.address

    def gateway(self, node: str) -> IPv4Address:
        return self.views[node].node.gateway

    def sees(self, source: str, target: str, frame: bytes, mark: bytes) -> bool:
        assert mark in frame
        pod = self.pods[source]
        return (self.pods[target].node, self.ports[target]) in self._follow(
            pod.node, f"in_port={self.ports[source]}", frame
        )

    def leaves(self, source: str, frame: bytes, mark: bytes) -> bool:
        assert mark in frame
        pod = self.pods[source]
        return (pod.node, TUN0) in self._follow(pod.node, f"in_port={self.ports[source]}", frame)

    def ends(self, source: str, frame: bytes) -> set[tuple[str, int]]:
        """Every (node, OpenFlow port) at which what `source` sends comes out, with some hashes of its connection."""
        node, port = self.pods[source].node, self.ports[source]
        return set().union(*(self._follow(node, f"in_port={port},dp_hash={number}", frame) for number in HASHES))

    def tunnelled(self, sender: IPv4Address, node: str, vnid: int, target: str, frame: bytes, mark: bytes) -> bool:
        assert mark in frame
        return (self.pods[target].node, self.ports[target]) in self._follow(
            node, self._tunnel(sender, node, vnid), frame
        )

    def _tunnel(self, sender: IPv4Address, node: str, vnid: int) -> str:
        """A packet that has come through a tunnel; without tun_dst the switch takes it for one that has not."""
        return f"in_port={VXLAN0},tun_src={sender},tun_dst={self.node_address(node)},tun_id={vnid}"

    def _follow(self, node: str, flow: str, frame: bytes) -> set[tuple[str, int]]:
        """Every (node, OpenFlow port) at which the frame comes out."""
        text = self.switches[node].trace(flow, frame)
        assert "Datapath actions" in text, text
        outputs = {int(port) for port in re.findall(r"^\s+output:(\d+)$", text, re.MULTILINE)}
        places = {(node, port) for port in outputs - {VXLAN0}}
        if VXLAN0 in outputs:
            [key] = re.findall(r"TUN_ID\[0\.\.31\] is now (0x[0-9a-f]+)", text) or ["0x0"]
            [far] = re.findall(r"set_field:([0-9.]+)->tun_dst", text)
            sender = self.views[node].node.address
            peer = next(name for name, view in self.views.items() if str(view.node.address) == far)
            places |= self._follow(peer, self._tunnel(sender, peer, int(key, 16)), _as_translated(text, frame))
        return places


def _as_translated(text: str, frame: bytes) -> bytes:
    """An untagged frame with the address and the port to which, as a trace tells, connection tracking has sent it."""
    found = re.findall(r"^ Modified flow: .*nw_dst=([0-9.]+),tp_dst=(\d+)$", text, re.MULTILINE)
    if not found:
        return frame
    address, port = found[-1]
    return frame[:30] + IPv4Address(address).packed + frame[34:36] + int(port).to_bytes(2, "big") + frame[38:]


def views_of(
    nodes: Mapping[str, Node], pods: Mapping[str, Inhabitant], ports: Mapping[str, int], lanes: Mapping[str, int]
) -> dict[str, NodeNetwork]:
    """What each node sees of a cluster."""
    return {
        name: NodeNetwork(
            CLUSTER,
            node,
            frozenset(Peer(other.name, other.address, other.subnet) for other in nodes.values() if other != node),
            frozenset(
                Pod(ports[pod.name], pod.address, lanes[pod.project]) for pod in pods.values() if pod.node == name
            ),
        )
        for name, node in nodes.items()
    }


def build(multitenant: bool) -> tuple[dict[str, NodeNetwork], dict[str, int], dict[str, Inhabitant], dict[str, int]]:
    """The standard inhabitants as views, lanes, pods by name and their port numbers."""
    lanes = {"default": 0, "red": 10, "blue": 11} if multitenant else dict.fromkeys(("default", "red", "blue"), 0)
    nodes = {
        name: Node(name, IPv4Address("10.245.2.3") + number, IPv4Network((0x0A800000 + 512 * number, 23)))
        for number, name in enumerate(NODES)
    }
    pods, ports = {}, {}
    for number, place in enumerate(PLACES):
        address = nodes[place.node].subnet.network_address + 2 + number
        pods[place.name] = Inhabitant(place.name, place.project, place.node, address)
        ports[place.name] = 16 + number
    views = views_of(nodes, pods, ports, lanes)
    return views, lanes, pods, ports


def populate(switches: dict[str, DummySwitch], multitenant: bool) -> TraceWorld:
    """Give every switch its ports and flows."""
    views, lanes, pods, ports = build(multitenant)
    for name, switch in switches.items():
        here = {pod: port for pod, port in ports.items() if pods[pod].node == name}
        switch.add_ports({"vxlan0": VXLAN0, "tun0": TUN0, **here})
        switch.replace(compile_flows(views[name]))
    return TraceWorld(switches, views, lanes, pods, ports)
