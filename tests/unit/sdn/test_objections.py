"""What on a node stands in the way of the pod network."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

import pytest

from sdn.objections import objections
from sdn.observed import Link, Route
from tests.unit.sdn.test_flows import CLUSTER

ADDRESS = IPv4Address("10.245.2.3")


def link(name: str, address: str, mtu: int = 1500) -> Link:
    return Link(name, mtu, frozenset({IPv4Interface(address)}))


def told(*links: Link, routes: tuple[Route, ...] = (), address: IPv4Address = ADDRESS, mtu: int = 1450) -> list[str]:
    here = {one.name: one for one in (link("eth0", "10.245.2.3/24"), *links)}
    return list(objections(replace(CLUSTER, mtu=mtu), address, here, routes))


def test_an_ordinary_node_is_welcome() -> None:
    routes = (Route(IPv4Network("0.0.0.0/0"), "eth0"), Route(IPv4Network("10.245.2.0/24"), "eth0"))
    assert told(link("docker0", "172.17.0.1/16"), routes=routes) == []


def test_our_own_links_and_routes_do_not_count() -> None:
    routes = (Route(IPv4Network("10.128.0.0/14"), "tun0"), Route(IPv4Network("172.30.0.0/16"), "tun0"))
    assert told(link("tun0", "10.128.0.1/23"), routes=routes) == []


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("10.128.5.1/24", "br-lan has the address 10.128.5.1/24, which overlaps the cluster network 10.128.0.0/14"),
        ("10.0.0.1/8", "br-lan has the address 10.0.0.1/8, which overlaps the cluster network 10.128.0.0/14"),
        ("172.30.0.1/24", "br-lan has the address 172.30.0.1/24, which overlaps the service network 172.30.0.0/16"),
    ],
)
def test_a_local_network_in_the_way(address: str, sentence: str) -> None:
    (found,) = told(link("br-lan", address))
    assert found.startswith(sentence)
    assert "renumber br-lan, or set up the cluster with another" in found


def test_a_route_in_the_way() -> None:
    (found,) = told(routes=(Route(IPv4Network("10.130.0.0/16"), "wg0"),))
    assert found.startswith("there is a route to 10.130.0.0/16 through wg0, which overlaps the cluster network")


def test_a_node_inside_the_cluster_network() -> None:
    inside = IPv4Address("10.129.0.7")
    found = told(link("eth1", "10.129.0.7/32"), address=inside)
    assert found[0].startswith("the node's address 10.129.0.7 lies in the cluster network 10.128.0.0/14")


@pytest.mark.parametrize(("mtu", "fits"), [(1450, True), (1451, False), (8950, False)])
def test_the_mtu_must_leave_room_for_the_tunnel(mtu: int, fits: bool) -> None:
    found = told(mtu=mtu)
    assert (found == []) == fits
    if not fits:
        assert "at most 1450 is accepted" in found[0]
