"""What a node serves of services, endpoints and pods: policies, readiness, lanes; and that it is kept up."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.endpoints import SERVICE_LABEL, Endpoint, EndpointConditions, EndpointSlice, SlicePort
from api.core.services import (
    ClientIPConfig,
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceSpec,
    ServiceStatus,
    SessionAffinityConfig,
)
from api.meta.types import ObjectMeta
from api.network.queries import ServicesRequest
from api.network.types import PodAddress
from sdn.drivers.openflow.messages import GroupCommand, bundle_add, group_mod
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortInfo, ServicePortName
from sdn.pipeline.service import service_port_flows
from sdn.proxy.service_map import ServiceMap
from sdn.proxy.service_ports import MAX_ENDPOINTS, ProxyConfig, ServiceIndex, ServiceState, parse_ipv4, service_ports
from sdn.query.reports import services_report
from sdn.topology import Node

VANTAGE = ProxyConfig(
    node="node-1",
    address=IPv4Address("10.245.2.3"),
    subnet=IPv4Network("10.128.0.0/23"),
    networks=(IPv4Network("10.128.0.0/14"),),
    service_network=IPv4Network("172.30.0.0/16"),
    lanes={"default": 0, "red": 10, "blue": 11, "pink": 10},
    nodes=frozenset((IPv4Address("10.245.2.3"), IPv4Address("10.245.2.4"))),
    node_ports=(30000, 32767),
)
NODE = Node(VANTAGE.node, VANTAGE.address, VANTAGE.subnet)
HERE, THERE, MORE = "10.128.0.5", "10.128.2.5", "10.128.2.6"
READY = EndpointConditions(ready=True, serving=True, terminating=False)
LEAVING = EndpointConditions(ready=False, serving=True, terminating=True)
ENDED = EndpointConditions(ready=False, serving=False, terminating=True)
WAITING = EndpointConditions(ready=False, serving=False)


def backend(address: str, port: int = 8080) -> EndpointInfo:
    return EndpointInfo(IPv4Address(address), port, IPv4Address(address) in VANTAGE.subnet)


def service(name: str = "web", namespace: str = "red", made: str = "2026-01-01T00:00:00Z", **spec: object) -> Service:
    wish = {"type": "ClusterIP", "cluster_ip": "172.30.0.7", "ports": (ServicePort(port=80, protocol="TCP"),), **spec}
    meta = ObjectMeta(name=name, namespace=namespace, uid=name, creation_timestamp=made)
    return Service(metadata=meta, spec=ServiceSpec(**wish))  # type: ignore[arg-type]


def endpoint(address: str, conditions: EndpointConditions = READY, node: str | None = None) -> Endpoint:
    return Endpoint(addresses=(address,), conditions=conditions, node_name=node)


def slice_of(
    owner: str,
    *rows: Endpoint,
    namespace: str = "red",
    name: str = "",
    ports: tuple[SlicePort, ...] = (SlicePort(port=8080, name="", protocol="TCP"),),
    family: str = "IPv4",
) -> EndpointSlice:
    meta = ObjectMeta(name=name or f"{owner}-1", namespace=namespace, labels={SERVICE_LABEL: owner})
    return EndpointSlice(metadata=meta, address_type=family, endpoints=rows, ports=ports)


def pod(address: str, namespace: str = "red", phase: str = "Running", host_network: bool = False) -> PodAddress:
    meta = ObjectMeta(name=f"pod-{address}", namespace=namespace)
    return PodAddress(metadata=meta, phase=phase, ip=address, host_network=host_network)


PODS = tuple(pod(address) for address in (HERE, THERE, MORE))


def fill(
    catalogue: ServiceMap,
    services: Iterable[Service] = (),
    slices: Iterable[EndpointSlice] = (),
    pods: Iterable[PodAddress] = PODS,
) -> ServiceMap:
    for one in pods:
        catalogue.set_pod((one.metadata.namespace, one.metadata.name), one)
    for item in slices:
        catalogue.set_slice((item.metadata.namespace, item.metadata.name), item)
    for wish in services:
        catalogue.set_service((wish.metadata.namespace, wish.metadata.name), wish)
    return catalogue


def made(
    wish: Service, *slices: EndpointSlice, vantage: ProxyConfig = VANTAGE, pods: Iterable[PodAddress] = PODS
) -> ServiceMap:
    catalogue = fill(ServiceMap(), (wish,), slices, pods)
    catalogue.set_vantage(vantage)
    catalogue.settle()
    return catalogue


def only(catalogue: ServiceMap) -> ServicePortInfo:
    (port,) = catalogue.ports.values()
    return port


def left_out(catalogue: ServiceMap, name: str = "web", namespace: str = "red") -> list[str]:
    return [str(one) for one in catalogue.served[namespace, name].left_out]


def test_one_port_with_its_endpoints() -> None:
    port = only(made(service(), slice_of("web", endpoint(THERE), endpoint(HERE))))
    both = (backend(HERE), backend(THERE))
    assert port == ServicePortInfo(
        key=ServicePortName("red", "web", "", Protocol.TCP),
        vnid=10,
        cluster_ip=IPv4Address("172.30.0.7"),
        port=80,
        internal_endpoints=both,
        cluster_endpoints=both,
        external_endpoints=both,
        draining_ports=frozenset({80}),
    )
    assert [one.is_local for one in port.internal_endpoints] == [True, False]


def test_node_ports_external_and_ingress_addresses_and_affinity() -> None:
    wish = service(
        type="LoadBalancer",
        ports=(ServicePort(port=80, protocol="TCP", node_port=30080),),
        external_ips=("192.0.2.9",),
        session_affinity="ClientIP",
        session_affinity_config=SessionAffinityConfig(client_ip=ClientIPConfig(timeout_seconds=30)),
        external_traffic_policy="Local",
        health_check_node_port=31000,
    )
    ingress = LoadBalancerStatus(ingress=(LoadBalancerIngress(ip="172.29.0.1"),))
    catalogue = made(
        replace(wish, status=ServiceStatus(load_balancer=ingress)), slice_of("web", endpoint(HERE), endpoint(THERE))
    )
    port = only(catalogue)
    assert port.node_port == 30080
    assert port.external_ips == (IPv4Address("172.29.0.1"), IPv4Address("192.0.2.9"))
    assert (port.affinity_timeout_seconds, port.external_policy_local) == (30, True)
    assert port.external_endpoints == (backend(HERE),)
    assert port.cluster_endpoints == port.internal_endpoints == (backend(HERE), backend(THERE))
    assert (catalogue.served["red", "web"].health_port, catalogue.served["red", "web"].here) == (31000, 1)


def test_local_for_callers_inside() -> None:
    port = only(made(service(internal_traffic_policy="Local"), slice_of("web", endpoint(HERE), endpoint(THERE))))
    assert (port.internal_endpoints, port.external_endpoints) == ((backend(HERE),), (backend(HERE), backend(THERE)))


def test_affinity_without_a_time_lasts_three_hours() -> None:
    assert only(made(service(session_affinity="ClientIP"))).affinity_timeout_seconds == 10800


@pytest.mark.parametrize(
    "wish",
    [service(cluster_ip="None"), service(type="ExternalName", cluster_ip=""), service(cluster_ip="")],
)
def test_names_only_are_not_served(wish: Service) -> None:
    assert not made(wish, slice_of("web", endpoint(HERE))).ports


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        ((endpoint(HERE), endpoint(THERE, LEAVING)), [HERE]),
        ((endpoint(HERE, WAITING), endpoint(THERE, LEAVING)), [THERE]),
        ((endpoint(HERE, WAITING), endpoint(THERE, ENDED)), []),
        ((endpoint(HERE, EndpointConditions()),), [HERE]),
        ((endpoint(HERE, EndpointConditions(ready=True, terminating=True)), endpoint(THERE)), [HERE, THERE]),
    ],
)
def test_readiness(rows: tuple[Endpoint, ...], chosen: list[str]) -> None:
    assert [str(one.address) for one in only(made(service(), slice_of("web", *rows))).internal_endpoints] == chosen


def test_ports_are_told_apart_by_name_and_protocol() -> None:
    wish = service(
        ports=(
            ServicePort(port=53, name="dns", protocol="UDP"),
            ServicePort(port=53, name="dns-tcp", protocol="TCP"),
            ServicePort(port=9, name="none", protocol="TCP"),
        )
    )
    ports = (SlicePort(port=1053, name="dns", protocol="UDP"), SlicePort(port=2053, name="dns-tcp", protocol="TCP"))
    served = made(wish, slice_of("web", endpoint(HERE), ports=ports)).ports
    found = {key.port_name: [one.port for one in port.internal_endpoints] for key, port in served.items()}
    assert found == {"dns": [1053], "dns-tcp": [2053], "none": []}


def test_an_endpoint_in_two_slices_counts_once_and_as_ready_as_anywhere() -> None:
    slices = (slice_of("web", endpoint(HERE, WAITING)), slice_of("web", endpoint(HERE), name="web-2"))
    assert only(made(service(), *slices)).internal_endpoints == (backend(HERE),)


def test_a_port_has_as_many_endpoints_as_the_switch_takes_at_once() -> None:
    """One message makes a group, and has 65,535 bytes."""
    rows = [endpoint(f"198.18.{number // 250}.{number % 250}") for number in range(MAX_ENDPOINTS + 1)]
    slices = [slice_of("web", *rows[:900], name="one"), slice_of("web", *rows[900:], name="other")]
    catalogue = made(service(), *slices)
    port = only(catalogue)
    assert [str(one.address) for one in port.cluster_endpoints] == [row.addresses[0] for row in rows[:-1]]
    [left_out] = catalogue.left_out["red", "web"]
    assert str(left_out) == "every endpoint behind the first 1000 of port 80/TCP is one too many"
    [group] = service_port_flows(port, NODE, by_proxy=False, inside=1, everywhere=1).groups
    bundled = bundle_add(1, group_mod(GroupCommand.PUT, group, 1), 1)
    assert len(bundled) == int.from_bytes(bundled[2:4])


def test_other_families_and_slices_of_others_do_not_count() -> None:
    others = (slice_of("other", endpoint(HERE)), slice_of("web", endpoint(HERE), namespace="blue", name="x"))
    v6 = slice_of("web", endpoint("2001:db8::1"), family="IPv6", name="six")
    assert only(made(service(), *others, v6)).internal_endpoints == ()


@pytest.mark.parametrize(
    ("address", "port", "why"),
    [
        ("172.30.0.1", 443, "is an address of services"),
        ("10.128.3.200", 80, "no pod that lives has it"),
        ("10.128.0.1", 53, "no pod that lives has it"),
        ("10.128.2.8", 80, "is a pod of the project blue, which is not joined with red"),
        ("10.128.2.9", 80, "is a pod of the project default, which is not joined with red"),
        ("10.128.2.10", 80, "no pod that lives has it"),
        ("10.128.2.11", 80, "no pod that lives has it"),
        ("192.0.2.1", 80, "is an address of services"),
        ("10.245.2.4", 30080, "is a node port"),
    ],
)
def test_an_endpoint_that_is_not_the_services_own_is_left_out(address: str, port: int, why: str) -> None:
    pods = (
        *PODS,
        pod("10.128.2.8", "blue"),
        pod("10.128.2.9", "default"),
        pod("10.128.2.10", phase="Failed"),
        pod("10.128.2.11", host_network=True),
    )
    ports = (SlicePort(port=port, name="", protocol="TCP"),)
    catalogue = made(service(), slice_of("web", endpoint(address), endpoint(HERE), ports=ports), pods=pods)
    other = service("other", "blue", cluster_ip="172.30.0.8", external_ips=("192.0.2.1",))
    fill(catalogue, (other,), pods=()).settle()
    served = catalogue.served["red", "web"].ports[ServicePortName("red", "web", "", Protocol.TCP)]
    assert [str(one.address) for one in served.internal_endpoints] == [HERE]
    (sentence,) = left_out(catalogue)
    assert sentence.startswith(f"endpoint {address}:{port} ")
    assert why in sentence


@pytest.mark.parametrize(
    ("text", "address"),
    [("192.0.2.1", "192.0.2.1"), ("0.0.0.0", "0.0.0.0"), ("192.0.2.256", ""), ("192.0.2.01", ""), ("192.0.2", "")]
    + [(text, "") for text in ("", "192.0.2.1 ", "192.0.2.+1", "192.0.2.1_0", "192.0.2.\u0661", "a.b.c.d", "::1")],
)
def test_addresses_are_what_the_library_takes_for_one(text: str, address: str) -> None:
    assert str(parse_ipv4(text) or "") == address


@pytest.mark.parametrize("address", ["10.128.2.7", "10.245.2.4", "198.51.100.7"])
def test_pods_of_joined_projects_nodes_and_hosts_elsewhere_may_be_endpoints(address: str) -> None:
    catalogue = made(service(), slice_of("web", endpoint(address)), pods=(pod("10.128.2.7", "pink"),))
    assert [str(one.address) for one in only(catalogue).internal_endpoints] == [address]
    assert not left_out(catalogue)


def test_on_the_flat_network_pods_of_every_project_may_be_endpoints() -> None:
    flat = made(
        service(),
        slice_of("web", endpoint("10.128.2.8"), endpoint("10.128.3.200")),
        vantage=_replaced(lanes=None),
        pods=(pod("10.128.2.8", "blue"),),
    )
    assert [str(one.address) for one in only(flat).internal_endpoints] == ["10.128.2.8"]
    assert only(flat).vnid == 0
    assert len(left_out(flat)) == 1


def _replaced(**changes: object) -> ProxyConfig:
    return dataclasses.replace(VANTAGE, **changes)  # type: ignore[arg-type]


def test_a_project_without_a_lane_is_not_served() -> None:
    catalogue = made(service(namespace="new"), slice_of("web", endpoint(HERE), namespace="new"))
    assert not catalogue.ports
    assert left_out(catalogue, namespace="new") == ["the service has no lane: there is no NetNamespace new"]


@pytest.mark.parametrize("label", ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"])
def test_what_a_label_leaves_to_others_is_not_served_until_the_label_goes(label: str) -> None:
    wish = service()
    marked = replace(wish, metadata=replace(wish.metadata, labels={label: "other"}))
    catalogue = made(marked, slice_of("web", endpoint(HERE)))
    assert not catalogue.ports
    catalogue.set_service(("red", "web"), wish)
    assert len(catalogue.settle().added) == 1
    catalogue.set_service(("red", "web"), marked)
    assert len(catalogue.settle().removed) == 1


def test_the_oldest_service_has_a_front_until_it_goes() -> None:
    first = service("a", external_ips=("192.0.2.1",), made="2026-01-01T00:00:00Z")
    second = service("b", "blue", cluster_ip="172.30.0.8", external_ips=("192.0.2.1",), made="2026-01-02T00:00:00Z")
    catalogue = fill(ServiceMap(), (second, first))
    catalogue.set_vantage(VANTAGE)
    catalogue.settle()
    by_name = {key.service: port.external_ips for key, port in catalogue.ports.items()}
    assert by_name == {"a": (IPv4Address("192.0.2.1"),), "b": ()}
    assert left_out(catalogue, "b", "blue") == ["192.0.2.1:80/TCP belongs to a service that was there before"]
    catalogue.set_service(("red", "a"), None)
    change = catalogue.settle()
    assert {port.key.service for port in change.removed} == {"a", "b"}
    assert [port.external_ips for port in change.added] == [(IPv4Address("192.0.2.1"),)]


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (THERE, "is in the cluster network"),
        ("172.30.0.8", "is in the service network 172.30.0.0/16"),
        ("10.245.2.4", "is the address of a node"),
    ],
)
def test_nobody_takes_what_is_anothers_as_an_external_address(address: str, why: str) -> None:
    """Another API server may accept anything, and the thief may be the older one."""
    thief = service("thief", "blue", cluster_ip="172.30.0.9", external_ips=(address,), made="2025-01-01T00:00:00Z")
    web = service(cluster_ip="172.30.0.8")
    catalogue = fill(ServiceMap(), (thief, web), (slice_of("web", endpoint(THERE), endpoint("10.245.2.4")),))
    catalogue.set_vantage(VANTAGE)
    catalogue.settle()
    ports = {key.service: port for key, port in catalogue.ports.items()}
    assert left_out(catalogue, "thief", "blue") == [f"external address {address} {why}"]
    assert ports["thief"].external_ips == ()
    assert ports["web"].cluster_ip == IPv4Address("172.30.0.8")
    assert {str(one.address) for one in ports["web"].internal_endpoints} == {THERE, "10.245.2.4"}


def test_a_change_tells_only_what_is_other() -> None:
    catalogue = made(service(), slice_of("web", endpoint(HERE)))
    fill(catalogue, (service("quiet", cluster_ip="172.30.0.9"),), pods=()).settle()
    fill(catalogue, slices=(slice_of("web", endpoint(HERE), endpoint(THERE)),), pods=())
    change = catalogue.settle()
    assert [len(port.internal_endpoints) for port in (*change.removed, *change.added)] == [1, 2]
    assert not catalogue.settle()
    fill(catalogue, slices=(slice_of("web", endpoint(HERE), endpoint(THERE)),), pods=())
    assert not catalogue.settle()


def test_a_pod_that_comes_goes_or_is_anothers_changes_its_services() -> None:
    catalogue = made(service(), slice_of("web", endpoint(THERE)), pods=())
    assert only(catalogue).internal_endpoints == ()
    fill(catalogue, pods=(pod(THERE),)).settle()
    assert only(catalogue).internal_endpoints == (backend(THERE),)
    catalogue.set_pod(("red", f"pod-{THERE}"), None)
    fill(catalogue, pods=(pod(THERE, "blue"),)).settle()
    assert only(catalogue).internal_endpoints == ()
    catalogue.set_vantage(_replaced(lanes={"red": 10, "blue": 10}))
    catalogue.settle()
    assert only(catalogue).internal_endpoints == (backend(THERE),)


SERVICES = tuple(
    service(name, namespace, cluster_ip=cluster_ip, external_ips=outside, made=f"2026-01-0{day}T00:00:00Z")
    for name, namespace, cluster_ip, outside, day in (
        ("a", "red", "172.30.0.1", ("192.0.2.1",), 1),
        ("a", "red", "172.30.0.1", (), 1),
        ("b", "red", "172.30.0.2", ("192.0.2.1", "192.0.2.2"), 2),
        ("b", "blue", "172.30.0.3", ("192.0.2.1",), 1),
    )
)
ADDRESSES = (HERE, THERE, "192.0.2.1", "192.0.2.2", "172.30.0.1", "198.51.100.1")
STEPS = st.one_of(
    st.tuples(st.just("service"), st.sampled_from(SERVICES), st.booleans()),
    st.tuples(
        st.just("slice"),
        st.builds(
            slice_of,
            st.sampled_from(("a", "b")),
            st.builds(endpoint, st.sampled_from(ADDRESSES), st.sampled_from((READY, LEAVING, WAITING))),
            namespace=st.sampled_from(("red", "blue")),
            name=st.sampled_from(("s", "t")),
        ),
        st.booleans(),
    ),
    st.tuples(
        st.just("pod"), st.builds(pod, st.sampled_from((HERE, THERE)), st.sampled_from(("red", "blue"))), st.booleans()
    ),
    st.tuples(
        st.just("vantage"),
        st.builds(
            dataclasses.replace,
            st.just(VANTAGE),
            lanes=st.sampled_from((None, {}, {"red": 10}, {"red": 10, "blue": 11}, {"red": 12, "blue": 12})),
            nodes=st.frozensets(st.sampled_from([IPv4Address(text) for text in ADDRESSES])),
            node_ports=st.sampled_from(((30000, 32767), (8000, 8100))),
        ),
        st.booleans(),
    ),
)


@given(st.lists(st.tuples(STEPS, st.booleans()), max_size=25))
def test_change_by_change_it_is_as_if_made_anew(steps: list[tuple[tuple[str, object, bool], bool]]) -> None:
    kept, held = ServiceMap(), {"service": {}, "slice": {}, "pod": {}}  # type: ignore[var-annotated]
    vantage = VANTAGE
    kept.set_vantage(vantage)
    ports: dict[ServicePortName, ServicePortInfo] = {}
    for (kind, item, stays), settles in steps:
        if isinstance(item, ProxyConfig):
            vantage = item
            kept.set_vantage(vantage)
            continue
        key = (item.metadata.namespace, item.metadata.name)  # type: ignore[attr-defined]
        value = item if stays else None
        getattr(kept, f"set_{kind}")(key, value)
        held[kind].pop(key, None)
        if value is not None:
            held[kind][key] = value
        if settles:
            _follow(ports, kept)
    _follow(ports, kept)
    anew = fill(ServiceMap(), held["service"].values(), held["slice"].values(), held["pod"].values())
    anew.set_vantage(vantage)
    anew.settle()
    assert ports == dict(kept.ports) == dict(anew.ports)
    assert dict(kept.served) == dict(anew.served)


def test_a_new_node_and_a_new_project_concern_only_their_own_services(monkeypatch: pytest.MonkeyPatch) -> None:
    services = (
        service("plain", cluster_ip="172.30.0.1"),
        service("elsewhere", cluster_ip="172.30.0.2"),
        service("outside", cluster_ip="172.30.0.3", external_ips=("192.0.2.9",)),
        service("blue", "blue", cluster_ip="172.30.0.4"),
    )
    catalogue = fill(ServiceMap(), services, (slice_of("elsewhere", endpoint("198.51.100.7")),))
    catalogue.set_vantage(VANTAGE)
    catalogue.settle()
    computed: list[str] = []

    def counted(one: Service, slices: Iterable[EndpointSlice], around: ServiceIndex) -> ServiceState:
        computed.append(one.metadata.name)
        return service_ports(one, slices, around)

    monkeypatch.setattr("sdn.proxy.service_map.service_ports", counted)

    def settle(**change: object) -> list[str]:
        computed.clear()
        assert VANTAGE.lanes is not None
        catalogue.set_vantage(_replaced(**change))
        catalogue.settle()
        return sorted(computed)

    near = VANTAGE.nodes | {IPv4Address("10.245.2.77")}
    assert settle(nodes=near) == []
    assert settle(nodes=near | {IPv4Address("198.51.100.7")}) == ["elsewhere"]
    assert settle(nodes=near | {IPv4Address("192.0.2.9")}) == ["elsewhere", "outside"]
    assert settle(lanes={**(VANTAGE.lanes or {}), "green": 12}) == ["outside"]
    assert settle(lanes={**(VANTAGE.lanes or {}), "blue": 12}) == ["blue"]
    assert settle(node_ports=(20000, 20100)) == ["blue", "elsewhere", "outside", "plain"]


def _follow(ports: dict[ServicePortName, ServicePortInfo], catalogue: ServiceMap) -> None:
    """As a reader of changes does."""
    change = catalogue.settle()
    for port in change.removed:
        assert ports.pop(port.key) == port
    for port in change.added:
        assert port.key not in ports
        ports[port.key] = port


def test_what_is_told_of_it() -> None:
    wish = service(type="NodePort", ports=(ServicePort(port=80, name="http", protocol="TCP", node_port=30080),))
    other = service("other", "blue", cluster_ip="172.30.0.8")
    ports = (SlicePort(port=8080, name="http", protocol="TCP"),)
    catalogue = made(wish, slice_of("web", endpoint(HERE), endpoint("10.128.3.9"), ports=ports))
    fill(catalogue, (other,), pods=()).settle()
    told = services_report(ServicesRequest(namespace="red"), catalogue.served)
    (port,) = told.ports
    assert (port.service, port.port, port.name, port.vnid) == ("red/web", "80/TCP", "http", 10)
    assert port.frontends == ("172.30.0.7:80", "*:30080")
    assert port.internal_endpoints == port.cluster_endpoints == port.external_endpoints == (f"{HERE}:8080",)
    assert [one.subject for one in told.rejected] == ["endpoint 10.128.3.9:8080"]
    assert {one.service for one in services_report(ServicesRequest(), catalogue.served).ports} == {
        "red/web",
        "blue/other",
    }
    assert not services_report(ServicesRequest(namespace="red", name="other"), catalogue.served).ports
