"""Services on namespaced nodes: pods that the master knows, programs that answer with their name, and clients."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from msgspec.structs import replace as changed

from api.client.client import AlreadyExists, Client
from api.core.endpoints import SERVICE_LABEL, Endpoint, EndpointSlice, SlicePort
from api.core.pod import Container, Pod, PodSpec
from api.core.services import Service, ServicePort, ServiceSpec
from api.meta.types import ObjectMeta
from lab.topology import EXTERNAL_IP_NETWORK
from sdn.pipeline.tables import Table
from sdn.topology import GLOBAL_VNID
from tests.testbed.isolation.service_attempts import BACKEND_PORT, OfferedService
from tests.testbed.namespaces import inside
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.wait import wait_until

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
    """The pod that answered, and the client's address as that pod saw it."""


def register(cluster: PacketWorld, *names: str) -> None:
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

    cluster.call_api(registering)


def create_service(cluster: PacketWorld, name: str, project: str, selector: dict[str, str], **spec: Any) -> Service:
    """Create a service on port 80, TCP and UDP, for the program of `answering`. `spec` are other fields of its spec."""
    ports = tuple(
        ServicePort(port=80, name=protocol.lower(), target_port=TARGET_PORT, protocol=protocol)
        for protocol in ("TCP", "UDP")
    )
    service_spec = ServiceSpec(**{"selector": selector, "ports": ports, **spec})
    meta = ObjectMeta(name=name, namespace=project)
    cluster.call_api(lambda client: client.create(Service(metadata=meta, spec=service_spec)))

    def with_cluster_ip() -> Service | None:
        service = cluster.call_api(lambda client: client.get(Service, name, project))
        return service if service.spec.cluster_ip else None

    made = wait_until(with_cluster_ip, f"the address of the service {name}")
    assert made is not None
    return made


@contextlib.contextmanager
def answering(cluster: PacketWorld, *names: str, port: int = TARGET_PORT) -> Iterator[None]:
    """Run a program in pods during the block that answers over TCP and UDP with the pod's name and the client's
    address.
    """
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
    datagrams: int = 1,
) -> Answer:
    """Call once from a network namespace, from any port of its own if none is given.

    By UDP, up to `datagrams` are sent from the same port, the next one if nothing comes back within `seconds`. Raises
    ConnectionRefusedError, or TimeoutError with the own port where nothing comes back at all.
    """
    with inside(namespace):
        kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
        caller = socket.socket(socket.AF_INET, kind)
    with caller:
        caller.settimeout(seconds)
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        caller.bind(("", own_port))
        caller.connect((str(address), port))
        for _ in range(datagrams):
            if protocol == "UDP":
                caller.send(b"who?")
            with contextlib.suppress(TimeoutError):
                name, _, seen = caller.recv(2048).decode().partition(" ")
                return Answer((name, seen))
        raise TimeoutError(f"no answer from {address}:{port} to port {caller.getsockname()[1]}")


def wait_for_answer(namespace: str, address: object, port: int, protocol: str = "TCP") -> Answer:
    """Return the first answer, within a deadline: flows follow the state of the master after a moment."""

    def answer() -> Answer | None:
        with contextlib.suppress(OSError):
            return call(namespace, address, port, protocol, 0.5)
        return None

    reply = wait_until(answer, f"an answer from {address}:{port}")
    assert reply is not None
    return reply


PORT = 80
_ROW = re.compile(rf"table={int(Table.SERVICE_LB)},.*?(?:reg0=(\w+),)?nw_dst=([0-9.]+),.*actions=(.*)")
_BACKEND = re.compile(r"dst=([0-9.]+):")


class OfferedServices:
    """Each has a backend of its own project, of another one, or outside of the cluster; `all` are as they are now."""

    def __init__(self, cluster: PacketWorld) -> None:
        self._cluster = cluster
        self._slices: dict[str, EndpointSlice] = {}
        self._offers: dict[str, OfferedService] = {}
        register(cluster, *cluster.pods)
        for project, backend in (
            ("amber", "amber-pod"),
            ("violet", "violet-pod"),
            ("red", "cyan-pod"),
            ("blue", ""),
            ("default", "admin-a"),
        ):
            self._make(project, backend)

    @property
    def all(self) -> tuple[OfferedService, ...]:
        """As the API has them."""
        return tuple(self._offers.values())

    def move(self, project: str, pod: str) -> None:
        """Make a pod the backend of a project's service."""
        backend = self._cluster.pods[pod]
        endpoint_slice = changed(self._slices[project], endpoints=(Endpoint(addresses=(str(backend.address),)),))
        self._slices[project] = self._cluster.call_api(lambda client: client.update(endpoint_slice))
        self._offers[project] = replace(self._offers[project], backend=backend)

    def in_force(self, node: str, vnids: Mapping[str, int]) -> bool:
        """Return whether exactly the clients with these VNIDs may use each service, and get its backend."""
        actual: dict[str, set[tuple[int | None, str]]] = {}
        for match in filter(None, map(_ROW.search, self._cluster.flows(node))):
            led = _BACKEND.search(match[3])
            actual.setdefault(match[2], set()).add((int(match[1], 0) if match[1] else None, led[1] if led else ""))
        return all(actual.get(str(offer.fronts["cluster IP"][0])) == self._wanted(offer, vnids) for offer in self.all)

    def _wanted(self, offer: OfferedService, vnids: Mapping[str, int]) -> set[tuple[int | None, str]]:
        outside = self._cluster.lab.site.outside
        backend = str(outside if offer.is_elsewhere else offer.backend.address) if offer.is_kept(vnids) else ""
        vnid = vnids[offer.project]
        return {(client, backend) for client in ((None,) if vnid == GLOBAL_VNID else (GLOBAL_VNID, vnid))}

    def _make(self, project: str, backend: str) -> None:
        cluster = self._cluster
        external = IPv4Network(EXTERNAL_IP_NETWORK).network_address + 20 + len(self._offers)
        ports = (ServicePort(port=PORT, name="udp", protocol="UDP"),)
        more = {"ports": ports, "type": "LoadBalancer", "external_ips": (str(external),)}
        create_service(cluster, "offer", project, {}, **more)
        address = cluster.pods[backend].address if backend else cluster.lab.site.outside
        endpoint_slice = EndpointSlice(
            metadata=ObjectMeta(name="offer", namespace=project, labels={SERVICE_LABEL: "offer"}),
            address_type="IPv4",
            endpoints=(Endpoint(addresses=(str(address),)),),
            ports=(SlicePort(port=BACKEND_PORT, name="udp", protocol="UDP"),),
        )
        self._slices[project] = cluster.call_api(lambda client: client.create(endpoint_slice))
        service = wait_until(lambda: self._with_ingress(project), "an ingress address")
        assert service is not None
        [port] = service.spec.ports
        given = {"cluster IP": service.spec.cluster_ip, "external IP": str(external)}
        given["ingress IP"] = service.status.load_balancer.ingress[0].ip
        fronts = {name: (IPv4Address(text), PORT) for name, text in given.items()}
        for node in cluster.nodes:
            fronts[f"node port of {node}"] = (cluster.node_address(node), port.node_port)
        pod = cluster.pods[backend or "blue-pod"]
        self._offers[project] = OfferedService(f"{project}'s", project, fronts, port.node_port, pod, not backend)

    def _with_ingress(self, project: str) -> Service | None:
        service = self._cluster.call_api(lambda client: client.get(Service, "offer", project))
        return service if service.status.load_balancer.ingress else None
