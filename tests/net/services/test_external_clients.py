"""Services for the node and for external clients, as the sdn daemon maintains them."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from api.client.client import Client
from api.core.services import Service, ServicePort
from tests.testbed.isolation.world import PlannedPod
from tests.testbed.namespaces import inside
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.netns.services import TARGET_PORT, answering, call, create_service, register, wait_for_answer
from tests.testbed.wait import wait_until

OUTSIDE = "/proc/self/ns/net"
NEAR, FAR = PlannedPod("admin-near", "default", "node-1"), PlannedPod("admin-far", "default", "node-2")


SERVICES = ("reached", "kept", "flushed", "lasting")


@pytest.fixture(scope="module")
def serving(world: PacketWorld) -> Iterator[PacketWorld]:
    for planned_pod in (NEAR, FAR):
        world.add(planned_pod)
    register(world, NEAR.name, FAR.name)
    with answering(world, NEAR.name, FAR.name):
        yield world
    world.call_api(withdraw)
    for planned_pod in (NEAR, FAR):
        world.remove(planned_pod.name)


async def withdraw(client: Client) -> None:
    """Delete the services. Other tests need a cluster where no pod serves UDP, because only there single UDP fragments
    reach pods.
    """
    for name in SERVICES:
        await client.delete(Service, name, "default")


def own(serving: PacketWorld) -> str:
    return str(serving.lab.site.outside)


def test_external_client_is_masqueraded_only_to_endpoints_on_another_node(serving: PacketWorld) -> None:
    service = create_service(serving, "reached", "default", {"app": NEAR.name}, type="NodePort")
    port = service.spec.ports[0].node_port
    assert wait_for_answer(OUTSIDE, serving.node_address("node-1"), port) == (NEAR.name, own(serving))
    assert wait_for_answer(OUTSIDE, serving.node_address("node-2"), port) == (NEAR.name, str(serving.gateway("node-2")))


def test_local_traffic_policy_answers_only_on_nodes_with_endpoints(serving: PacketWorld) -> None:
    service = create_service(
        serving, "kept", "default", {"app": FAR.name}, type="LoadBalancer", external_traffic_policy="Local"
    )
    port = service.spec.ports[0].node_port
    assert wait_for_answer(OUTSIDE, serving.node_address("node-2"), port) == (FAR.name, own(serving))
    assert wait_for_answer(serving.nodes["node-1"].namespace, serving.node_address("node-1"), port)[0] == FAR.name
    with pytest.raises(TimeoutError):
        call(OUTSIDE, serving.node_address("node-1"), port, seconds=0.3)
    health = service.spec.health_check_node_port
    assert [health_of(serving, node, health) for node in ("node-1", "node-2")] == [503, 200]


def health_of(serving: PacketWorld, node: str, port: int) -> int:
    with socket.create_connection((str(serving.node_address(node)), port), timeout=5) as asking:
        asking.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        return int(asking.recv(64).split()[1])


def test_flushed_ruleset_is_restored_at_once(serving: PacketWorld) -> None:
    service = create_service(serving, "flushed", "default", {"app": NEAR.name})
    node = serving.nodes["node-1"].namespace
    wait_for_answer(node, service.spec.cluster_ip, 80)

    def rules() -> str:
        return "".join(sorted(serving.in_node("node-1", "nft", "list", "ruleset")))

    before = rules()
    assert "what=firewall" not in serving.log("node-1")
    serving.in_node("node-1", "nft", "flush", "ruleset")
    wait_until(lambda: rules() == before, "the ruleset as it was", seconds=15)
    assert wait_for_answer(node, service.spec.cluster_ip, 80)[0] == NEAR.name
    assert "what=firewall" in serving.log("node-1")


def test_killed_daemon_ends_no_connection(serving: PacketWorld) -> None:
    datagrams = ServicePort(port=80, target_port=TARGET_PORT, protocol="UDP")
    service = create_service(serving, "lasting", "default", {"app": FAR.name}, type="NodePort", ports=(datagrams,))
    port = service.spec.ports[0].node_port
    wait_for_answer(OUTSIDE, serving.node_address("node-1"), port, "UDP")
    with inside(OUTSIDE), socket.socket(type=socket.SOCK_DGRAM) as caller:
        caller.settimeout(5)
        caller.connect((str(serving.node_address("node-1")), port))

        def answers() -> bool:
            caller.send(b"who?")
            return caller.recv(64) == f"{FAR.name} {serving.gateway('node-1')}".encode()

        assert answers()
        serving.kill("node-1 sdn")
        assert answers()
        assert call(OUTSIDE, serving.node_address("node-1"), port, "UDP")[0] == FAR.name
        serving.start("node-1 sdn")
        while not serving.network_ready("node-1"):
            assert answers()
        assert answers()
