"""Multicast: copies to peers, spread over tables."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest

from sdn.drivers.openflow.messages import FlowCommand, flow_mod
from sdn.model.flow import Goto, SetField
from sdn.pipeline.multicast import multicast_tunnel_flows
from sdn.topology import Peer

# --- multicast --------------------------------------------------------------------------------------------------------


def many(count: int) -> frozenset[Peer]:
    base = IPv4Address("10.32.0.1")
    return frozenset(Peer(f"n{n}", base + n, IPv4Network((0x0B000000 + 256 * n, 24))) for n in range(count))


@pytest.mark.parametrize(
    ("peers", "tables"), [(0, []), (1, [41]), (1500, [41]), (1501, [41, 42]), (5000, [41, 42, 43, 44])]
)
def test_multicast_copies_each_packet_once_per_peer_within_the_flow_size(peers: int, tables: list[int]) -> None:
    flows = sorted(multicast_tunnel_flows(many(peers)), key=lambda flow: flow.table)
    assert [flow.table for flow in flows] == tables
    targets = [action.value for flow in flows for action in flow.actions if isinstance(action, SetField)]
    assert len(targets) == len(set(targets)) == peers
    assert all(len(flow_mod(FlowCommand.ADD, flow, 1)) < 2**16 - 64 for flow in flows)
    assert [flow.actions[-1] for flow in flows] == [Goto(table) for table in [*tables[1:], 70]][: len(flows)]


def test_multicast_omits_peers_beyond_all_its_tables() -> None:
    assert {flow.table for flow in multicast_tunnel_flows(many(20_000))} == set(range(41, 49))
