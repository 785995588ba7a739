"""Objects of an API server that does not validate them: only consistent ones are used."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.meta.types import ObjectMeta
from api.network.conflicts import CURSORS_ANNOTATION
from api.network.types import (
    JOINED_ANNOTATION,
    PLUGIN_MULTITENANT,
    ClusterNetwork,
    ClusterNetworkEntry,
    HostSubnet,
    NetNamespace,
)
from sdn.config import NodeIdentity
from sdn.topology import (
    MULTICAST_ENABLED,
    NodeNetworkConfig,
    Snapshot,
    Unavailable,
    multicast_vnids,
    network_config,
    without_invalid_objects,
)

NETWORK = ClusterNetwork(
    metadata=ObjectMeta(name="default", annotations={CURSORS_ANNOTATION: "{}"}),
    network="10.128.0.0/14",
    hostsubnetlength=9,
    service_network="172.30.0.0/16",
    plugin_name=PLUGIN_MULTITENANT,
    cluster_networks=(ClusterNetworkEntry(cidr="10.128.0.0/14", host_subnet_length=9),),
)
MINE = IPv4Address("10.245.2.3")
IDENTITY = NodeIdentity("node-1", MINE, "netdev")


def subnet(name: str, network: str, ip: str, age: int = 0) -> HostSubnet:
    metadata = ObjectMeta(name=name, creation_timestamp=f"2026-01-01T00:00:{59 - age:02}Z")
    return HostSubnet(metadata=metadata, host=name, host_ip=ip, subnet=network)


def lane(name: str, netid: int, age: int = 0, joined: str = "") -> NetNamespace:
    annotations = {JOINED_ANNOTATION: joined} if joined else {}
    metadata = ObjectMeta(name=name, creation_timestamp=f"2026-01-01T00:00:{59 - age:02}Z", annotations=annotations)
    return NetNamespace(metadata=metadata, netname=name, netid=netid)


def ground(subnets: Iterable[HostSubnet] = (), lanes: Iterable[NetNamespace] = ()) -> NodeNetworkConfig | Unavailable:
    here = subnet("node-1", "10.128.0.0/23", str(MINE), age=9)
    return network_config(without_invalid_objects(Snapshot(NETWORK, (here, *subnets), tuple(lanes))), IDENTITY, 1450)


def lanes_of(*lanes: NetNamespace) -> dict[str, int]:
    found = ground(lanes=lanes)
    assert isinstance(found, NodeNetworkConfig)
    assert found.vnids is not None
    return dict(found.vnids)


def test_duplicate_vnid_belongs_to_the_older_project() -> None:
    assert lanes_of(lane("red", 10, age=1), lane("blue", 10)) == {"red": 10}
    assert lanes_of(lane("red", 10), lane("blue", 10)) == {"blue": 10}, "all nodes come to the same"


def test_joined_projects_share_a_vnid() -> None:
    assert lanes_of(lane("red", 10), lane("blue", 10, joined="red")) == {"red": 10, "blue": 10}
    assert lanes_of(lane("blue", 10, joined="red"), lane("green", 10, joined="red")) == {"blue": 10, "green": 10}
    assert lanes_of(lane("a", 0), lane("b", 0)) == {"a": 0, "b": 0}, "VNID 0 is for everybody"


def test_netnamespace_with_another_name_or_invalid_vnid_is_ignored() -> None:
    assert lanes_of(NetNamespace(metadata=ObjectMeta(name="red"), netname="default", netid=0)) == {}
    assert lanes_of(lane("red", 1 << 24), lane("blue", -1)) == {}


def test_younger_overlapping_host_subnet_is_ignored() -> None:
    older, younger = subnet("b", "10.128.2.0/23", "10.245.2.4", age=1), subnet("a", "10.128.2.0/24", "10.245.2.5")
    found = ground((older, younger))
    assert isinstance(found, NodeNetworkConfig)
    assert [peer.name for peer in found.peers] == ["b"]
    thief = subnet("c", "10.128.8.0/23", "10.245.2.4")
    found = ground((older, thief))
    assert isinstance(found, NodeNetworkConfig)
    assert [peer.name for peer in found.peers] == ["b"], "nor one at the address of another"


def test_invalid_host_subnet_is_ignored() -> None:
    for bad in (
        subnet("x", "10.128.2.7/23", "10.245.2.4"),
        subnet("x", "nonsense", "10.245.2.4"),
        subnet("x", "10.128.2.0/23", "nonsense"),
        HostSubnet(metadata=ObjectMeta(name="x"), host="y", host_ip="10.245.2.4", subnet="10.128.2.0/23"),
    ):
        found = ground((bad,))
        assert isinstance(found, NodeNetworkConfig)
        assert found.peers == frozenset()


def test_node_whose_subnet_overlaps_an_older_one_is_not_ready() -> None:
    found = ground((subnet("older", "10.128.0.0/22", "10.245.2.4", age=20),))
    assert isinstance(found, Unavailable)
    assert found.reason == "HostSubnet node-1 is invalid: its subnet or hostIP is that of older"


def test_node_with_an_invalid_cluster_network_is_not_ready() -> None:
    bad = replace(NETWORK, service_network="10.128.0.0/16")
    found = network_config(without_invalid_objects(Snapshot(bad, (), ())), IDENTITY, 1450)
    assert isinstance(found, Unavailable)
    assert "ClusterNetwork default is invalid" in found.reason


def test_objects_of_our_own_master_are_taken_unchecked() -> None:
    ours = ClusterNetwork(metadata=ObjectMeta(name="default"), network="10.128.0.0/14", plugin_name=PLUGIN_MULTITENANT)
    shown = Snapshot(ours, (), (lane("red", 10), lane("blue", 10)))
    assert without_invalid_objects(shown) is shown


LANES = st.lists(
    st.builds(
        lane,
        st.sampled_from("abcdef"),
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from(("", "", "a", "b")),
    ),
    unique_by=lambda one: one.metadata.name,
)
SUBNETS = st.lists(
    st.builds(
        subnet,
        st.sampled_from("abcdef"),
        st.sampled_from(("10.128.2.0/23", "10.128.2.0/24", "10.128.0.0/22", "10.128.4.0/23", "10.128.4.0/22")),
        st.sampled_from(("10.245.2.4", "10.245.2.5", "10.245.2.6")),
        st.integers(0, 3),
    ),
    unique_by=lambda one: one.metadata.name,
)


@given(lanes=LANES, subnets=SUBNETS)
def test_accepted_network_objects_never_conflict(lanes: list[NetNamespace], subnets: list[HostSubnet]) -> None:
    shown = without_invalid_objects(Snapshot(NETWORK, tuple(subnets), tuple(lanes)))
    for one, other in combinations(shown.host_subnets, 2):
        assert not IPv4Network(one.subnet).overlaps(IPv4Network(other.subnet))
        assert one.host_ip != other.host_ip
    for mine, theirs in combinations([each for each in shown.net_namespaces if each.netid], 2):
        if mine.netid == theirs.netid:
            owners = {each.metadata.annotations.get(JOINED_ANNOTATION, each.metadata.name) for each in (mine, theirs)}
            assert len(owners) == 1
    if subnets:
        assert shown.host_subnets, "somebody has it"
    assert {each.netid for each in lanes} == {each.netid for each in shown.net_namespaces}


@given(lanes=LANES, subnets=SUBNETS)
def test_accepted_network_objects_do_not_depend_on_their_order(
    lanes: list[NetNamespace], subnets: list[HostSubnet]
) -> None:
    one = without_invalid_objects(Snapshot(NETWORK, tuple(subnets), tuple(lanes)))
    other = without_invalid_objects(Snapshot(NETWORK, tuple(reversed(subnets)), tuple(reversed(lanes))))
    assert one.net_namespaces == tuple(reversed(other.net_namespaces))
    assert one.host_subnets == tuple(reversed(other.host_subnets))
    assert one.ignored == other.ignored


def test_vnid_has_multicast_when_all_its_projects_enable_it() -> None:
    def lane(name: str, netid: int, on: str = "") -> NetNamespace:
        annotations = {MULTICAST_ENABLED: on} if on else {}
        return NetNamespace(metadata=ObjectMeta(name=name, annotations=annotations), netname=name, netid=netid)

    found = (lane("a", 10, "true"), lane("b", 11, "true"), lane("c", 11), lane("d", 12, "yes"), lane("e", 13, "true"))
    assert multicast_vnids({one.netname: one.netid for one in found}, found) == {10, 13}
    assert multicast_vnids(None, found) == frozenset()
