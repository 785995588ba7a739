"""The firewall's table of a node."""

from __future__ import annotations

from dataclasses import replace

from sdn.host.firewall import dropping_chains, forward_problem, forward_rules, guarded_devices
from sdn.model.host import NETDEV, BaseChain, Bridge, OvsState, Port
from sdn.topology import docker_subnet
from tests.unit.sdn.examples import NODE


def test_guard_covers_devices_read_in_user_space() -> None:
    ports = (Port("eth0"), Port("tun0", type="internal"), Port("br0", type="internal"), Port("vxlan0", type="vxlan"))
    for datapath, wanted in ((NETDEV, {"eth0"}), ("system", set())):
        switch = OvsState((Bridge("br0", datapath_type=datapath, ports=ports),))
        assert guarded_devices(switch, NODE) == wanted
        assert guarded_devices(switch, replace(NODE, docker_subnet=docker_subnet(NODE.subnet))) == wanted | {"lbr0"}


DOCKER = BaseChain("ip", "filter", "FORWARD", "forward", "drop")


def test_forward_chain_with_policy_drop_gets_the_missing_rules_only() -> None:
    rules = forward_rules((DOCKER,), "")
    assert rules.splitlines() == [
        'add rule ip filter FORWARD iifname "tun0" counter accept comment "podlane"',
        'add rule ip filter FORWARD oifname "tun0" counter accept comment "podlane"',
    ]
    of_the_operator = '\t\tiifname "tun0" accept\n'
    assert forward_rules((DOCKER,), of_the_operator) == rules
    listed = '\t\toifname "tun0" counter packets 1 bytes 2 accept comment "podlane"\n'
    assert forward_rules((DOCKER,), listed) == rules.splitlines(keepends=True)[0]
    both = listed + listed.replace("oifname", "iifname")
    assert not forward_rules((DOCKER,), both)


def test_forward_chain_that_accepts_is_left_alone() -> None:
    assert not forward_rules((replace(DOCKER, policy="accept"),), "")
    assert not forward_rules((replace(DOCKER, table="mine"), replace(DOCKER, name="INPUT", hook="input")), "")


def test_foreign_tables_that_drop_forwarded_packets_are_named() -> None:
    foreign = BaseChain("inet", "firewall", "forward", "forward", "drop")
    [chain] = dropping_chains((DOCKER, foreign))
    assert "inet firewall forward" in forward_problem({chain: "policy drop;"})
    assert not dropping_chains((DOCKER, replace(foreign, policy="accept"), replace(foreign, hook="input")))
    assert not forward_problem({})


def test_foreign_chain_that_accepts_packets_of_pods_is_no_problem() -> None:
    rules = ['iifname "tun0" accept', 'oifname "tun0" accept']
    chain = ("inet", "firewall", "forward")
    assert not forward_problem({chain: "\n".join(rules)})
    assert forward_problem({chain: rules[0]})
