"""The service map: single changes lead to the same map as a full read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.core.endpoints import EndpointSlice
from api.core.services import Service
from sdn.model.service_port import ServicePortInfo, ServicePortName
from sdn.proxy.service_map import ServiceMap
from sdn.proxy.service_ports import ProxyConfig, ServiceIndex, ServiceState, service_ports
from tests.unit.sdn.proxy.examples import (
    CONFIG,
    HERE,
    LEAVING,
    READY,
    THERE,
    WAITING,
    backend,
    config_with,
    endpoint,
    fill,
    only_port,
    pod,
    service,
    service_map_of,
    slice_of,
)


def test_service_map_reports_only_changed_ports() -> None:
    service_map = service_map_of(service(), slice_of("web", endpoint(HERE)))
    fill(service_map, (service("quiet", cluster_ip="172.30.0.9"),), pods=()).apply_changes()
    fill(service_map, slices=(slice_of("web", endpoint(HERE), endpoint(THERE)),), pods=())
    change = service_map.apply_changes()
    assert [len(port.internal_endpoints) for port in (*change.removed, *change.added)] == [1, 2]
    assert not service_map.apply_changes()
    fill(service_map, slices=(slice_of("web", endpoint(HERE), endpoint(THERE)),), pods=())
    assert not service_map.apply_changes()


def test_pod_change_updates_its_services() -> None:
    service_map = service_map_of(service(), slice_of("web", endpoint(THERE)), pods=())
    assert only_port(service_map).internal_endpoints == ()
    fill(service_map, pods=(pod(THERE),)).apply_changes()
    assert only_port(service_map).internal_endpoints == (backend(THERE),)
    service_map.set_pod(("red", f"pod-{THERE}"), None)
    fill(service_map, pods=(pod(THERE, "blue"),)).apply_changes()
    assert only_port(service_map).internal_endpoints == ()
    service_map.set_config(config_with(vnids={"red": 10, "blue": 10}))
    service_map.apply_changes()
    assert only_port(service_map).internal_endpoints == (backend(THERE),)


SERVICES = tuple(
    service(name, namespace, cluster_ip=cluster_ip, external_ips=outside, created=f"2026-01-0{day}T00:00:00Z")
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
        st.just("config"),
        st.builds(
            dataclasses.replace,
            st.just(CONFIG),
            vnids=st.sampled_from((None, {}, {"red": 10}, {"red": 10, "blue": 11}, {"red": 12, "blue": 12})),
            node_ips=st.frozensets(st.sampled_from([IPv4Address(text) for text in ADDRESSES])),
            node_port_range=st.sampled_from(((30000, 32767), (8000, 8100))),
        ),
        st.booleans(),
    ),
)


@given(st.lists(st.tuples(STEPS, st.booleans()), max_size=25))
def test_service_map_changes_lead_to_the_same_map_as_a_fresh_one(
    steps: list[tuple[tuple[str, object, bool], bool]],
) -> None:
    service_map, stored = ServiceMap(), {"service": {}, "slice": {}, "pod": {}}  # type: ignore[var-annotated]
    config = CONFIG
    service_map.set_config(config)
    ports: dict[ServicePortName, ServicePortInfo] = {}
    for (kind, obj, stays), settles in steps:
        if isinstance(obj, ProxyConfig):
            config = obj
            service_map.set_config(config)
            continue
        key = (obj.metadata.namespace, obj.metadata.name)  # type: ignore[attr-defined]
        value = obj if stays else None
        getattr(service_map, f"set_{kind}")(key, value)
        stored[kind].pop(key, None)
        if value is not None:
            stored[kind][key] = value
        if settles:
            _follow(ports, service_map)
    _follow(ports, service_map)
    anew = fill(ServiceMap(), stored["service"].values(), stored["slice"].values(), stored["pod"].values())
    anew.set_config(config)
    anew.apply_changes()
    assert ports == dict(service_map.ports) == dict(anew.ports)
    assert dict(service_map.states) == dict(anew.states)


def test_new_node_or_project_recomputes_only_its_own_services(monkeypatch: pytest.MonkeyPatch) -> None:
    services = (
        service("plain", cluster_ip="172.30.0.1"),
        service("elsewhere", cluster_ip="172.30.0.2"),
        service("outside", cluster_ip="172.30.0.3", external_ips=("192.0.2.9",)),
        service("blue", "blue", cluster_ip="172.30.0.4"),
    )
    service_map = fill(ServiceMap(), services, (slice_of("elsewhere", endpoint("198.51.100.7")),))
    service_map.set_config(CONFIG)
    service_map.apply_changes()
    computed: list[str] = []

    def counted(
        service: Service, slices: Iterable[EndpointSlice], config: ProxyConfig, index: ServiceIndex
    ) -> ServiceState:
        computed.append(service.metadata.name)
        return service_ports(service, slices, config, index)

    monkeypatch.setattr("sdn.proxy.service_map.service_ports", counted)

    def settle(**change: object) -> list[str]:
        computed.clear()
        assert CONFIG.vnids is not None
        service_map.set_config(config_with(**change))
        service_map.apply_changes()
        return sorted(computed)

    near = CONFIG.node_ips | {IPv4Address("10.245.2.77")}
    assert settle(node_ips=near) == []
    assert settle(node_ips=near | {IPv4Address("198.51.100.7")}) == ["elsewhere"]
    assert settle(node_ips=near | {IPv4Address("192.0.2.9")}) == ["elsewhere", "outside"]
    assert settle(vnids={**(CONFIG.vnids or {}), "green": 12}) == ["outside"]
    assert settle(vnids={**(CONFIG.vnids or {}), "blue": 12}) == ["blue"]
    assert settle(node_port_range=(20000, 20100)) == ["blue", "elsewhere", "outside", "plain"]


def _follow(ports: dict[ServicePortName, ServicePortInfo], service_map: ServiceMap) -> None:
    """Apply the changes of a service map, and check that each fits the ports."""
    change = service_map.apply_changes()
    for port in change.removed:
        assert ports.pop(port.key) == port
    for port in change.added:
        assert port.key not in ports
        ports[port.key] = port
