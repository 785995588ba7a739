"""The switch's bridge and Docker's bridge."""

from __future__ import annotations

from dataclasses import replace

from sdn.host.links import bridge_changes, desired_bridge, desired_docker_bridge, is_docker_bridge
from sdn.model.host import NETDEV, Link, Port
from sdn.topology import docker_subnet
from tests.unit.sdn.examples import CLUSTER, NODE


def test_desired_bridge_needs_no_change_and_pod_ports_are_ignored() -> None:
    desired = desired_bridge(CLUSTER, NODE, NETDEV)
    seen = replace(
        desired,
        external_ids=(*desired.external_ids, ("somebody", "else")),
        ports=(*(replace(port, ofport=port.ofport_request) for port in desired.ports), Port("vethx")),
    )
    assert bridge_changes(desired, seen) is None
    assert bridge_changes(desired, None) == desired
    bent = replace(seen, ports=tuple(replace(p, mtu_request=9000) if p.name == "tun0" else p for p in seen.ports))
    wrong = bridge_changes(desired, bent)
    assert wrong is not None
    assert [port.name for port in wrong.ports] == ["tun0"]


def test_docker_bridge_is_compared_with_its_desired_state() -> None:
    node = replace(NODE, docker_subnet=docker_subnet(NODE.subnet))
    config = desired_docker_bridge(CLUSTER, node, NETDEV)
    assert config is not None
    assert desired_docker_bridge(CLUSTER, NODE, NETDEV) is None
    good = {
        "lbr0": Link("lbr0", CLUSTER.mtu, frozenset({config.address}), "podlane"),
        "vlinuxbr": Link("vlinuxbr", CLUSTER.mtu, frozenset(), "podlane", "lbr0"),
        "vovsbr": Link("vovsbr", CLUSTER.mtu, frozenset(), "podlane"),
    }
    assert is_docker_bridge(config, good)
    for name, change in (
        ("lbr0", {"addresses": frozenset()}),
        ("lbr0", {"mtu": 9000}),
        ("vlinuxbr", {"master": ""}),
        ("vlinuxbr", {"up": False}),
        ("vovsbr", {"alias": "somebody's"}),
    ):
        assert not is_docker_bridge(config, {**good, name: replace(good[name], **change)}), (name, change)
    assert not is_docker_bridge(config, {name: link for name, link in good.items() if name != "vovsbr"})
