"""Which part of the cluster network each node has."""

from __future__ import annotations

from msgspec.structs import replace

from api.network.types import ASSIGN_SUBNET_ANNOTATION, HostSubnet
from api.validation.registry import check
from master.allocators import AllocatorCursor
from master.controllers.actions import Update
from master.controllers.network.host_subnets import reconcile_host_subnets
from tests.unit.master.actions import TINY, WISH, cursor, lines
from tests.unit.master.examples import meta, node, subnet


def test_every_node_gets_the_next_subnet_in_order_of_registration() -> None:
    late = replace(node("a", ip="10.245.2.9"), metadata=meta("a", creation_timestamp="2026-01-02T00:00:00Z"))
    assert lines(reconcile_host_subnets(WISH, [late, node("b")], [], AllocatorCursor())) == [
        "+ HostSubnet b 10.128.0.0/23 10.245.2.3",
        "+ HostSubnet a 10.128.2.0/23 10.245.2.9",
        "+ Cursor  2",
    ]


def test_nothing_to_do_is_nothing() -> None:
    assert lines(reconcile_host_subnets(WISH, [node("a")], [subnet("a", "10.128.0.0/23")], cursor(1))) == []


def test_a_new_address_changes_the_subnet_in_place() -> None:
    there = subnet("a", "10.128.0.0/23", ip="10.245.2.7")
    assert lines(reconcile_host_subnets(WISH, [node("a")], [there], cursor(1))) == [
        "~ HostSubnet a 10.128.0.0/23 10.245.2.3"
    ]


def test_a_deleted_node_loses_its_subnet_which_then_rests() -> None:
    there = [subnet("a", "10.128.0.0/23"), subnet("b", "10.128.2.0/23", ip="10.245.2.4")]
    assert lines(reconcile_host_subnets(WISH, [node("b", ip="10.245.2.4"), node("c")], there, cursor(2))) == [
        "- HostSubnet a 10.128.0.0/23 10.245.2.3",
        "+ HostSubnet c 10.128.4.0/23 10.245.2.3",
        "~ Cursor c 3",
    ]


def test_a_node_that_came_back_under_its_name_is_another_node() -> None:
    there = [subnet("a", "10.128.0.0/23", uid="uid-of-another")]
    assert lines(reconcile_host_subnets(WISH, [node("a")], there, cursor(1))) == [
        "- HostSubnet a 10.128.0.0/23 10.245.2.3",
        "+ HostSubnet a 10.128.2.0/23 10.245.2.3",
        "~ Cursor c 2",
    ]


def test_hand_made_subnets_stay_are_avoided_and_are_taken_over_by_their_node() -> None:
    there = [subnet("f5", "10.128.0.0/22", uid=""), subnet("b", "10.128.8.0/23", ip="10.245.2.4", uid="")]
    there = [replace(one, host_ip="10.245.2.9") if one.host == "f5" else one for one in there]
    found = list(reconcile_host_subnets(WISH, [node("a"), node("b", ip="10.245.2.4")], there, AllocatorCursor()))
    assert lines(found) == [
        "~ HostSubnet b 10.128.8.0/23 10.245.2.4",
        "+ HostSubnet a 10.128.4.0/23 10.245.2.3",
        "+ Cursor  3",
    ]
    assert isinstance(found[0], Update)
    assert found[0].item.metadata.annotations == {"pod.network.openshift.io/node-uid": "uid-b"}


def test_addresses_that_cannot_end_a_tunnel_are_told_and_get_nothing() -> None:
    nodes = [node("a", ip=""), node("b", ip="127.0.0.1"), node("c", ip="10.129.0.1"), node("d", ip="fe80::1")]
    assert lines(reconcile_host_subnets(WISH, nodes, [], AllocatorCursor())) == [
        "! node a: it reports no InternalIP, so it gets no subnet",
        "! node b: its InternalIP 127.0.0.1 is not an address that others reach, so it gets no subnet",
        "! node c: its InternalIP 10.129.0.1 lies in the cluster network 10.128.0.0/14, so it gets no subnet",
        "! node d: its InternalIP 'fe80::1' is no IPv4 address, so it gets no subnet",
    ]


def test_a_node_that_lost_its_address_keeps_its_subnet() -> None:
    assert lines(reconcile_host_subnets(WISH, [node("a", ip="")], [subnet("a", "10.128.0.0/23")], cursor(1))) == [
        "! node a: it reports no InternalIP, so it gets no subnet"
    ]


def test_an_address_that_another_node_has_is_not_taken_over() -> None:
    there = [subnet("a", "10.128.0.0/23"), subnet("b", "10.128.2.0/23", ip="10.245.2.4")]
    nodes = [node("a"), node("b"), node("c", ip="10.245.2.4")]
    assert lines(reconcile_host_subnets(WISH, nodes, there, cursor(2))) == [
        "! node b: its InternalIP 10.245.2.3 is that of a; each needs its own",
        "! node c: its InternalIP 10.245.2.4 is that of b; each needs its own",
    ]


def test_more_nodes_than_subnets_is_told() -> None:
    found = lines(
        reconcile_host_subnets(
            TINY, [node(name, ip=f"10.245.2.{n}") for n, name in enumerate("abc", 3)], [], AllocatorCursor()
        )
    )
    assert found[-1] == "! node c: all 2 subnets of 10.1.0.0/24 are in use"


# --- hosts that are no nodes ------------------------------------------------------------------------------------------


def by_hand(name: str, **annotations: str) -> HostSubnet:
    return HostSubnet(metadata=meta(name, annotations=annotations), host=name, host_ip="10.245.2.99")


def test_a_host_that_is_no_node_gets_a_subnet_on_request() -> None:
    asking = by_hand("f5", **{ASSIGN_SUBNET_ANNOTATION: "true", "kept": "yes"})
    assert list(check(asking)) == []
    found = list(reconcile_host_subnets(WISH, [node("a")], [asking], AllocatorCursor()))
    assert lines(found) == [
        "+ HostSubnet a 10.128.0.0/23 10.245.2.3",
        "~ HostSubnet f5 10.128.2.0/23 10.245.2.99",
        "+ Cursor  2",
    ]
    assert isinstance(found[1], Update)
    assert found[1].item.metadata.annotations == {"kept": "yes"}


def test_without_a_request_a_subnet_is_required() -> None:
    (problem,) = check(by_hand("f5"))
    assert problem.path == "subnet"


def test_a_request_takes_another_subnet_for_one_that_there_is() -> None:
    moved = replace(by_hand("f5", **{ASSIGN_SUBNET_ANNOTATION: ""}), subnet="10.128.0.0/23")
    assert lines(reconcile_host_subnets(WISH, [], [moved], cursor(1))) == [
        "~ HostSubnet f5 10.128.2.0/23 10.245.2.99",
        "~ Cursor c 2",
    ]
