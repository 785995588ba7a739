"""Services with real packets: the clients that get an answer, the endpoints, and the source addresses."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from api.core.endpoints import SERVICE_LABEL, Endpoint, EndpointConditions, EndpointSlice, SlicePort
from api.core.events import Event
from api.core.services import Service, ServicePort
from api.meta.types import ObjectMeta
from lab.process import run
from sdn.pipeline.flows import BRIDGE_LAYOUT
from tests.testbed.namespaces import inside
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.netns.services import TARGET_PORT, call, create_service, wait_for_answer
from tests.testbed.podlane_cli import podlane_network
from tests.testbed.wait import wait_until


@pytest.fixture(scope="module")
def everyone(serving: PacketWorld) -> Service:
    """Create a service with all pods of red as endpoints."""
    return create_service(serving, "everyone", "red", {"all": "yes"})


def test_node_reaches_a_service(serving: PacketWorld) -> None:
    service = create_service(serving, "of-node", "red", {"app": "red-c"})
    node = serving.nodes["node-1"].namespace
    name, seen = wait_for_answer(node, service.spec.cluster_ip, 80)
    assert (name, seen) == ("red-c", str(serving.gateway("node-1")))


def test_endpoint_in_another_project_is_rejected_and_reported(serving: PacketWorld) -> None:
    service = create_service(serving, "borrowed", "red", {})
    stranger, own = serving.pods["blue-a"].address, serving.pods["red-c"].address
    endpoints = tuple(Endpoint(addresses=(str(address),)) for address in (stranger, own))
    ports = (SlicePort(port=TARGET_PORT, name="tcp", protocol="TCP"),)
    meta = ObjectMeta(name="by-hand", namespace="red", labels={SERVICE_LABEL: "borrowed"})
    endpoint_slice = EndpointSlice(metadata=meta, address_type="IPv4", endpoints=endpoints, ports=ports)
    serving.call_api(lambda client: client.create(endpoint_slice))
    node = serving.nodes["node-1"].namespace
    wait_for_answer(node, service.spec.cluster_ip, 80)
    assert {call(node, service.spec.cluster_ip, 80)[0] for _ in range(20)} == {"red-c"}

    def event_message() -> str:
        events = serving.call_api(lambda client: client.list(Event, "red")).items
        return next((event.message for event in events if event.involved_object.name == "borrowed"), "")

    assert wait_until(event_message, "the event") == (
        f"rejected: endpoint {stranger}:{TARGET_PORT} is a pod of the project blue, which is not joined with red"
    )


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
@pytest.mark.parametrize("caller", ["red-a", "red-b", "red-c", "admin-a", "admin-b"])
def test_pods_of_the_project_reach_a_service_with_their_own_address(
    serving: PacketWorld, everyone: Service, caller: str, protocol: str
) -> None:
    name, seen = wait_for_answer(serving.pod_namespace(caller), everyone.spec.cluster_ip, 80, protocol)
    assert name in {"red-a", "red-b", "red-c"}
    assert seen == str(serving.pods[caller].address) or name == caller


@pytest.mark.parametrize("caller", ["blue-a", "admin-b"])
def test_pods_reach_an_endpoint_outside_the_cluster_network(serving: PacketWorld, caller: str) -> None:
    """The endpoint is the master, which is reached through tun0 and the node's masquerade."""
    service = serving.call_api(lambda client: client.get(Service, "kubernetes", "default"))
    with inside(serving.pod_namespace(caller)):
        created = socket.socket()
    with created:
        created.settimeout(3)
        created.connect((service.spec.cluster_ip, 443))
        assert created.getpeername() == (service.spec.cluster_ip, 443)


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
def test_connections_of_one_pod_are_spread_over_all_endpoints(
    serving: PacketWorld, everyone: Service, protocol: str
) -> None:
    pod, address = serving.pod_namespace("red-a"), everyone.spec.cluster_ip
    wait_for_answer(pod, address, 80, protocol)
    assert {call(pod, address, 80, protocol)[0] for _ in range(60)} == {"red-a", "red-b", "red-c"}


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
@pytest.mark.parametrize("caller", ["blue-a", "blue-b"])
def test_pods_of_other_projects_reach_no_service(
    serving: PacketWorld, everyone: Service, caller: str, protocol: str
) -> None:
    wait_for_answer(serving.pod_namespace("red-a"), everyone.spec.cluster_ip, 80, protocol)
    with pytest.raises(TimeoutError):
        call(serving.pod_namespace(caller), everyone.spec.cluster_ip, 80, protocol, 0.3)


def test_connection_continues_while_its_endpoint_is_terminating(serving: PacketWorld) -> None:
    """No other service has endpoints at this port, so no other flow lets its answers pass."""
    service = create_service(serving, "leaving", "red", {}, ports=(ServicePort(port=80, name="tcp", target_port=9191),))
    endpoint = Endpoint(addresses=(str(serving.pods["red-b"].address),))
    meta = ObjectMeta(name="leaving", namespace="red", labels={SERVICE_LABEL: "leaving"})
    endpoint_slice = EndpointSlice(
        metadata=meta,
        address_type="IPv4",
        endpoints=(endpoint,),
        ports=(SlicePort(port=9191, name="tcp", protocol="TCP"),),
    )
    made = serving.call_api(lambda client: client.create(endpoint_slice))
    with inside(serving.pod_namespace("red-b")):
        ear = socket.create_server(("", 9191))
    with ear:
        caller = wait_until(lambda: connected(serving, service), "a connection")
        assert caller is not None
        end, _ = ear.accept()
        with caller, end:
            endpoint_slice = replace(
                made, endpoints=(replace(endpoint, conditions=EndpointConditions(ready=False, serving=False)),)
            )
            serving.call_api(lambda client: client.update(endpoint_slice))
            wait_until(lambda: refuses(serving, service), "new calls are refused")
            talk(caller, end)
            serving.call_api(lambda client: client.delete(EndpointSlice, "leaving", "red"))
            other = create_service(serving, "other", "red", {"app": "red-c"})
            wait_for_answer(serving.pod_namespace("red-a"), other.spec.cluster_ip, 80)
            talk(caller, end)


def talk(caller: socket.socket, end: socket.socket) -> None:
    caller.settimeout(3)
    for word in (b"one", b"two"):
        caller.sendall(word)
        end.sendall(end.recv(10))
        assert caller.recv(10) == word


def connected(cluster: PacketWorld, service: Service) -> socket.socket | None:
    with inside(cluster.pod_namespace("red-a")):
        caller = socket.socket()
    caller.settimeout(0.5)
    try:
        caller.connect((service.spec.cluster_ip, 80))
    except OSError:
        caller.close()
        return None
    return caller


def refuses(cluster: PacketWorld, service: Service) -> bool:
    try:
        call(cluster.pod_namespace("red-a"), service.spec.cluster_ip, 80, seconds=0.5)
    except ConnectionRefusedError:
        return True
    except TimeoutError:
        pass
    return False


def test_trace_follows_a_service_connection_to_an_endpoint(serving: PacketWorld, everyone: Service) -> None:
    def trace(source: str) -> list[str]:
        return podlane_network(serving.lab.kubeconfig, "trace", source, "red/everyone").splitlines()

    wait_for_answer(serving.pod_namespace("red-b"), everyone.spec.cluster_ip, 80)
    reported = trace("red/red-b")
    assert reported[0].startswith("red/everyone 80/TCP on node-1: red/red-a (")
    assert reported[-1] == "delivered: red/red-b reaches red/red-a on node-1, an endpoint of the service red/everyone"
    theirs, ours = serving.vnid("blue"), serving.vnid("red")
    refused = f"dropped because blue (VNID {theirs}) may not connect to the service red/everyone (VNID {ours})"
    assert trace("blue/blue-b")[-1] == refused


def installed_flows_and_groups(cluster: PacketWorld, node: str) -> list[str]:
    """Return all flows and groups of a node's bridge, without the flows that it has learned from clients."""
    socket_path = str(cluster.nodes[node].ovs / "br0.mgmt")
    groups = run("ovs-ofctl", "-O", "OpenFlow14", "dump-groups", socket_path).splitlines()[1:]
    learned = tuple(f" table={table}, " for table in BRIDGE_LAYOUT.learned_tables)
    flows = (flow for flow in cluster.flows(node) if not any(table in f" {flow}" for table in learned))
    return [*flows, *sorted(groups)]


def restart(cluster: PacketWorld, node: str) -> None:
    """Restart the daemon, and wait until it has its services."""
    output = cluster.log(node).count("services changed")
    cluster.kill(f"{node} sdn")
    cluster.start(f"{node} sdn")
    wait_until(lambda: cluster.log(node).count("services changed") > output, "services")


@contextlib.contextmanager
def calling(cluster: PacketWorld, caller: str, service: Service) -> Iterator[list[str]]:
    """Make calls in sequence during the block. The yielded list has a line for each call without an answer."""
    failed: list[str] = []
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            try:
                call(cluster.pod_namespace(caller), service.spec.cluster_ip, 80)
            except OSError as error:
                failed.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield failed
    finally:
        ended.set()
        thread.join()


def test_killed_daemon_loses_no_connection_and_restores_the_same_flows(serving: PacketWorld, everyone: Service) -> None:
    wait_for_answer(serving.pod_namespace("red-a"), everyone.spec.cluster_ip, 80)
    before = installed_flows_and_groups(serving, "node-1")
    assert any("group:" in line for line in before)
    with calling(serving, "red-a", everyone) as failed:
        for _ in range(2):
            restart(serving, "node-1")
    assert not failed
    assert installed_flows_and_groups(serving, "node-1") == before


@pytest.mark.parametrize("words", [("del-flows", "cookie=0x500000000/0xff00000000"), ("del-groups",)])
def test_deleted_service_flows_and_groups_are_restored(
    serving: PacketWorld, everyone: Service, words: tuple[str, ...]
) -> None:
    wait_for_answer(serving.pod_namespace("red-a"), everyone.spec.cluster_ip, 80)
    before = installed_flows_and_groups(serving, "node-1")
    command, *rest = words
    run("ovs-ofctl", "-O", "OpenFlow14", command, str(serving.nodes["node-1"].ovs / "br0.mgmt"), *rest)
    wait_until(lambda: installed_flows_and_groups(serving, "node-1") == before, "the flows as they were")
    assert wait_for_answer(serving.pod_namespace("red-a"), everyone.spec.cluster_ip, 80)[0].startswith("red-")
