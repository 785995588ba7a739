"""Allocation of subnets to nodes."""

from __future__ import annotations

from msgspec.structs import replace

from api.network.types import ASSIGN_SUBNET_ANNOTATION, HostSubnet
from api.validation.registry import check
from master.allocators import AllocatorCursor
from master.controllers.actions import Update
from master.controllers.network.host_subnets import reconcile
from tests.unit.master.action_lines import CONFIG, TINY, cursor, lines
from tests.unit.master.examples import meta, node, subnet


def test_nodes_get_subnets_in_order_of_registration() -> None:
    late = replace(node("a", ip="10.245.2.9"), metadata=meta("a", creation_timestamp="2026-01-02T00:00:00Z"))
    assert lines(reconcile(CONFIG, [late, node("b")], [], AllocatorCursor())) == [
        "+ HostSubnet b 10.128.0.0/23 10.245.2.3",
        "+ HostSubnet a 10.128.2.0/23 10.245.2.9",
        "+ Cursor  2",
    ]


def test_unchanged_nodes_cause_no_change() -> None:
    assert lines(reconcile(CONFIG, [node("a")], [subnet("a", "10.128.0.0/23")], cursor(1))) == []


def test_node_address_change_updates_its_host_subnet() -> None:
    there = subnet("a", "10.128.0.0/23", ip="10.245.2.7")
    assert lines(reconcile(CONFIG, [node("a")], [there], cursor(1))) == ["~ HostSubnet a 10.128.0.0/23 10.245.2.3"]


def test_deleted_node_frees_its_subnet_which_is_reused_last() -> None:
    there = [subnet("a", "10.128.0.0/23"), subnet("b", "10.128.2.0/23", ip="10.245.2.4")]
    assert lines(reconcile(CONFIG, [node("b", ip="10.245.2.4"), node("c")], there, cursor(2))) == [
        "- HostSubnet a 10.128.0.0/23 10.245.2.3",
        "+ HostSubnet c 10.128.4.0/23 10.245.2.3",
        "~ Cursor c 3",
    ]


def test_recreated_node_gets_a_new_subnet() -> None:
    there = [subnet("a", "10.128.0.0/23", uid="uid-of-another")]
    assert lines(reconcile(CONFIG, [node("a")], there, cursor(1))) == [
        "- HostSubnet a 10.128.0.0/23 10.245.2.3",
        "+ HostSubnet a 10.128.2.0/23 10.245.2.3",
        "~ Cursor c 2",
    ]


def test_manual_host_subnets_are_kept_avoided_and_adopted() -> None:
    there = [subnet("f5", "10.128.0.0/22", uid=""), subnet("b", "10.128.8.0/23", ip="10.245.2.4", uid="")]
    there = [
        replace(host_subnet, host_ip="10.245.2.9") if host_subnet.host == "f5" else host_subnet for host_subnet in there
    ]
    actions = list(reconcile(CONFIG, [node("a"), node("b", ip="10.245.2.4")], there, AllocatorCursor()))
    assert lines(actions) == [
        "~ HostSubnet b 10.128.8.0/23 10.245.2.4",
        "+ HostSubnet a 10.128.4.0/23 10.245.2.3",
        "+ Cursor  3",
    ]
    assert isinstance(actions[0], Update)
    assert actions[0].object.metadata.annotations == {"pod.network.openshift.io/node-uid": "uid-b"}


def test_unusable_node_address_is_reported_and_gets_no_subnet() -> None:
    nodes = [node("a", ip=""), node("b", ip="127.0.0.1"), node("c", ip="10.129.0.1"), node("d", ip="fe80::1")]
    assert lines(reconcile(CONFIG, nodes, [], AllocatorCursor())) == [
        "! node a: it reports no InternalIP, so it gets no subnet",
        "! node b: its InternalIP 127.0.0.1 is not an address that others reach, so it gets no subnet",
        "! node c: its InternalIP 10.129.0.1 lies in the cluster network 10.128.0.0/14, so it gets no subnet",
        "! node d: its InternalIP 'fe80::1' is no IPv4 address, so it gets no subnet",
    ]


def test_node_without_an_address_keeps_its_subnet() -> None:
    assert lines(reconcile(CONFIG, [node("a", ip="")], [subnet("a", "10.128.0.0/23")], cursor(1))) == [
        "! node a: it reports no InternalIP, so it gets no subnet"
    ]


def test_address_of_another_node_is_not_taken_over() -> None:
    there = [subnet("a", "10.128.0.0/23"), subnet("b", "10.128.2.0/23", ip="10.245.2.4")]
    nodes = [node("a"), node("b"), node("c", ip="10.245.2.4")]
    assert lines(reconcile(CONFIG, nodes, there, cursor(2))) == [
        "! node b: its InternalIP 10.245.2.3 is that of a; each needs its own",
        "! node c: its InternalIP 10.245.2.4 is that of b; each needs its own",
    ]


def test_exhausted_cluster_network_is_reported() -> None:
    actual = lines(
        reconcile(TINY, [node(name, ip=f"10.245.2.{n}") for n, name in enumerate("abc", 3)], [], AllocatorCursor())
    )
    assert actual[-1] == "! node c: all 2 subnets of 10.1.0.0/24 are in use"


# --- hosts that are no nodes ------------------------------------------------------------------------------------------


def by_hand(name: str, **annotations: str) -> HostSubnet:
    return HostSubnet(metadata=meta(name, annotations=annotations), host=name, host_ip="10.245.2.99")


def test_annotated_host_subnet_gets_a_subnet() -> None:
    asking = by_hand("f5", **{ASSIGN_SUBNET_ANNOTATION: "true", "kept": "yes"})
    assert list(check(asking)) == []
    actions = list(reconcile(CONFIG, [node("a")], [asking], AllocatorCursor()))
    assert lines(actions) == [
        "+ HostSubnet a 10.128.0.0/23 10.245.2.3",
        "~ HostSubnet f5 10.128.2.0/23 10.245.2.99",
        "+ Cursor  2",
    ]
    assert isinstance(actions[1], Update)
    assert actions[1].object.metadata.annotations == {"kept": "yes"}


def test_host_subnet_without_the_annotation_needs_a_subnet() -> None:
    (problem,) = check(by_hand("f5"))
    assert problem.path == "subnet"


def test_annotated_host_subnet_with_a_subnet_gets_another() -> None:
    moved = replace(by_hand("f5", **{ASSIGN_SUBNET_ANNOTATION: ""}), subnet="10.128.0.0/23")
    assert lines(reconcile(CONFIG, [], [moved], cursor(1))) == [
        "~ HostSubnet f5 10.128.2.0/23 10.245.2.99",
        "~ Cursor c 2",
    ]
