"""proxyMode userspace with real packets: pods reach services of their own project through their node's proxy."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from api.core.services import Service, ServicePort
from lab.topology import Process
from tests.testbed.namespaces import inside
from tests.testbed.netns.packet_world import PacketWorld, running_world
from tests.testbed.netns.services import TARGET_PORT, answering, call, create_service, register, wait_for_answer
from tests.testbed.podlane_cli import podlane_network
from tests.testbed.wait import DEADLINE_SECONDS, wait_until

PORTS = tuple(
    ServicePort(port=80, target_port=TARGET_PORT, protocol=protocol, name=protocol.lower())
    for protocol in ("TCP", "UDP")
)

SILENCE_SECONDS = 0.5
"""How long no answer has to come where none must; beside a control that is answered at once."""


def by_proxy(cluster: PacketWorld, node: str) -> Process:
    """Return the node's sdn daemon with the userspace proxy."""
    known = cluster.specification(f"{node} sdn")
    return replace(known, command=(*known.command, "--proxy-mode=userspace"))


@pytest.fixture(scope="module")
def world() -> Iterator[PacketWorld]:
    with running_world("podprx", 16) as cluster:
        for node in cluster.nodes:
            cluster.kill(f"{node} sdn")
            cluster.start(f"{node} sdn", by_proxy(cluster, node))
        for node in cluster.nodes:
            wait_until(lambda: cluster.network_ready(node), f"{node}'s network")  # noqa: B023
        names = tuple(cluster.pods)
        register(cluster, *names)
        with answering(cluster, *names):
            yield cluster


@pytest.fixture(scope="module")
def near_and_far(world: PacketWorld) -> Service:
    """Create a service of red with a pod on each node."""
    web = create_service(world, "web", "red", {"all": "yes"}, ports=PORTS, type="NodePort")
    for pod in ("red-a", "red-c"):
        wait_for_answer(world.pod_namespace(pod), web.spec.cluster_ip, 80)
    return web


def frontends(world: PacketWorld, service: Service, protocol: str) -> list[tuple[IPv4Address, int]]:
    node_port = next(port.node_port for port in service.spec.ports if port.protocol == protocol)
    nodes = [(node.address, node_port) for node in world.nodes.values()]
    return [(IPv4Address(service.spec.cluster_ip), 80), *nodes]


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
@pytest.mark.parametrize("caller", ["red-a", "red-c", "admin-a"])
def test_userspace_mode_pods_reach_all_endpoints_at_every_frontend(
    world: PacketWorld, near_and_far: Service, caller: str, protocol: str
) -> None:
    for address, port in frontends(world, near_and_far, protocol):
        wait_for_answer(world.pod_namespace(caller), address, port, protocol)
        actual = {call(world.pod_namespace(caller), address, port, protocol)[0] for _ in range(6)}
        assert actual == {"red-a", "red-b", "red-c"}, (address, port)


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
@pytest.mark.parametrize("caller", ["blue-a", "blue-b"])
def test_userspace_mode_rejects_other_projects(
    world: PacketWorld, near_and_far: Service, caller: str, protocol: str
) -> None:
    own = create_service(world, f"own-{caller}-{protocol.lower()}", "blue", {"app": caller}, ports=PORTS)
    namespace = world.pod_namespace(caller)
    wait_for_answer(namespace, own.spec.cluster_ip, 80, protocol)
    node = world.pods[caller].node
    itself = (world.gateway(node), proxy_port(world, node))
    with ThreadPoolExecutor() as threads:
        calls = [
            threads.submit(call, namespace, *frontend, protocol, SILENCE_SECONDS)
            for frontend in (*frontends(world, near_and_far, protocol), itself)
        ]
    assert all(isinstance(future.exception(), OSError) for future in calls)


def proxy_port(world: PacketWorld, node: str) -> int:
    """Return the port to which the firewall redirects."""
    rules = world.in_node(node, "nft", "list", "table", "ip", "podlane-services")
    return int(rules.partition("redirect to :")[2].split()[0])


def test_userspace_mode_trace_ends_at_the_proxy(world: PacketWorld, near_and_far: Service) -> None:
    reported = podlane_network(world.lab.kubeconfig, "trace", "red/red-a", "red/web").splitlines()
    assert (
        reported[-1] == "delivered: red/red-a reaches the proxy of node-1, "
        "which connects to an endpoint of the service red/web"
    )
    assert reported[0].startswith("red/web 80/TCP on node-1: red/red-a (")
    refused = podlane_network(world.lab.kubeconfig, "trace", "blue/blue-a", "red/web").splitlines()
    vnids = world.vnid("blue"), world.vnid("red")
    assert refused[-1] == "dropped because blue (VNID {}) may not connect to the service red/web (VNID {})".format(
        *vnids
    )


def test_userspace_mode_serves_node_and_external_clients(world: PacketWorld, near_and_far: Service) -> None:
    node = world.nodes["node-1"]
    for address, port in frontends(world, near_and_far, "TCP")[:2]:
        assert {call(node.namespace, address, port)[0] for _ in range(6)} == {"red-a", "red-b", "red-c"}
    address, port = frontends(world, near_and_far, "TCP")[1]
    other = world.nodes["node-2"].namespace
    assert {call(other, address, port)[0] for _ in range(6)} == {"red-a", "red-b", "red-c"}


def test_userspace_mode_pods_get_endpoints_of_the_called_node_only_with_external_traffic_policy_local(
    world: PacketWorld,
) -> None:
    more = {"type": "LoadBalancer", "external_traffic_policy": "Local"}
    service = create_service(world, "local", "red", {"app": "red-c"}, **more)
    (near, port), (far, _) = frontends(world, service, "TCP")[1:]
    for caller in ("red-a", "admin-a"):
        namespace = world.pod_namespace(caller)
        assert wait_for_answer(namespace, far, port) == ("red-c", str(world.gateway("node-2")))
        assert wait_for_answer(namespace, near, port) == ("red-c", str(world.gateway("node-1")))
        with pytest.raises(TimeoutError):
            call(world.pod_namespace("red-c"), near, port, seconds=SILENCE_SECONDS)
        with pytest.raises(TimeoutError):
            call(world.pod_namespace("blue-a"), far, port, seconds=SILENCE_SECONDS)
    with inside(world.pod_namespace("red-a")), socket.socket() as caller_socket:
        caller_socket.settimeout(5)
        caller_socket.connect((str(far), service.spec.health_check_node_port))


def test_userspace_mode_rejects_connections_without_endpoints(world: PacketWorld, near_and_far: Service) -> None:
    empty = create_service(world, "empty", "red", {"app": "nobody"})
    namespace = world.pod_namespace("red-a")

    def is_refused() -> bool:
        with contextlib.suppress(TimeoutError):
            try:
                call(namespace, empty.spec.cluster_ip, 80, seconds=0.5)
            except ConnectionRefusedError:
                return True
        return False

    wait_until(is_refused, "a refusal")


def test_userspace_mode_drains_connections_at_shutdown(world: PacketWorld, near_and_far: Service) -> None:
    slow = create_service(world, "slow", "red", {"app": "red-c"}, ports=(ServicePort(port=80, target_port=9090),))
    with inside(world.pod_namespace("red-c")):
        backend = socket.create_server(("0.0.0.0", 9090))
    backend.settimeout(DEADLINE_SECONDS)

    def connected() -> socket.socket | None:
        with inside(world.pod_namespace("red-a")), contextlib.suppress(OSError):
            return socket.create_connection((slow.spec.cluster_ip, 80), 0.5)
        return None

    def is_taken() -> bool:
        further = connected()
        if further is not None:
            further.close()
        return further is not None

    client = wait_until(connected, "a connection by the proxy")
    assert client is not None
    with backend, client, backend.accept()[0] as connection:
        client.sendall(b"question")
        assert connection.recv(100) == b"question"
        world.signal("node-1 sdn", signal.SIGTERM)
        wait_until(lambda: not is_taken(), "no further connections")
        connection.sendall(b"late answer")
        connection.close()
        assert client.recv(100) == b"late answer"
        assert client.recv(100) == b""
    wait_until(lambda: not world.is_alive("node-1 sdn"), "the daemon's end")
    world.start("node-1 sdn", by_proxy(world, "node-1"))
    assert wait_for_answer(world.pod_namespace("red-a"), near_and_far.spec.cluster_ip, 80)[0] in {
        "red-a",
        "red-b",
        "red-c",
    }
