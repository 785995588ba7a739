from __future__ import annotations

from msgspec.structs import replace

from api.objects import ClusterNetwork, NamespaceSpec, Node
from master import controllers
from master.controllers import Change, Cursor
from tests.unit.master.make import meta, namespace, node, pod, subnet
from tests.unit.master.wishes import FLAT, TINY, WALL, WISH, cursor, lines

# --- host subnets -----------------------------------------------------------------------------------------------------


def test_every_node_gets_the_next_subnet_in_order_of_registration() -> None:
    late = replace(node("a", ip="10.245.2.9"), metadata=meta("a", creation_timestamp="2026-01-02T00:00:00Z"))
    assert lines(controllers.host_subnets(WISH, [late, node("b")], [], Cursor())) == [
        "+ HostSubnet b 10.128.0.0/23 10.245.2.3",
        "+ HostSubnet a 10.128.2.0/23 10.245.2.9",
        "+ Cursor  2",
    ]


def test_nothing_to_do_is_nothing() -> None:
    assert lines(controllers.host_subnets(WISH, [node("a")], [subnet("a", "10.128.0.0/23")], cursor(1))) == []


def test_a_new_address_changes_the_subnet_in_place() -> None:
    there = subnet("a", "10.128.0.0/23", ip="10.245.2.7")
    assert lines(controllers.host_subnets(WISH, [node("a")], [there], cursor(1))) == [
        "~ HostSubnet a 10.128.0.0/23 10.245.2.3"
    ]


def test_a_deleted_node_loses_its_subnet_which_then_rests() -> None:
    there = [subnet("a", "10.128.0.0/23"), subnet("b", "10.128.2.0/23", ip="10.245.2.4")]
    assert lines(controllers.host_subnets(WISH, [node("b", ip="10.245.2.4"), node("c")], there, cursor(2))) == [
        "- HostSubnet a 10.128.0.0/23 10.245.2.3",
        "+ HostSubnet c 10.128.4.0/23 10.245.2.3",
        "~ Cursor c 3",
    ]


def test_a_node_that_came_back_under_its_name_is_another_node() -> None:
    there = [subnet("a", "10.128.0.0/23", uid="uid-of-another")]
    assert lines(controllers.host_subnets(WISH, [node("a")], there, cursor(1))) == [
        "- HostSubnet a 10.128.0.0/23 10.245.2.3",
        "+ HostSubnet a 10.128.2.0/23 10.245.2.3",
        "~ Cursor c 2",
    ]


def test_hand_made_subnets_stay_are_avoided_and_are_taken_over_by_their_node() -> None:
    there = [subnet("f5", "10.128.0.0/22", uid=""), subnet("b", "10.128.8.0/23", ip="10.245.2.4", uid="")]
    there = [replace(one, host_ip="10.245.2.9") if one.host == "f5" else one for one in there]
    found = list(controllers.host_subnets(WISH, [node("a"), node("b", ip="10.245.2.4")], there, Cursor()))
    assert lines(found) == [
        "~ HostSubnet b 10.128.8.0/23 10.245.2.4",
        "+ HostSubnet a 10.128.4.0/23 10.245.2.3",
        "+ Cursor  3",
    ]
    assert isinstance(found[0], Change)
    assert found[0].item.metadata.annotations == {"pod.network.openshift.io/node-uid": "uid-b"}


def test_addresses_that_cannot_end_a_tunnel_are_told_and_get_nothing() -> None:
    nodes = [node("a", ip=""), node("b", ip="127.0.0.1"), node("c", ip="10.129.0.1"), node("d", ip="fe80::1")]
    assert lines(controllers.host_subnets(WISH, nodes, [], Cursor())) == [
        "! node a: it reports no InternalIP, so it gets no subnet",
        "! node b: its InternalIP 127.0.0.1 is not an address that others reach, so it gets no subnet",
        "! node c: its InternalIP 10.129.0.1 lies in the cluster network 10.128.0.0/14, so it gets no subnet",
        "! node d: its InternalIP 'fe80::1' is no IPv4 address, so it gets no subnet",
    ]


def test_a_node_that_lost_its_address_keeps_its_subnet() -> None:
    assert lines(controllers.host_subnets(WISH, [node("a", ip="")], [subnet("a", "10.128.0.0/23")], cursor(1))) == [
        "! node a: it reports no InternalIP, so it gets no subnet"
    ]


def test_an_address_that_another_node_has_is_not_taken_over() -> None:
    there = [subnet("a", "10.128.0.0/23"), subnet("b", "10.128.2.0/23", ip="10.245.2.4")]
    nodes = [node("a"), node("b"), node("c", ip="10.245.2.4")]
    assert lines(controllers.host_subnets(WISH, nodes, there, cursor(2))) == [
        "! node b: its InternalIP 10.245.2.3 is that of a; each needs its own",
        "! node c: its InternalIP 10.245.2.4 is that of b; each needs its own",
    ]


def test_more_nodes_than_subnets_is_told() -> None:
    found = lines(
        controllers.host_subnets(
            TINY, [node(name, ip=f"10.245.2.{n}") for n, name in enumerate("abc", 3)], [], Cursor()
        )
    )
    assert found[-1] == "! node c: all 2 subnets of 10.1.0.0/24 are in use"


# --- from the start ---------------------------------------------------------------------------------------------------


def test_what_belongs_to_every_cluster() -> None:
    found = list(controllers.bootstrap(WISH, None, None))
    assert lines(found) == ["+ Namespace default", "+ ClusterNetwork default"]
    assert isinstance(found[1].item, ClusterNetwork)
    assert found[1].item.plugin_name == "redhat/openshift-ovs-multitenant"
    there = replace(found[1].item, metadata=meta("default"))
    assert lines(controllers.bootstrap(WISH, namespace("default"), there)) == []
    assert lines(controllers.bootstrap(FLAT, namespace("default"), there)) == ["~ ClusterNetwork default"]


# --- namespaces that end ----------------------------------------------------------------------------------------------


def test_an_ending_namespace_takes_its_pods_along_and_then_goes() -> None:
    ending = namespace("red", deletion_timestamp="2026-01-01T00:00:00Z")
    going = pod("b", deleted="2026-01-01T00:00:00Z")
    assert lines(controllers.ending_namespaces([ending], [pod("a"), going, pod("c", namespace="blue")])) == [
        "end Pod a"
    ]
    assert lines(controllers.ending_namespaces([ending], [going])) == []
    assert lines(controllers.ending_namespaces([ending, namespace("blue")], [])) == ["- Namespace red"]


def test_a_namespace_held_by_somebody_else_is_only_let_go() -> None:
    ending = namespace("red", deletion_timestamp="2026-01-01T00:00:00Z", finalizers=("mine",))
    ending = replace(ending, spec=NamespaceSpec(finalizers=("kubernetes",)))
    (change,) = controllers.ending_namespaces([ending], [])
    assert isinstance(change, Change)
    assert change.item == replace(ending, spec=NamespaceSpec())
    assert lines(controllers.ending_namespaces([change.item], [])) == []


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_a_silent_node_is_lost_after_its_grace_and_told_once() -> None:
    quiet, lively = node("quiet"), node("lively")
    seen = controllers.sightings({}, [quiet, lively], now=100.0)
    lively = node("lively", heartbeat="2026-01-01T00:00:10Z")
    seen = controllers.sightings(seen, [quiet, lively], now=130.0)
    assert list(controllers.lost_nodes([quiet, lively], seen, 40, 139.0, WALL)) == []
    (change,) = controllers.lost_nodes([quiet, lively], seen, 40, 140.0, WALL)
    lost = change.item
    assert isinstance(lost, Node)
    row = lost.status.conditions[0]
    assert lost.metadata.name == "quiet"
    assert (row.status, row.reason, row.last_transition_time) == (
        "Unknown",
        "NodeStatusUnknown",
        "2026-01-01T12:00:00Z",
    )
    assert row.last_heartbeat_time == "2026-01-01T00:00:00Z"
    assert list(controllers.lost_nodes([lost], seen, 40, 500.0, WALL)) == []
    # Our own writing is not a sign of life of the node.
    assert controllers.sightings(seen, [lost], now=500.0) == {("quiet", "uid-quiet"): seen[("quiet", "uid-quiet")]}


def test_after_a_start_of_the_master_every_node_has_a_full_grace() -> None:
    stale = node("a", heartbeat="2020-01-01T00:00:00Z")
    seen = controllers.sightings({}, [stale], now=1000.0)
    assert list(controllers.lost_nodes([stale], seen, 40, 1039.0, WALL)) == []
    assert len(list(controllers.lost_nodes([stale], seen, 40, 1040.0, WALL))) == 1


def test_a_node_that_never_said_anything_is_lost_too() -> None:
    mute = replace(node("a"), status=type(node("a").status)())
    seen = controllers.sightings({}, [mute], now=0.0)
    (change,) = controllers.lost_nodes([mute], seen, 40, 40.0, WALL)
    assert [row.type for row in change.item.status.conditions] == ["Ready"]  # type: ignore[attr-defined]


def test_pods_of_a_node_that_is_gone_go_after_its_grace() -> None:
    pods = [
        pod("ran", node="gone", host_ip="10.245.2.9"),
        pod("ending", node="gone", deleted="2026-01-01T00:00:00Z"),
        pod("waiting", node="gone"),
        pod("fine", node="here", host_ip="10.245.2.3"),
        pod("free"),
    ]
    absent = controllers.absences({}, [node("here")], pods, now=10.0)
    assert absent == {"gone": 10.0}
    assert controllers.absences(absent, [node("here")], pods, now=60.0) == {"gone": 10.0}
    assert lines(controllers.orphaned_pods(pods, absent, 40, 49.0)) == []
    assert lines(controllers.orphaned_pods(pods, absent, 40, 50.0)) == ["- Pod ran", "- Pod ending"]
    assert controllers.absences(absent, [node("here"), node("gone")], pods, now=70.0) == {}
