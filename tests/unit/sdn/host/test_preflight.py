"""Conflicts of a node with the pod network."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

import pytest

from sdn.host.preflight import conflicts
from sdn.model.host import OWNER, Bridge, Link, Port, Route
from tests.unit.sdn.examples import CLUSTER

ADDRESS = IPv4Address("10.245.2.3")


def link(name: str, address: str, mtu: int = 1500) -> Link:
    return Link(name, mtu, frozenset({IPv4Interface(address)}))


OUR_BRIDGE = Bridge("br0", external_ids=(OWNER,), ports=(Port("tun0"),))


def conflict_texts(
    *links: Link,
    routes: tuple[Route, ...] = (),
    address: IPv4Address = ADDRESS,
    mtu: int = 1450,
    bridge: Bridge | None = None,
) -> list[str]:
    here = {candidate.name: candidate for candidate in (link("eth0", "10.245.2.3/24"), *links)}
    return list(conflicts(replace(CLUSTER, mtu=mtu), address, here, routes, bridge))


def test_ordinary_node_has_no_conflicts() -> None:
    routes = (Route(IPv4Network("0.0.0.0/0"), "eth0"), Route(IPv4Network("10.245.2.0/24"), "eth0"))
    assert conflict_texts(link("docker0", "172.17.0.1/16"), routes=routes) == []


def test_own_links_and_routes_are_no_conflict() -> None:
    routes = (Route(IPv4Network("10.128.0.0/14"), "tun0"), Route(IPv4Network("172.30.0.0/16"), "tun0"))
    assert conflict_texts(link("tun0", "10.128.0.1/23"), routes=routes, bridge=OUR_BRIDGE) == []
    lbr0 = replace(link("lbr0", "10.128.0.1/23"), alias="podlane")
    assert conflict_texts(lbr0, routes=(Route(IPv4Network("10.128.0.0/23"), "lbr0"),)) == []


@pytest.mark.parametrize(
    "bridge", [None, Bridge("br0"), replace(OUR_BRIDGE, ports=()), Bridge("br0", ports=(Port("tun0"),))]
)
def test_foreign_link_with_our_name_is_a_conflict(bridge: Bridge | None) -> None:
    (actual,) = conflict_texts(link("tun0", "10.8.0.2/24"), bridge=bridge)
    assert actual.startswith("there is a link tun0 that Podlane did not make")
    (actual,) = conflict_texts(link("lbr0", "10.128.2.1/23"), bridge=OUR_BRIDGE)
    assert actual.startswith("lbr0 has the address 10.128.2.1/23, which overlaps the cluster network")


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("10.128.5.1/24", "br-lan has the address 10.128.5.1/24, which overlaps the cluster network 10.128.0.0/14"),
        ("10.0.0.1/8", "br-lan has the address 10.0.0.1/8, which overlaps the cluster network 10.128.0.0/14"),
        ("172.30.0.1/24", "br-lan has the address 172.30.0.1/24, which overlaps the service network 172.30.0.0/16"),
    ],
)
def test_local_network_within_the_cluster_network_is_a_conflict(address: str, sentence: str) -> None:
    (actual,) = conflict_texts(link("br-lan", address))
    assert actual.startswith(sentence)
    assert "renumber br-lan, or set up the cluster with another" in actual


def test_route_into_the_cluster_network_is_a_conflict() -> None:
    (actual,) = conflict_texts(routes=(Route(IPv4Network("10.130.0.0/16"), "wg0"),))
    assert actual.startswith("there is a route to 10.130.0.0/16 through wg0, which overlaps the cluster network")


def test_node_address_within_the_cluster_network_is_a_conflict() -> None:
    inside = IPv4Address("10.129.0.7")
    actual = conflict_texts(link("eth1", "10.129.0.7/32"), address=inside)
    assert actual[0].startswith("the node's address 10.129.0.7 lies in the cluster network 10.128.0.0/14")


@pytest.mark.parametrize(("mtu", "fits"), [(1450, True), (1451, False), (8950, False)])
def test_mtu_without_room_for_the_tunnel_is_a_conflict(mtu: int, fits: bool) -> None:
    actual = conflict_texts(mtu=mtu)
    assert (actual == []) == fits
    if not fits:
        assert "at most 1450 is accepted" in actual[0]
