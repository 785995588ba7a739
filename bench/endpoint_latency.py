"""The time until clients on every node see that an endpoint is ready, or is not any more."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Interface

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from api.core.pod import Container, Pod, PodSpec
from api.core.services import Service, ServicePort, ServiceSpec
from api.meta.types import ObjectMeta
from api.network.attach import NODE_AGENT, AttachRequest
from bench.measurement import Budget, Measure, Measurement, Progress
from tests.testbed.namespaces import inside
from tests.testbed.netns.cluster import NetnsCluster, bench_lab
from tests.testbed.wait import wait_until

SERVICE_IP, PORT, TARGET_PORT = "172.30.200.1", 80, 8080
CONNECT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Size:
    """How many nodes call the service, and how often its endpoint gets ready and not ready."""

    nodes: int
    rounds: int


FULL = Size(nodes=3, rounds=20)
SMALLEST = Size(nodes=1, rounds=1)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Write a pod's readiness. Pods on all nodes call its service until all of them see the change."""
    progress(f"{size.nodes} nodes, {size.rounds} times ready and not ready")
    with NetnsCluster(bench_lab(size.nodes)) as cluster:
        spaces = dict(zip(cluster.nodes, cluster.add_namespaces([f"on-{name}" for name in cluster.nodes]), strict=True))
        addresses = {name: _attach(cluster, name, space) for name, space in spaces.items()}
        last = list(spaces)[-1]
        with inside(spaces[last]):
            listener = socket.create_server(("", TARGET_PORT), backlog=1024)
        with listener, _accepting(listener):
            return asyncio.run(_rounds(size, cluster, last, addresses[last], list(spaces.values())))


MEASURE = Measure("how soon all nodes see that an endpoint is ready, or is not any more", measure, FULL, SMALLEST)


def _attach(cluster: NetnsCluster, node: str, space: str) -> str:
    request = AttachRequest(
        sandbox=space, netns=f"/run/netns/{space}", namespace="default", name=space, runtime=NODE_AGENT
    )
    return str(IPv4Interface(cluster.call_cni_server(node, lambda network: network.attach(request)).ip).ip)


@contextlib.contextmanager
def _accepting(listener: socket.socket) -> Iterator[None]:
    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


async def _rounds(size: Size, cluster: NetnsCluster, node: str, address: str, spaces: list[str]) -> list[Measurement]:
    async with Client(Kubeconfig.load(cluster.lab.kubeconfig)) as client:
        pod = Pod(
            metadata=ObjectMeta(name="end", namespace="default", labels={"app": "end"}),
            spec=PodSpec(node_name=node, containers=(Container(name="c", image="none"),)),
        )
        await client.create(pod)
        ports = (ServicePort(port=PORT, target_port=TARGET_PORT, protocol="TCP"),)
        service_spec = ServiceSpec(selector={"app": "end"}, cluster_ip=SERVICE_IP, ports=ports)
        await client.create(Service(metadata=ObjectMeta(name="end", namespace="default"), spec=service_spec))

        async def set_ready(ready: bool) -> float:
            """Return milliseconds from the beginning of the write until clients on all nodes see it."""
            status = {
                "phase": "Running",
                "podIP": address,
                "conditions": [{"type": "Ready", "status": str(ready)}],
            }
            begin = time.perf_counter()
            waiting = [asyncio.ensure_future(asyncio.to_thread(_wait_for_change, space, ready)) for space in spaces]
            await client.patch_status(Pod, "end", "default", {"status": status})
            return (max(await asyncio.gather(*waiting)) - begin) * 1000

        await set_ready(True)
        unready_times, ready_times = [], []
        for _ in range(size.rounds):
            unready_times.append(await set_ready(False))
            ready_times.append(await set_ready(True))
    name = f"on the last of {size.nodes} nodes, from the write"
    return [
        Measurement(f"an endpoint that is ready gets connections {name}", "ms", tuple(ready_times), Budget(100)),
        Measurement(f"an endpoint that is not ready gets none {name}", "ms", tuple(unready_times), Budget(100)),
    ]


def _wait_for_change(space: str, ready: bool) -> float:
    """Return the time of the first connection with the expected outcome (steady clock)."""
    return wait_until(lambda: time.perf_counter() if _connects(space) == ready else 0.0, "a connection", pause=0.001)


def _connects(space: str) -> bool | None:
    with inside(space), contextlib.closing(socket.socket()) as client:
        client.settimeout(CONNECT_SECONDS)
        try:
            client.connect((SERVICE_IP, PORT))
        except ConnectionRefusedError:
            return False
        except OSError:
            return None
    return True
