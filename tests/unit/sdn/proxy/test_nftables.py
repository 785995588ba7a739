"""The nftables table for services: updates lead to the same table as a full write."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo, ServicePortName
from sdn.proxy.nftables import node_ip_update, port_elements, services_table, table_update
from tests.unit.sdn.examples import NODE, PROXY_CONFIG
from tests.unit.sdn.proxy.examples import CLUSTER_IPS, EXTERNAL_IPS


def backends() -> st.SearchStrategy[tuple[EndpointInfo, ...]]:
    endpoint = st.builds(
        EndpointInfo, st.integers(0, 5).map(lambda n: IPv4Address("10.128.0.2") + n), st.sampled_from([8080, 9090])
    )
    return st.lists(endpoint, max_size=5, unique=True).map(lambda some: tuple(sorted(some)))


@st.composite
def ports(draw: st.DrawFn, number: int) -> ServicePortInfo:
    """Generate a port whose frontends belong to no other number."""
    protocol = draw(st.sampled_from([Protocol.TCP, Protocol.UDP]))
    return ServicePortInfo(
        key=ServicePortName("red", f"service-{number}", "", protocol),
        vnid=10,
        cluster_ip=draw(st.sampled_from([None, CLUSTER_IPS + number])),
        port=draw(st.sampled_from([80, 81])),
        node_port=draw(st.sampled_from([0, 30000 + number])),
        external_ips=draw(st.sampled_from([(), (EXTERNAL_IPS + number,)])),
        internal_endpoints=draw(backends()),
        cluster_endpoints=draw(backends()),
        external_endpoints=draw(backends()),
        affinity_timeout_seconds=draw(st.sampled_from([0, 60, 10800])),
        external_policy_local=draw(st.booleans()),
    )


@st.composite
def port_sets(draw: st.DrawFn) -> dict[int, ServicePortInfo]:
    return {number: draw(ports(number)) for number in draw(st.sets(st.integers(0, 3)))}


def elements_after(text: str, before: dict[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """Return the elements afterwards; as in nft, an addition of an element and its removal succeed only once."""
    after = dict(before)
    commands = r"^(add|delete) element ip podlane-services (\w+) \{ (.*) \}$"
    for verb, name, body in re.findall(commands, text, re.MULTILINE):
        for entry in body.split(", "):
            key, _, value = entry.partition(" : ")
            if verb == "delete":
                del after[name, key]
            else:
                assert (name, key) not in after
                after[name, key] = value
    return after


def chains(text: str) -> set[str]:
    return set(re.findall(r"^add chain ip podlane-services (\S+)$", text, re.MULTILINE))


@given(port_sets(), port_sets(), st.sampled_from([0, 6789]))
def test_table_updates_lead_to_the_same_table_as_a_full_write(
    before: dict[int, ServicePortInfo], after: dict[int, ServicePortInfo], proxy_port: int
) -> None:
    changed = [number for number in before.keys() | after.keys() if before.get(number) != after.get(number)]
    change = ServicePortChange(
        tuple(before[number] for number in changed if number in before),
        tuple(after[number] for number in changed if number in after),
    )
    old, new, text = (
        services_table(PROXY_CONFIG, before.values(), proxy_port),
        services_table(PROXY_CONFIG, after.values(), proxy_port),
        table_update(PROXY_CONFIG, change, proxy_port),
    )
    assert elements_after(text, elements_after(old, {})) == elements_after(new, {})
    assert chains(new) <= chains(old) | chains(text)


@given(port_sets())
def test_every_endpoint_number_of_a_chain_exists_in_its_map(served: dict[int, ServicePortInfo]) -> None:
    elements = elements_after(services_table(PROXY_CONFIG, served.values()), {})
    for (name, frontend), verdict in elements.items():
        chosen = re.fullmatch(r"goto (endpoints|external-endpoints)-(\d+)(-\d+)?", verdict)
        if name not in {"host_frontends", "external_frontends"} or chosen is None:
            assert verdict in {"", "drop", "goto reject_connection"} or name not in {
                "host_frontends",
                "external_frontends",
            }
            continue
        begin = 0x8000 if chosen[1] == "external-endpoints" else 0
        for slot in range(begin, begin + int(chosen[2])):
            number = elements["affinity_ids", f"{frontend} . {slot}"] if chosen[3] else str(slot)
            assert ("endpoints", f"{frontend} . {number}") in elements


def test_endpoint_change_changes_only_its_map_elements() -> None:
    endpoint, other, third = (EndpointInfo(IPv4Address("10.128.0.2") + n, 8080) for n in range(3))
    port = ServicePortInfo(
        key=ServicePortName("red", "web", "", Protocol.TCP),
        vnid=10,
        cluster_ip=CLUSTER_IPS + 1,
        port=80,
        internal_endpoints=(endpoint, other),
    )
    assert table_update(
        PROXY_CONFIG, ServicePortChange((port,), (replace(port, internal_endpoints=(endpoint, third)),))
    ) == (
        "delete element ip podlane-services endpoints { 172.30.0.1 . tcp . 80 . 1 }\n"
        "add element ip podlane-services endpoints { 172.30.0.1 . tcp . 80 . 1 : 10.128.0.4 . 8080 }\n"
    )
    assert table_update(PROXY_CONFIG, ServicePortChange((port,), (port,))) == ""


def test_endpoint_with_session_affinity_keeps_its_number() -> None:
    endpoint, other, third = (EndpointInfo(IPv4Address("10.128.0.2") + n, 8080) for n in range(3))
    port = ServicePortInfo(
        key=ServicePortName("red", "web", "", Protocol.TCP),
        vnid=10,
        cluster_ip=CLUSTER_IPS + 1,
        port=80,
        internal_endpoints=(endpoint, other),
        affinity_timeout_seconds=60,
    )
    elements = port_elements(PROXY_CONFIG, port)
    keys = {key for (name, key), value in elements.items() if name == "endpoints" and value.startswith("10")}
    fewer = port_elements(PROXY_CONFIG, replace(port, internal_endpoints=(other, third)))
    assert len(keys & {key for name, key in fewer if name == "endpoints"}) == 1


def test_external_traffic_policy_local_without_a_local_endpoint_drops_external_clients_only() -> None:
    remote = EndpointInfo(IPv4Address("10.128.2.2"), 8080)
    port = ServicePortInfo(
        key=ServicePortName("red", "web", "", Protocol.TCP),
        vnid=10,
        cluster_ip=None,
        port=80,
        node_port=30080,
        cluster_endpoints=(remote,),
        external_policy_local=True,
    )
    frontend = f"{NODE.address} . tcp . 30080"
    for proxy_port, to_endpoint in ((0, "goto endpoints-1"), (34567, "goto redirect_to_proxy")):
        elements = port_elements(PROXY_CONFIG, port, proxy_port)
        assert elements["external_frontends", frontend] == "drop"
        assert elements["host_frontends", frontend] == to_endpoint


def test_external_traffic_policy_local_without_any_endpoint_rejects_all_clients() -> None:
    port = ServicePortInfo(
        key=ServicePortName("red", "web", "", Protocol.TCP),
        vnid=10,
        cluster_ip=None,
        port=80,
        node_port=30080,
        external_policy_local=True,
    )
    frontend = f"{NODE.address} . tcp . 30080"
    for proxy_port in (0, 34567):
        elements = port_elements(PROXY_CONFIG, port, proxy_port)
        assert elements["external_frontends", frontend] == "goto reject_connection"
        assert elements["host_frontends", frontend] == "goto reject_connection"


def test_node_address_change_changes_only_its_set_element() -> None:
    assert node_ip_update([NODE.address], [NODE.address + 1]) == (
        "delete element ip podlane-services node_ips { 10.245.2.3 }\n"
        "add element ip podlane-services node_ips { 10.245.2.4 }\n"
    )
    assert node_ip_update([], []) == ""


@pytest.mark.parametrize(
    ("vxlan_port", "source_ports"),
    [(4789, "4790-65535"), (500, "1024-65535"), (32768, "1024-32767"), (65535, "1024-65534")],
)
def test_masqueraded_udp_packets_never_get_the_tunnel_port(vxlan_port: int, source_ports: str) -> None:
    text = services_table(replace(PROXY_CONFIG, vxlan_port=vxlan_port), ())
    assert re.findall(r"meta l4proto udp masquerade to :(\S+) fully-random", text) == [source_ports]
