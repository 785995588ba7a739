from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from api.endpoints import EndpointSlice
from api.objects import Condition, ContainerPort, Pod, PodStatus
from api.services import Service
from api.validate import check, decode, default, immutable
from master.admission.service_addresses import assigned
from master.controllers.network import endpoints
from master.kinds.service import SERVICE
from master.wire.answers import Failure
from master.writing.outcomes import Change, Drop, Make
from master.writing.patch import merge
from tests.unit.master.make import meta, pod

NETWORK = IPv4Network("172.30.0.0/29")


def service(name: str = "web", **spec: Any) -> Service:
    document = {"metadata": {"name": name, "namespace": "red"}, "spec": {"ports": [{"port": 80}], **spec}}
    item, problems, _ = decode(Service, document)
    assert item is not None, problems
    return default(item)


# --- addresses --------------------------------------------------------------------------------------------------------


def test_addresses_come_in_sequence_and_a_freed_one_rests() -> None:
    first = assigned(service("a"), [], NETWORK, 0, 0)
    second = assigned(service("b"), [first.service], NETWORK, first.address_cursor, 0)
    third = assigned(service("c"), [second.service], NETWORK, second.address_cursor, 0)
    found = [one.service.spec.cluster_ip for one in (first, second, third)]
    assert found == ["172.30.0.1", "172.30.0.2", "172.30.0.3"]
    assert third.service.spec.cluster_ips == ("172.30.0.3",)


def test_there_are_no_more_addresses_than_the_network_has() -> None:
    others: list[Service] = []
    cursor = 0
    for number in range(6):
        done = assigned(service(f"s{number}"), others, NETWORK, cursor, 0)
        others, cursor = [*others, done.service], done.address_cursor
    assert len({one.spec.cluster_ip for one in others}) == 6
    with pytest.raises(Failure, match="no free address left"):
        assigned(service("more"), others, NETWORK, cursor, 0)


WISHES = [
    ({"clusterIP": "172.30.0.5"}, "172.30.0.5"),
    ({"clusterIP": "None"}, "None"),
    ({"type": "ExternalName", "externalName": "example.org", "ports": []}, ""),
]


@pytest.mark.parametrize(("spec", "address"), WISHES, ids=str)
def test_a_service_may_wish_for_an_address_or_for_none(spec: dict[str, Any], address: str) -> None:
    assert assigned(service(**spec), [], NETWORK, 0, 0).service.spec.cluster_ip == address


@pytest.mark.parametrize("address", ["172.30.0.0", "172.30.0.7", "10.0.0.1", "172.30.0.1"])
def test_an_address_that_cannot_be_had_is_refused(address: str) -> None:
    taken = assigned(service("a"), [], NETWORK, 0, 0).service
    with pytest.raises(Failure, match="failed to allocate IP"):
        assigned(service(clusterIP=address), [taken], NETWORK, 0, 0)


def test_node_ports_are_given_asked_for_and_given_back() -> None:
    given = assigned(service("a", type="NodePort"), [], NETWORK, 0, 0)
    assert [port.node_port for port in given.service.spec.ports] == [30000]
    wished = service("b", type="NodePort", ports=[{"port": 80, "nodePort": 30001}])
    asked = assigned(wished, [given.service], NETWORK, 1, given.port_cursor)
    assert asked.service.spec.ports[0].node_port == 30001
    both = [given.service, asked.service]
    for number in (30000, 29999):
        with pytest.raises(Failure, match="provided port is"):
            assigned(service("c", type="NodePort", ports=[{"port": 1, "nodePort": number}]), both, NETWORK, 2, 0)
    closed = replace(given.service, spec=replace(given.service.spec, type="ClusterIP"))
    assert assigned(closed, [], NETWORK, 0, 0).service.spec.ports[0].node_port == 0


def test_an_update_keeps_what_was_given() -> None:
    old = assigned(service(type="NodePort"), [], NETWORK, 0, 0).service
    new = SERVICE.on_update(service(type="NodePort", selector={"a": "b"}), old)
    assert (new.spec.cluster_ip, new.spec.ports[0].node_port) == ("172.30.0.1", 30000)
    assert not list(immutable(old, new))
    other = replace(new, spec=replace(new.spec, cluster_ip="172.30.0.2"))
    assert [problem.path for problem in immutable(old, other)] == ["spec.clusterIPs[0]"]


def after(old: Service, changes: dict[str, Any]) -> Service | list[str]:
    """What a merge patch of its spec makes of a service, or why it does not."""
    document = merge(msgspec.json.decode(msgspec.json.encode(old)), {"spec": changes})
    item, problems, _ = decode(Service, SERVICE.settled(document, old))
    if item is None:
        return [problem.path for problem in problems]
    new = SERVICE.on_update(default(item), old)
    return [problem.path for problem in immutable(old, new)] or assigned(new, [], NETWORK, 0, 5).service


FILLED = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "externalTrafficPolicy", "loadBalancerClass")
OTHER_NAME = {"type": "ExternalName", "externalName": "example.org"}
INSIDE = {"clusterIP": "172.30.0.1", "clusterIPs": ["172.30.0.1"], "ipFamilies": ["IPv4"]}
INSIDE["ipFamilyPolicy"] = "SingleStack"
OPEN = {**INSIDE, "externalTrafficPolicy": "Cluster"}
CHANGES = [
    ("NodePort", {"type": "ClusterIP"}, INSIDE, [0]),
    ("NodePort", {"type": None}, INSIDE, [0]),
    ("NodePort", {"type": "LoadBalancer"}, OPEN, [30000]),
    ("NodePort", {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": False}, OPEN, [0]),
    ("NodePort", OTHER_NAME, {}, [0]),
    ("LoadBalancer", {"type": "ClusterIP"}, INSIDE, [0]),
    ("ClusterIP", OTHER_NAME, {}, [0]),
    ("ClusterIP", {"type": "NodePort"}, OPEN, [30005]),
    ("ClusterIP", {"clusterIP": None}, INSIDE, [0]),
    ("ClusterIP", {"clusterIP": ""}, INSIDE, [0]),
    ("ClusterIP", {"clusterIP": None, "clusterIPs": None}, INSIDE, [0]),
]


@pytest.mark.parametrize(("kind", "changes", "filled", "node_ports"), CHANGES, ids=str)
def test_a_service_may_change_its_type(
    kind: str, changes: dict[str, Any], filled: dict[str, Any], node_ports: list[int]
) -> None:
    new = after(assigned(service(type=kind), [], NETWORK, 0, 0).service, changes)
    assert isinstance(new, Service), new
    found = msgspec.json.decode(msgspec.json.encode(new.spec))
    assert {name: found[name] for name in FILLED if name in found} == filled
    assert [port.node_port for port in new.spec.ports] == node_ports


REFUSED_CHANGES = [
    ("ClusterIP", {"clusterIP": "172.30.0.3"}, ["spec.clusterIPs[0]"]),
    ("ClusterIP", {"clusterIP": "None"}, ["spec.clusterIPs[0]"]),
    ("ClusterIP", {**OTHER_NAME, "clusterIP": "172.30.0.3"}, ["spec.clusterIP"]),
    ("NodePort", {"type": "ClusterIP", "ports": [{"port": 80, "nodePort": 30007}]}, ["spec.ports[0].nodePort"]),
    ("ClusterIP", {"ports": [{"port": 80, "nodePort": 30007}]}, ["spec.ports[0].nodePort"]),
]


@pytest.mark.parametrize(("kind", "changes", "paths"), REFUSED_CHANGES, ids=str)
def test_a_change_that_the_client_wants_and_cannot_have_is_refused(
    kind: str, changes: dict[str, Any], paths: list[str]
) -> None:
    assert after(assigned(service(type=kind), [], NETWORK, 0, 0).service, changes) == paths


WRONG = [
    ({"ports": []}, ["spec.ports"]),
    ({"ports": [{"port": 0}]}, ["spec.ports[0].port"]),
    ({"ports": [{"port": 1}, {"port": 2}]}, ["spec.ports[0].name", "spec.ports[1].name"]),
    ({"ports": [{"port": 1, "targetPort": "Not_A_Name"}]}, ["spec.ports[0].targetPort"]),
    ({"ports": [{"port": 1, "nodePort": 30000}]}, ["spec.ports[0].nodePort"]),
    ({"clusterIP": "::1"}, ["spec.clusterIP"]),
    ({"clusterIP": "127.0.0.1"}, ["spec.clusterIP"]),
    ({"type": "Sometimes"}, ["spec.type"]),
    ({"type": "ExternalName"}, ["spec.externalName"]),
    ({"type": "NodePort", "clusterIP": "None"}, ["spec.clusterIP"]),
    ({"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}}}, ["spec.sessionAffinityConfig"]),
    (
        {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 90000}}},
        ["spec.sessionAffinityConfig.clientIP.timeoutSeconds"],
    ),
    ({"externalIPs": ["169.254.1.1"]}, ["spec.externalIPs[0]"]),
]


@pytest.mark.parametrize(("spec", "paths"), WRONG, ids=str)
def test_what_is_wrong_is_told_by_its_path(spec: dict[str, Any], paths: list[str]) -> None:
    document = {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}], **spec}}
    _, problems, _ = decode(Service, document)
    assert [problem.path for problem in problems] == paths


# --- endpoints --------------------------------------------------------------------------------------------------------


def backend(number: int, ready: bool = True, port: int = 8080, **metadata: Any) -> Pod:
    made = pod(f"p{number}", node="node-1")
    container = replace(made.spec.containers[0], ports=(ContainerPort(container_port=port, name="http"),))
    row = Condition(type="Ready", status=str(ready))
    return replace(
        made,
        metadata=replace(made.metadata, labels={"app": "web"}, **metadata),
        spec=replace(made.spec, containers=(container,)),
        status=PodStatus(phase="Running", pod_ip=f"10.128.0.{number}", conditions=(row,)),
    )


def of(chosen: Service, pods: list[Pod], slices: list[EndpointSlice] | None = None) -> list[Any]:
    chosen = replace(chosen, metadata=meta("web", namespace="red"))
    return list(endpoints.passes([chosen], pods, [], slices or []))


def made_slices(writes: list[Any]) -> list[EndpointSlice]:
    return [write.item for write in writes if isinstance(write, Make) and isinstance(write.item, EndpointSlice)]


def test_ready_pods_are_behind_a_service_and_others_wait() -> None:
    web = service(selector={"app": "web"}, ports=[{"port": 80, "targetPort": "http"}])
    writes = of(web, [backend(1), backend(2, ready=False), pod("other")])
    (subset,) = writes[0].item.subsets
    assert [row.ip for row in subset.addresses] == ["10.128.0.1"]
    assert [row.ip for row in subset.not_ready_addresses] == ["10.128.0.2"]
    assert [port.port for port in subset.ports] == [8080]
    (piece,) = made_slices(writes)
    assert [(row.addresses[0], row.conditions.ready) for row in piece.endpoints] == [
        ("10.128.0.1", True),
        ("10.128.0.2", False),
    ]
    for item in (writes[0].item, replace(piece, metadata=replace(piece.metadata, name="web-x"))):
        assert not list(check(item))


def test_a_port_of_a_slice_says_its_name_even_if_it_has_none() -> None:
    """Service proxies leave out one that does not."""
    (piece,) = made_slices(of(service(selector={"app": "web"}), [backend(1)]))
    assert msgspec.json.decode(msgspec.json.encode(piece))["ports"] == [{"port": 80, "name": "", "protocol": "TCP"}]
    document = {"metadata": {"name": "s", "namespace": "red"}, "addressType": "IPv4", "ports": [{"port": 80}]}
    item, problems, _ = decode(EndpointSlice, document)
    assert not problems
    assert item is not None
    assert default(item).ports == piece.ports


def test_a_service_with_nothing_behind_it_has_one_empty_slice() -> None:
    web = service(selector={"app": "web"})
    (empty,) = made_slices(of(web, []))
    assert (empty.ports, empty.endpoints, empty.address_type) == ((), (), "IPv4")
    known = replace(empty, metadata=replace(empty.metadata, name="web-1"))
    another = replace(empty, metadata=replace(empty.metadata, name="web-2"))
    assert [type(write) for write in of(web, [], [known, another])] == [Make, Drop]
    writes = of(web, [backend(1)], [known])
    assert [write.item.metadata.name for write in writes if isinstance(write, Drop)] == ["web-1"]
    assert len(made_slices(writes)) == 1


def test_pods_that_have_the_port_at_another_number_are_told_apart() -> None:
    web = service(selector={"app": "web"}, ports=[{"port": 80, "targetPort": "http"}])
    writes = of(web, [backend(1), backend(2, port=9090)])
    assert [[port.port for port in subset.ports] for subset in writes[0].item.subsets] == [[8080], [9090]]
    assert len(made_slices(writes)) == 2


def test_a_pod_that_is_about_to_end_still_serves_who_is_there() -> None:
    web = service(selector={"app": "web"})
    (piece,) = made_slices(of(web, [backend(1, deletion_timestamp="2026-01-01T00:00:30Z")]))
    conditions = piece.endpoints[0].conditions
    assert (conditions.ready, conditions.serving, conditions.terminating) == (False, True, True)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "169.254.169.254", "::ffff:127.0.0.1", "localhost"])
def test_a_pod_at_no_address_of_its_own_is_behind_no_service(address: str) -> None:
    pod = backend(1)
    lies = replace(pod, status=replace(pod.status, pod_ip=address))
    wanted = service()
    assert [len(rows) for rows in endpoints.backends(wanted, [pod]).values()] == [1]
    assert endpoints.backends(wanted, [lies]) == {}


def test_a_service_may_publish_pods_that_are_not_ready() -> None:
    web = service(selector={"app": "web"}, publishNotReadyAddresses=True)
    assert len(of(web, [backend(1, ready=False)])[0].item.subsets[0].addresses) == 1


def test_a_slice_holds_a_hundred_and_its_endpoints_stay_where_they_are() -> None:
    web = service(selector={"app": "web"})
    pods = [backend(number) for number in range(100, 250)]
    first = made_slices(of(web, pods))
    assert [len(piece.endpoints) for piece in first] == [100, 50]
    known = [replace(piece, metadata=replace(piece.metadata, name=f"web-{n}")) for n, piece in enumerate(first)]
    changes = [write for write in of(web, pods[1:], known) if isinstance(write, Change)]
    assert [change.before for change in changes] == [known[0]]
    gone = [write for write in of(web, pods[:100], known) if isinstance(write, Drop)]
    assert [drop.item for drop in gone] == [known[1]]


def test_a_service_without_selector_keeps_what_people_made() -> None:
    assert of(service(), [backend(1)]) == []
