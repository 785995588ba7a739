"""What the switch holds for services: properties of every set of ports and of every change."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

from hypothesis import given
from hypothesis import strategies as st

from sdn.flow import Flow, Goto, Rows, ToGroup, Track
from sdn.flows import compile_flows, is_of_services
from sdn.match import REG0
from sdn.services.calls import ended_calls
from sdn.services.rows import HASH_VALUES, Board
from sdn.services.served_port import Backend, PortChange, PortKey, Protocol, ServedPort
from sdn.view import Cluster, Node, Peer, View

NODE = Node("node-1", IPv4Address("10.245.2.3"), IPv4Network("10.128.0.0/23"))
CLUSTER = Cluster((IPv4Network("10.128.0.0/14"),), IPv4Network("172.30.0.0/16"), True, 4789, 1450)
VIEW = View(CLUSTER, NODE, frozenset({Peer("b", IPv4Address("10.245.2.4"), IPv4Network("10.128.2.0/23"))}), frozenset())

backends = st.lists(
    st.builds(Backend, st.integers(2, 9).map(lambda n: IPv4Address("10.128.0.0") + n), st.sampled_from((80, 8080))),
    max_size=4,
    unique=True,
).map(tuple)


@st.composite
def port_sets(draw: st.DrawFn) -> dict[PortKey, ServedPort]:
    """Ports with fronts of their own; outside addresses and backends may be shared."""
    found = {}
    for number in draw(st.sets(st.integers(1, 6))):
        key = PortKey("red", f"s{number}", "", draw(st.sampled_from(list(Protocol))))
        outside = draw(st.sets(st.sampled_from((IPv4Address("172.29.0.1"), IPv4Address("172.29.0.2")))))
        found[key] = ServedPort(
            key,
            vnid=draw(st.sampled_from((0, 10))),
            cluster_ip=draw(st.none() | st.just(IPv4Address("172.30.0.0") + number)),
            port=100 + number,
            node_port=draw(st.sampled_from((0, 30000 + number))),
            outside_ips=tuple(sorted(outside)),
            inside=draw(backends),
            everywhere=draw(backends),
            affinity_seconds=draw(st.sampled_from((0, 10800))),
        )
    return found


@given(port_sets(), port_sets())
def test_a_change_leads_to_what_a_fresh_start_would(
    before: dict[PortKey, ServedPort], after: dict[PortKey, ServedPort]
) -> None:
    board = Board(NODE)
    held = board.replace(before.values())
    gone = tuple(port for key, port in before.items() if after.get(key) != port)
    come = tuple(port for key, port in after.items() if before.get(key) != port)
    closed, opened = board.edit(PortChange(gone, come))
    assert closed.flows <= held.flows
    changed = Rows(held.flows - closed.flows | opened.flows, held.groups - closed.groups | opened.groups)
    assert changed == board.rows() == Board(NODE).replace(after.values())


@given(port_sets())
def test_no_row_stands_in_the_place_of_another_and_all_lead_somewhere(ports: dict[PortKey, ServedPort]) -> None:
    rows = Board(NODE).replace(ports.values())
    every = rows.flows | compile_flows(VIEW)
    assert len({flow.row for flow in every}) == len(every)
    assert all(map(is_of_services, rows.flows))
    groups = {group.number for group in rows.groups}
    assert len(groups) == len(rows.groups)
    led = {action.group for flow in rows.flows for action in flow.actions if isinstance(action, ToGroup)}
    assert led == groups


@given(port_sets())
def test_only_the_lane_and_vnid_0_get_to_backends(ports: dict[PortKey, ServedPort]) -> None:
    for port in ports.values():
        for flow in Board(NODE).replace([port]).flows:
            if _leads_on(flow) and flow.table == 13:
                asked = {one.value for one in flow.match.fields if one.field == REG0}
                assert asked <= {0, port.vnid}
                assert asked or port.vnid == 0


def _leads_on(flow: Flow) -> bool:
    return any(isinstance(action, ToGroup | Track | Goto) for action in flow.actions)


def web(*addresses: str, protocol: Protocol = Protocol.TCP) -> ServedPort:
    there = tuple(Backend(IPv4Address(address), 8080) for address in addresses)
    return ServedPort(
        PortKey("red", "web", "", protocol), 10, IPv4Address("172.30.0.1"), 80, 30080, (), there, there, there
    )


def test_a_change_of_backends_is_a_change_of_one_group() -> None:
    before, after = web("10.128.0.2", "10.128.0.3"), web("10.128.0.2", "10.128.0.3", "10.128.0.4")
    board = Board(NODE)
    board.replace([before])
    gone, come = board.edit(PortChange((before,), (after,)))
    assert not gone.flows
    assert not come.flows
    assert [group.number for group in gone.groups] == [group.number for group in come.groups]


def test_the_hash_is_dealt_out_evenly() -> None:
    for count in range(2, 17):
        [group] = Board(NODE).replace([web(*(f"10.128.0.{2 + n}" for n in range(count)))]).groups
        weights = [bucket.weight for bucket in group.buckets]
        assert HASH_VALUES // 2 < sum(weights) <= HASH_VALUES
        assert len(set(weights[:-1])) == 1


def test_ports_whose_names_have_the_same_checksum_get_groups_of_their_own() -> None:
    """CRC-32 of `plumless` and `buckeroo` is the same."""
    ports = [
        replace(web("10.128.0.2", "10.128.0.3"), key=PortKey("red", name, "", Protocol.TCP), cluster_ip=address)
        for name, address in (("plumless", IPv4Address("172.30.0.1")), ("buckeroo", IPv4Address("172.30.0.2")))
    ]
    alone = {group.number for port in ports for group in Board(NODE).replace([port]).groups}
    assert len(alone) == 1
    assert len({group.number for group in Board(NODE).replace(ports).groups}) == 2


def test_datagrams_leave_backends_that_have_gone_and_no_others() -> None:
    before = web("10.128.0.2", "10.128.0.3", protocol=Protocol.UDP)
    after = web("10.128.0.3", protocol=Protocol.UDP)
    ended = ended_calls(PortChange((before,), (after,)))
    assert {(call.address, call.port, str(call.backend)) for call in ended} == {
        (IPv4Address("172.30.0.1"), 80, "10.128.0.2"),
        (None, 30080, "10.128.0.2"),
    }
    assert not ended_calls(PortChange((web("10.128.0.2"),), ()))
