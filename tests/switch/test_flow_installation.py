"""Flows on a real switch: it accepts them, returns them, and answers ARP."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from reconcile.errors import Refused
from sdn.drivers.openflow.bridge_state import DiffCount
from sdn.model.flow import Flow, Output, SetField
from sdn.model.match import IN_PORT, IP_DST, field_equals, ip
from sdn.pipeline.compiler import compile_flows
from sdn.topology import NodeNetwork, Peer, Pod, mac_of
from tests.testbed import frames
from tests.testbed.isolation.world import reaches
from tests.testbed.trace.dummy_switch import DummySwitch
from tests.testbed.trace.trace_world import TraceWorld, build


def network_with_pods(multitenant: bool = True) -> NodeNetwork:
    return build(multitenant)[0]["node-1"]


def test_switch_returns_the_flows_written(switch: DummySwitch) -> None:
    flows = compile_flows(network_with_pods())
    assert switch.replace(flows) == DiffCount(len(flows), 0)
    assert switch.read() == flows


def test_writing_the_same_flows_again_changes_nothing(switch: DummySwitch) -> None:
    flows = compile_flows(network_with_pods())
    switch.replace(flows)
    assert not switch.replace(flows)


def test_only_changed_flows_are_written_and_counters_are_kept(switch: DummySwitch) -> None:
    before = network_with_pods()
    newcomer = Pod(99, before.node.subnet.network_address + 99, 10)
    after = replace(before, pods=before.pods | {newcomer}, peers=frozenset())
    switch.replace(compile_flows(before))
    change = switch.replace(compile_flows(after))
    assert (change.added, change.removed) == (9, 3)
    assert switch.read() == compile_flows(after)


def test_foreign_flows_are_removed(switch: DummySwitch) -> None:
    flows = compile_flows(network_with_pods())
    switch.replace(flows)
    socket = str(switch.rundir / "br0.mgmt")
    switch.ofctl("add-flow", socket, "table=0,priority=65535,ip,nw_ttl=3,actions=flood")
    switch.ofctl("add-flow", socket, "table=70,priority=65535,idle_timeout=500,ip,actions=output:1")
    switch.ofctl("--strict", "del-flows", socket, "table=40,priority=0,ip")
    assert switch.replace(flows) == DiffCount(1, 2)
    assert switch.read() == flows


def test_rejected_flow_is_named_and_no_flow_is_changed(switch: DummySwitch) -> None:
    flows = compile_flows(network_with_pods())
    switch.replace(flows)
    bad = Flow(30, 7, ip(dst=IPv4Address("10.128.0.9")), (SetField(IN_PORT, 3), Output(0xFFFFFF00)))
    with pytest.raises(Refused, match=re.escape("nw_dst=10.128.0.9")):
        switch.replace(flows - {next(iter(flows))} | {bad})
    assert switch.read() == flows


def test_restarted_switch_gets_all_flows_back(switch: DummySwitch) -> None:
    flows = compile_flows(network_with_pods())
    switch.replace(flows)
    switch.kill_vswitchd()
    switch.start_vswitchd()
    assert switch.replace(flows) == DiffCount(len(flows), 0)


def test_flows_of_five_hundred_peers_and_a_hundred_pods_are_installed(switch: DummySwitch) -> None:
    small = network_with_pods()
    peers = frozenset(
        Peer(f"n{n}", IPv4Address("10.246.0.0") + n, IPv4Network((0x0A810000 + 512 * n, 23))) for n in range(256)
    )
    pods = frozenset(Pod(100 + n, small.node.subnet.network_address + 100 + n, 10 + n % 7) for n in range(100))
    flows = compile_flows(replace(small, peers=peers, pods=pods))
    switch.replace(flows)
    assert switch.read() == flows


def test_flat_network_lets_every_pod_reach_every_pod(flat_world: TraceWorld) -> None:
    for source in flat_world.pods:
        for target in flat_world.pods:
            assert source == target or reaches(flat_world, source, target)


@pytest.mark.parametrize("name", ["red-b", "red-c", "blue-a", "blue-b"])
def test_arp_request_is_answered_with_the_mac_of_the_address(world: TraceWorld, name: str) -> None:
    red, other = world.pods["red-a"], world.pods[name]
    body = frames.arp(1, red.mac, red.address, other.address, b"")
    frame = frames.ethernet(frames.BROADCAST_MAC, red.mac, frames.ARP, body)
    text = world.switches["node-1"].trace(f"in_port={world.ports['red-a']}", frame)
    final = next(line for line in text.splitlines() if line.startswith("Final flow:"))
    mac = mac_of(other.address).to_bytes(6, "big").hex(":")
    for part in (f"arp_sha={mac}", f"arp_spa={other.address}", f"arp_tpa={red.address}", "arp_op=2", f"dl_src={mac}"):
        assert part in final, text
    assert "IN_PORT" in text


@pytest.mark.parametrize("address", ["10.128.0.200", "198.51.100.1", "10.128.0.2"])
def test_arp_request_for_unknown_external_or_own_address_is_not_answered(world: TraceWorld, address: str) -> None:
    red = world.pods["red-a"]
    assert str(red.address) == "10.128.0.2"
    body = frames.arp(1, red.mac, red.address, IPv4Address(address), b"")
    frame = frames.ethernet(frames.BROADCAST_MAC, red.mac, frames.ARP, body)
    text = world.switches["node-1"].trace(f"in_port={world.ports['red-a']}", frame)
    assert text.rstrip().endswith("Datapath actions: drop"), text


def test_address_match_without_its_protocol_is_rejected() -> None:
    with pytest.raises(ValueError, match="needs its protocol"):
        field_equals(IP_DST, int(IPv4Address("10.128.0.2")))


def test_multicast_flows_for_five_thousand_peers_are_installed(switch: DummySwitch) -> None:
    """An action list that names all of them in one flow would not fit into a message."""
    base = IPv4Address("10.32.0.1")
    peers = frozenset(Peer(f"n{n}", base + n, IPv4Network((0x0B000000 + 256 * n, 24))) for n in range(5000))
    flows = compile_flows(replace(network_with_pods(), peers=peers, multicast=frozenset({10})))
    switch.replace(flows)
    assert switch.read() == flows
