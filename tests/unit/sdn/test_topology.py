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


def net_namespace(name: str, netid: int, age: int = 0, joined: str = "") -> NetNamespace:
    annotations = {JOINED_ANNOTATION: joined} if joined else {}
    metadata = ObjectMeta(name=name, creation_timestamp=f"2026-01-01T00:00:{59 - age:02}Z", annotations=annotations)
    return NetNamespace(metadata=metadata, netname=name, netid=netid)


def config_of(
    subnets: Iterable[HostSubnet] = (), net_namespaces: Iterable[NetNamespace] = ()
) -> NodeNetworkConfig | Unavailable:
    here = subnet("node-1", "10.128.0.0/23", str(MINE), age=9)
    return network_config(
        without_invalid_objects(Snapshot(NETWORK, (here, *subnets), tuple(net_namespaces))), IDENTITY, 1450
    )


def vnids_of(*net_namespaces: NetNamespace) -> dict[str, int]:
    config = config_of(net_namespaces=net_namespaces)
    assert isinstance(config, NodeNetworkConfig)
    assert config.vnids is not None
    return dict(config.vnids)


def test_duplicate_vnid_belongs_to_the_older_project() -> None:
    assert vnids_of(net_namespace("red", 10, age=1), net_namespace("blue", 10)) == {"red": 10}
    assert vnids_of(net_namespace("red", 10), net_namespace("blue", 10)) == {"blue": 10}, "all nodes come to the same"


def test_joined_projects_share_a_vnid() -> None:
    assert vnids_of(net_namespace("red", 10), net_namespace("blue", 10, joined="red")) == {"red": 10, "blue": 10}
    assert vnids_of(net_namespace("blue", 10, joined="red"), net_namespace("green", 10, joined="red")) == {
        "blue": 10,
        "green": 10,
    }
    assert vnids_of(net_namespace("a", 0), net_namespace("b", 0)) == {"a": 0, "b": 0}, "VNID 0 is for everybody"


def test_netnamespace_with_another_name_or_invalid_vnid_is_ignored() -> None:
    assert vnids_of(NetNamespace(metadata=ObjectMeta(name="red"), netname="default", netid=0)) == {}
    assert vnids_of(net_namespace("red", 1 << 24), net_namespace("blue", -1)) == {}


def test_younger_overlapping_host_subnet_is_ignored() -> None:
    older, younger = subnet("b", "10.128.2.0/23", "10.245.2.4", age=1), subnet("a", "10.128.2.0/24", "10.245.2.5")
    config = config_of((older, younger))
    assert isinstance(config, NodeNetworkConfig)
    assert [peer.name for peer in config.peers] == ["b"]
    thief = subnet("c", "10.128.8.0/23", "10.245.2.4")
    config = config_of((older, thief))
    assert isinstance(config, NodeNetworkConfig)
    assert [peer.name for peer in config.peers] == ["b"], "nor one at the address of another"


def test_invalid_host_subnet_is_ignored() -> None:
    for bad in (
        subnet("x", "10.128.2.7/23", "10.245.2.4"),
        subnet("x", "nonsense", "10.245.2.4"),
        subnet("x", "10.128.2.0/23", "nonsense"),
        HostSubnet(metadata=ObjectMeta(name="x"), host="y", host_ip="10.245.2.4", subnet="10.128.2.0/23"),
    ):
        config = config_of((bad,))
        assert isinstance(config, NodeNetworkConfig)
        assert config.peers == frozenset()


def test_node_whose_subnet_overlaps_an_older_one_is_not_ready() -> None:
    config = config_of((subnet("older", "10.128.0.0/22", "10.245.2.4", age=20),))
    assert isinstance(config, Unavailable)
    assert config.reason == "HostSubnet node-1 is invalid: its subnet or hostIP is that of older"


def test_node_with_an_invalid_cluster_network_is_not_ready() -> None:
    bad = replace(NETWORK, service_network="10.128.0.0/16")
    config = network_config(without_invalid_objects(Snapshot(bad, (), ())), IDENTITY, 1450)
    assert isinstance(config, Unavailable)
    assert "ClusterNetwork default is invalid" in config.reason


def test_objects_of_our_own_master_are_taken_unchecked() -> None:
    cluster_network = ClusterNetwork(
        metadata=ObjectMeta(name="default"), network="10.128.0.0/14", plugin_name=PLUGIN_MULTITENANT
    )
    snapshot = Snapshot(cluster_network, (), (net_namespace("red", 10), net_namespace("blue", 10)))
    assert without_invalid_objects(snapshot) is snapshot


NET_NAMESPACES = st.lists(
    st.builds(
        net_namespace,
        st.sampled_from("abcdef"),
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from(("", "", "a", "b")),
    ),
    unique_by=lambda candidate: candidate.metadata.name,
)
SUBNETS = st.lists(
    st.builds(
        subnet,
        st.sampled_from("abcdef"),
        st.sampled_from(("10.128.2.0/23", "10.128.2.0/24", "10.128.0.0/22", "10.128.4.0/23", "10.128.4.0/22")),
        st.sampled_from(("10.245.2.4", "10.245.2.5", "10.245.2.6")),
        st.integers(0, 3),
    ),
    unique_by=lambda host_subnet: host_subnet.metadata.name,
)


@given(net_namespaces=NET_NAMESPACES, subnets=SUBNETS)
def test_accepted_network_objects_never_conflict(net_namespaces: list[NetNamespace], subnets: list[HostSubnet]) -> None:
    snapshot = without_invalid_objects(Snapshot(NETWORK, tuple(subnets), tuple(net_namespaces)))
    for host_subnet, other in combinations(snapshot.host_subnets, 2):
        assert not IPv4Network(host_subnet.subnet).overlaps(IPv4Network(other.subnet))
        assert host_subnet.host_ip != other.host_ip
    for mine, theirs in combinations([candidate for candidate in snapshot.net_namespaces if candidate.netid], 2):
        if mine.netid == theirs.netid:
            owners = {
                candidate.metadata.annotations.get(JOINED_ANNOTATION, candidate.metadata.name)
                for candidate in (mine, theirs)
            }
            assert len(owners) == 1
    if subnets:
        assert snapshot.host_subnets, "somebody has it"
    assert {candidate.netid for candidate in net_namespaces} == {
        candidate.netid for candidate in snapshot.net_namespaces
    }


@given(net_namespaces=NET_NAMESPACES, subnets=SUBNETS)
def test_accepted_network_objects_do_not_depend_on_their_order(
    net_namespaces: list[NetNamespace], subnets: list[HostSubnet]
) -> None:
    snapshot = without_invalid_objects(Snapshot(NETWORK, tuple(subnets), tuple(net_namespaces)))
    other = without_invalid_objects(Snapshot(NETWORK, tuple(reversed(subnets)), tuple(reversed(net_namespaces))))
    assert snapshot.net_namespaces == tuple(reversed(other.net_namespaces))
    assert snapshot.host_subnets == tuple(reversed(other.host_subnets))
    assert snapshot.ignored == other.ignored


def test_vnid_has_multicast_when_all_its_projects_enable_it() -> None:
    def net_namespace(name: str, netid: int, on: str = "") -> NetNamespace:
        annotations = {MULTICAST_ENABLED: on} if on else {}
        return NetNamespace(metadata=ObjectMeta(name=name, annotations=annotations), netname=name, netid=netid)

    net_namespaces = (
        net_namespace("a", 10, "true"),
        net_namespace("b", 11, "true"),
        net_namespace("c", 11),
        net_namespace("d", 12, "yes"),
        net_namespace("e", 13, "true"),
    )
    assert multicast_vnids({candidate.netname: candidate.netid for candidate in net_namespaces}, net_namespaces) == {
        10,
        13,
    }
    assert multicast_vnids(None, net_namespaces) == frozenset()
