"""Services give no access to another project, even for forged frames; each case has a permitted control."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

import pytest

from api.core.endpoints import SERVICE_LABEL, Endpoint, EndpointSlice, SlicePort
from api.core.services import Service
from api.meta.types import ObjectMeta
from lab.topology import EXTERNAL_IP_NETWORK
from sdn.topology import mac_of
from tests.testbed import frames
from tests.testbed.netns.packet_world import PacketWorld, running_world
from tests.testbed.netns.services import TARGET_PORT, create_service, register
from tests.testbed.wait import wait_until

PORT, CALLER_PORT = 80, 40000
EXTERNAL_IPS = {
    name: IPv4Network(EXTERNAL_IP_NETWORK).network_address + number for number, name in enumerate(("near", "far"), 9)
}
TARGETS = {"near": "red-a", "far": "red-c"}
"""Services of the project red, each with one pod: on the attacker's node or on the other one."""

SERVICES = IPv4Network("172.30.0.0/16")
MORE_FRAGMENTS, SECOND_FRAGMENT = 0x2000, 0x0010
SCANNED = 40

Front = tuple[IPv4Address, int]


@pytest.fixture(scope="module")
def cluster() -> Iterator[PacketWorld]:
    with running_world("podsat", 62) as running:
        register(running, "red-a", "red-b", "red-c", "blue-a", "blue-b")
        yield running


@pytest.fixture(scope="module")
def services(cluster: PacketWorld) -> dict[str, Service]:
    created = {}
    for name, target in TARGETS.items():
        more = {"type": "LoadBalancer", "external_ips": (str(EXTERNAL_IPS[name]),)}
        created[name] = create_service(cluster, name, "red", {"app": target}, **more)
        wait_until(lambda name=name: ingress(cluster, name), "an ingress address")  # type: ignore[misc]
        created[name] = cluster.call_api(lambda client, name=name: client.get(Service, name, "red"))  # type: ignore[misc]
        for front in fronts(cluster, created[name]):
            until_served(cluster, front, target)
    return created


def ingress(cluster: PacketWorld, name: str) -> bool:
    return bool(cluster.call_api(lambda client: client.get(Service, name, "red")).status.load_balancer.ingress)


def fronts(cluster: PacketWorld, service: Service) -> list[Front]:
    """Return cluster IP, external and ingress address with the port, and the UDP node port at both nodes."""
    [node_port] = [port.node_port for port in service.spec.ports if port.protocol == "UDP"]
    given = (service.spec.cluster_ip, *service.spec.external_ips, service.status.load_balancer.ingress[0].ip)
    at_nodes = [(cluster.node_address(node), node_port) for node in cluster.nodes]
    return [*((IPv4Address(address), PORT) for address in given), *at_nodes]


def until_served(cluster: PacketWorld, front: Front, target: str) -> None:
    """Wait until packets of clients with the service's VNID and with VNID 0 arrive."""
    for caller in ("red-b", "admin-a", "admin-b"):
        wait_until(lambda caller=caller: arrives(cluster, caller, Packet(front), target), f"{caller} at {front}")  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class Packet:
    """A datagram to `front`. If `sender` is set, its source address is forged."""

    front: Front
    sender: IPv4Address | None = None
    source_port: int = CALLER_PORT
    fragment: int = 0

    def frame(self, cluster: PacketWorld, source: str, marker: bytes) -> bytes:
        """Return the frame of the packet from a pod to the gateway."""
        pod = cluster.pods[source]
        address, port = self.front
        body = frames.udp(self.sender or pod.address, address, marker, port, self.fragment, self.source_port)
        return frames.ethernet(mac_of(cluster.gateway(pod.node)), pod.mac, frames.IPV4, body)


def arrives(cluster: PacketWorld, source: str, packet: Packet, target: str) -> bool:
    marker = frames.new_marker()
    return cluster.delivers(source, target, packet.frame(cluster, source, marker), marker)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("attacker", ["blue-a", "blue-b"])
def test_no_service_frontend_reaches_another_project(
    cluster: PacketWorld, services: dict[str, Service], name: str, attacker: str
) -> None:
    """A node port at the address of a gateway does not reach it either."""
    known = fronts(cluster, services[name])
    for front in known:
        assert arrives(cluster, "red-b", Packet(front), TARGETS[name])
        assert not arrives(cluster, attacker, Packet(front), TARGETS[name]), front
        for fragment in (MORE_FRAGMENTS, SECOND_FRAGMENT):
            assert not arrives(cluster, attacker, Packet(front, fragment=fragment), TARGETS[name]), front
    for node in cluster.nodes:
        assert not arrives(cluster, attacker, Packet((cluster.gateway(node), known[-1][1])), TARGETS[name])


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("attacker", ["blue-a", "blue-b"])
def test_forged_packet_enters_no_service_connection(
    cluster: PacketWorld, services: dict[str, Service], name: str, attacker: str
) -> None:
    """While two pods exchange packets through a service, no forged packet is taken for one of theirs."""
    target, caller = TARGETS[name], cluster.pods["red-b"].address
    backend, front = cluster.pods[target].address, fronts(cluster, services[name])[0]

    def talk() -> None:
        assert arrives(cluster, "red-b", Packet(front), target)
        answer = Packet((caller, CALLER_PORT), source_port=TARGET_PORT)
        assert arrives(cluster, target, answer, "red-b"), "the answer comes"

    talk()
    for sender in (None, backend, front[0], caller, cluster.gateway("node-1")):
        for source_port in (TARGET_PORT, PORT, CALLER_PORT):
            answer = Packet((caller, CALLER_PORT), sender, source_port)
            assert not arrives(cluster, attacker, answer, "red-b"), answer
        for destination in (front, (backend, TARGET_PORT)):
            assert not arrives(cluster, attacker, Packet(destination, sender), target), (sender, destination)
    talk()


@pytest.mark.parametrize("attacker", ["blue-a", "blue-b"])
def test_pod_of_another_project_reaches_no_address_of_the_service_network(
    cluster: PacketWorld, services: dict[str, Service], attacker: str
) -> None:
    chosen = random.Random(7)
    known = {fronts(cluster, service)[0][0] for service in services.values()}
    outside = cluster.lab.site.outside
    for _ in range(SCANNED):
        address = chosen.choice([*known, SERVICES.network_address + chosen.randrange(1, SERVICES.num_addresses)])
        marker = frames.new_marker()
        scan = Packet((address, chosen.choice((53, PORT, TARGET_PORT, 9999)))).frame(cluster, attacker, marker)
        assert not cluster.leaves_cluster(attacker, scan, marker), address
    marker = frames.new_marker()
    assert cluster.leaves_cluster(attacker, Packet((outside, 9999)).frame(cluster, attacker, marker), marker), (
        "others do leave"
    )


def by_hand(cluster: PacketWorld, name: str, *endpoints: Front) -> Service:
    """Create a service of the project blue with these endpoints, as its owner may."""
    service = create_service(cluster, name, "blue", {})
    for number, (address, port) in enumerate(endpoints):
        meta = ObjectMeta(name=f"{name}-{number}", namespace="blue", labels={SERVICE_LABEL: name})
        endpoint_slice = EndpointSlice(
            metadata=meta,
            address_type="IPv4",
            endpoints=(Endpoint(addresses=(str(address),)),),
            ports=(SlicePort(port=port, name="udp", protocol="UDP"),),
        )
        cluster.call_api(lambda client, new_slice=endpoint_slice: client.create(new_slice))  # type: ignore[misc]
    return service


@pytest.mark.parametrize("name", TARGETS)
def test_manual_endpoints_reach_no_other_project(cluster: PacketWorld, services: dict[str, Service], name: str) -> None:
    """The endpoints are a pod of the other project and each frontend of its service. A pod of the own project is
    reached so.
    """
    target = cluster.pods[TARGETS[name]]
    places = [(target.address, TARGET_PORT), *fronts(cluster, services[name])]
    made = [by_hand(cluster, f"{name}-{number}", address) for number, address in enumerate(places)]
    wire, tried = cluster.wire(target.name), {}
    wire.received()
    for attacker, other in (("blue-a", "blue-b"), ("blue-b", "blue-a")):
        own = by_hand(cluster, f"{name}-of-{other}", (cluster.pods[other].address, TARGET_PORT))
        front = IPv4Address(own.spec.cluster_ip), PORT
        wait_until(lambda: arrives(cluster, attacker, Packet(front), other), "its own endpoint is reached")  # noqa: B023
        for service, address in zip(made, places, strict=True):
            marker = frames.new_marker()
            tried[marker] = f"{attacker} through {address}"
            front = IPv4Address(service.spec.cluster_ip), PORT
            cluster.wire(attacker).send(Packet(front).frame(cluster, attacker, marker))
    came = until_the_outside_arrives(cluster, places[-1], target.name)
    assert not [what for marker, what in tried.items() if any(marker in frame for frame in came)]


def until_the_outside_arrives(cluster: PacketWorld, front: Front, target: str) -> list[bytes]:
    """Return all frames at a pod until a packet of an external client arrives, which takes the longest way."""
    marker, came = frames.new_marker(), []
    with socket.socket(type=socket.SOCK_DGRAM) as caller:

        def has_come() -> bool:
            caller.sendto(marker, (str(front[0]), front[1]))
            came.extend(cluster.wire(target).received())
            return any(marker in frame for frame in came)

        wait_until(has_come, "a caller from outside")
    return came
