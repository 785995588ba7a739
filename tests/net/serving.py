"""Services over bare nodes: pods that are known to the master, programs in them that say who they are, and callers."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from api.client.client import AlreadyExists, Client
from api.core.pod import Container, Pod, PodSpec
from api.core.services import Service, ServicePort, ServiceSpec
from api.meta.types import ObjectMeta
from bench.bare import inside, wait_until
from tests.net.cluster import NetCluster

TARGET_PORT = 8080
ANSWER_SECONDS = 3.0

ECHO = """
import selectors, socket, sys
name, port = sys.argv[1].encode(), int(sys.argv[2])
chosen = selectors.DefaultSelector()
tcp, udp = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
tcp.bind(("", port)); tcp.listen(128); udp.bind(("", port))
chosen.register(tcp, 1); chosen.register(udp, 1)
print("ready", flush=True)
while True:
    for key, _ in chosen.select():
        if key.fileobj is tcp:
            peer, (caller, _) = tcp.accept()
            with peer:
                peer.sendall(name + b" " + caller.encode())
        else:
            _, caller = udp.recvfrom(2048)
            udp.sendto(name + b" " + caller[0].encode(), caller)
"""


class Answer(tuple[str, str]):
    """Which pod answered, and as whom it saw the caller."""


def register(cluster: NetCluster, *names: str) -> None:
    """Let the master know pods of the cluster, as their nodes would tell; ready, with their name as the label `app`."""

    async def registering(client: Client) -> None:
        for name in names:
            pod = cluster.pods[name]
            container = Container(name="c", image="none")
            meta = ObjectMeta(name=name, namespace=pod.project, labels={"app": name, "all": "yes"})
            spec = PodSpec(containers=(container,), node_name=pod.node)
            with contextlib.suppress(AlreadyExists):
                await client.create(Pod(metadata=meta, spec=spec))
            ready = {"phase": "Running", "podIP": str(pod.address), "podIPs": [{"ip": str(pod.address)}]}
            conditions = [{"type": "Ready", "status": "True"}]
            await client.patch_status(Pod, name, pod.project, {"status": {**ready, "conditions": conditions}})

    cluster.ask(registering)


def expose(cluster: NetCluster, name: str, project: str, selector: dict[str, str], **spec: Any) -> Service:
    """A service on port 80, TCP and UDP, for the program that `answering` runs, with whatever else is said of it."""
    ports = tuple(
        ServicePort(port=80, name=protocol.lower(), target_port=TARGET_PORT, protocol=protocol)
        for protocol in ("TCP", "UDP")
    )
    wish = ServiceSpec(**{"selector": selector, "ports": ports, **spec})
    meta = ObjectMeta(name=name, namespace=project)
    cluster.ask(lambda client: client.create(Service(metadata=meta, spec=wish)))

    def found() -> Service | None:
        service = cluster.ask(lambda client: client.get(Service, name, project))
        return service if service.spec.cluster_ip else None

    made = wait_until(found, f"the address of the service {name}")
    assert made is not None
    return made


@contextlib.contextmanager
def answering(cluster: NetCluster, *names: str, port: int = TARGET_PORT) -> Iterator[None]:
    """Pods that tell, over TCP and UDP, who they are and who calls."""
    running = [
        subprocess.Popen(
            ["ip", "netns", "exec", cluster.pod_namespace(name), sys.executable, "-c", ECHO, name, str(port)],
            stdout=subprocess.PIPE,
        )
        for name in names
    ]
    try:
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline(), "the program did not begin"
        yield
    finally:
        for process in running:
            process.kill()
            process.communicate()


def call(
    namespace: str,
    address: object,
    port: int,
    protocol: str = "TCP",
    seconds: float = ANSWER_SECONDS,
    own_port: int = 0,
) -> Answer:
    """Call once from a network namespace, from any port of its own if none is given.

    Raises ConnectionRefusedError, or TimeoutError where nothing comes back.
    """
    with inside(namespace):
        kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
        caller = socket.socket(socket.AF_INET, kind)
    with caller:
        caller.settimeout(seconds)
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        caller.bind(("", own_port))
        caller.connect((str(address), port))
        if protocol == "UDP":
            caller.send(b"who?")
        name, _, seen = caller.recv(2048).decode().partition(" ")
    return Answer((name, seen))


def serves(namespace: str, address: object, port: int, protocol: str = "TCP") -> Answer:
    """The first answer, within a deadline: the rows of nodes follow what the master knows a moment later."""

    def answer() -> Answer | None:
        with contextlib.suppress(OSError):
            return call(namespace, address, port, protocol, 0.5)
        return None

    found = wait_until(answer, f"an answer from {address}:{port}")
    assert found is not None
    return found
