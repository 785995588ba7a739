"""How soon callers on every node feel that an endpoint takes calls, or does not any more."""

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

CALLED, PORT, TARGET_PORT = "172.30.200.1", 80, 8080
CALL_SECONDS = 2.0


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
            ear = socket.create_server(("", TARGET_PORT), backlog=1024)
        with ear, _accepting(ear):
            return asyncio.run(_rounds(size, cluster, last, addresses[last], list(spaces.values())))


MEASURE = Measure("how soon all nodes see that an endpoint is ready, or is not any more", measure, FULL, SMALLEST)


def _attach(cluster: NetnsCluster, node: str, space: str) -> str:
    request = AttachRequest(
        sandbox=space, netns=f"/run/netns/{space}", namespace="default", name=space, runtime=NODE_AGENT
    )
    return str(IPv4Interface(cluster.call_cni_server(node, lambda network: network.attach(request)).ip).ip)


@contextlib.contextmanager
def _accepting(ear: socket.socket) -> Iterator[None]:
    def work() -> None:
        with contextlib.suppress(OSError):
            while True:
                ear.accept()[0].close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ear.shutdown(socket.SHUT_RDWR)
        thread.join()


async def _rounds(size: Size, cluster: NetnsCluster, node: str, address: str, spaces: list[str]) -> list[Measurement]:
    async with Client(Kubeconfig.load(cluster.lab.kubeconfig)) as client:
        pod = Pod(
            metadata=ObjectMeta(name="end", namespace="default", labels={"app": "end"}),
            spec=PodSpec(node_name=node, containers=(Container(name="c", image="none"),)),
        )
        await client.create(pod)
        ports = (ServicePort(port=PORT, target_port=TARGET_PORT, protocol="TCP"),)
        service_spec = ServiceSpec(selector={"app": "end"}, cluster_ip=CALLED, ports=ports)
        await client.create(Service(metadata=ObjectMeta(name="end", namespace="default"), spec=service_spec))

        async def turn(ready: bool) -> float:
            """Milliseconds from the beginning of the write."""
            status = {
                "phase": "Running",
                "podIP": address,
                "conditions": [{"type": "Ready", "status": str(ready)}],
            }
            begin = time.perf_counter()
            felt = [asyncio.to_thread(_felt, space, ready) for space in spaces]
            waiting = [asyncio.ensure_future(coroutine) for coroutine in felt]
            await client.patch_status(Pod, "end", "default", {"status": status})
            return (max(await asyncio.gather(*waiting)) - begin) * 1000

        await turn(True)
        gone, come = [], []
        for _ in range(size.rounds):
            gone.append(await turn(False))
            come.append(await turn(True))
    name = f"on the last of {size.nodes} nodes, from the write"
    return [
        Measurement(f"an endpoint that is ready takes calls {name}", "ms", tuple(come), Budget(100)),
        Measurement(f"an endpoint that is not ready takes none {name}", "ms", tuple(gone), Budget(100)),
    ]


def _felt(space: str, ready: bool) -> float:
    """Return the time of the first call with the expected outcome (steady clock)."""
    return wait_until(lambda: time.perf_counter() if _answers(space) == ready else 0.0, "a call", pause=0.001)


def _answers(space: str) -> bool | None:
    with inside(space), contextlib.closing(socket.socket()) as caller:
        caller.settimeout(CALL_SECONDS)
        try:
            caller.connect((CALLED, PORT))
        except ConnectionRefusedError:
            return False
        except OSError:
            return None
    return True
