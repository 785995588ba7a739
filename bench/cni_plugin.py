"""Pods attached and detached by `podlane-cni`, as containerd does it, compared with the socket that it calls."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.measurement import Budget, Measure, Measurement, Progress
from bench.pod_attach import Pods
from lab.topology import LabNode
from node_agent.network.sdn import SdnNetwork
from tests.testbed.netns.cluster import NetnsCluster, bench_lab

PLUGIN = Path(sys.executable).with_name("podlane-cni")
ADDED_BUDGET = Budget(25)


@dataclass(frozen=True, slots=True)
class Size:
    """How often a pod is attached and detached in each way."""

    rounds: int


FULL = Size(rounds=40)
SMALLEST = Size(rounds=1)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Attach and detach one pod at a time, in turn by the plugin and through a connection that stays open."""
    with NetnsCluster(bench_lab(1)) as cluster:
        (node,) = cluster.lab.nodes
        (namespace,) = cluster.add_namespaces(["cni"])
        progress(f"{size.rounds} pods by the socket and by podlane-cni")
        return asyncio.run(_measure(size, node, namespace))


MEASURE = Measure("podlane-cni ADD and DEL, beside the socket that it calls", measure, FULL, SMALLEST)


async def _measure(size: Size, node: LabNode, namespace: str) -> list[Measurement]:
    added, deleted, attached, detached = [], [], [], []
    async with SdnNetwork(str(node.sdn_socket)) as network:
        pods = Pods(network)
        await pods.attach(namespace)
        await pods.detach(namespace)
        for _ in range(size.rounds):
            begin = time.perf_counter()
            await pods.attach(namespace)
            attached.append(_milliseconds_since(begin))
            begin = time.perf_counter()
            await pods.detach(namespace)
            detached.append(_milliseconds_since(begin))
            added.append(_call_plugin("ADD", namespace, node))
            deleted.append(_call_plugin("DEL", namespace, node))
    return [*_figures("ADD", added, attached), *_figures("DEL", deleted, detached)]


def _figures(verb: str, plugin: list[float], socket: list[float]) -> list[Measurement]:
    over = tuple(whole - part for whole, part in zip(plugin, socket, strict=True))
    return [
        Measurement(f"podlane-cni {verb}", "ms", tuple(plugin), None, "the socket alone", tuple(socket)),
        Measurement(f"podlane-cni {verb}, over the time of the socket", "ms", over, ADDED_BUDGET),
    ]


def _call_plugin(verb: str, namespace: str, node: LabNode) -> float:
    """Run the plugin as a container runtime does. Return milliseconds. Raises CalledProcessError."""
    configuration = {"cniVersion": "1.0.0", "name": "p", "type": PLUGIN.name, "socket": str(node.sdn_socket)}
    arguments = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": namespace,
        "CNI_NETNS": f"/run/netns/{namespace}",
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={namespace}",
    }
    text, environment = json.dumps(configuration), {**os.environ, **arguments}
    begin = time.perf_counter()
    subprocess.run([PLUGIN], input=text, env=environment, capture_output=True, text=True, check=True)
    return _milliseconds_since(begin)


def _milliseconds_since(begin: float) -> float:
    return (time.perf_counter() - begin) * 1000
