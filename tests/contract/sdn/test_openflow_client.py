"""The OpenFlow client and a real switch: flows are read back as written, and no change is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.process import run
from reconcile.errors import NotReady, Refused
from sdn.drivers.openflow.bridge_state import DiffCount
from sdn.drivers.openflow.client import OpenFlowClient
from sdn.drivers.openflow.messages import UnknownFlow
from sdn.model import match as f
from sdn.model.flow import (
    Action,
    Bucket,
    Flow,
    FlowSet,
    Goto,
    Group,
    GroupAction,
    Learn,
    Output,
    OutputInPort,
    RegLoad,
    RegMove,
    SetField,
)
from sdn.model.match import Field, FieldMatch, Match
from sdn.pipeline.cookies import service_cookie
from sdn.pipeline.flows import BRIDGE_LAYOUT, Partition
from sdn.pipeline.tables import Table
from tests.testbed import frames
from tests.testbed.trace.dummy_switch import DummySwitch
from tests.testbed.wait import wait_until

DEADLINE_SECONDS = 10.0

ANYWHERE = (f.REG0, f.REG1, f.REG2, f.TUN_ID, f.TUN_SRC, f.TUN_DST, f.ETH_SRC, f.ETH_DST)
"""Fields that every packet has."""
OF_IP, OF_ARP, OF_UDP = (f.IP_SRC, f.IP_DST), (f.ARP_SPA, f.ARP_TPA, f.ARP_SHA, f.ARP_THA, f.ARP_OP), (f.UDP_DST,)


class Watched:
    """A running driver, and the number of its change notifications."""

    def __init__(self, socket: Path) -> None:
        self.changes = 0
        self._event = asyncio.Event()
        self.driver = OpenFlowClient(socket, BRIDGE_LAYOUT, self._changed)

    async def replace(self, flows: frozenset[Flow]) -> DiffCount:
        return await self.driver.sync(Partition.NODE, FlowSet(flows))

    def _changed(self) -> None:
        self.changes += 1
        self._event.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Look again at every change."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not holds():
                self._event.clear()
                await self._event.wait()


@asynccontextmanager
async def watched(socket: Path) -> AsyncIterator[Watched]:
    client = Watched(socket)
    running = asyncio.create_task(client.driver.run())
    try:
        yield client
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@asynccontextmanager
async def connected(switch: DummySwitch) -> AsyncIterator[Watched]:
    async with watched(switch.rundir / "br0.mgmt") as client:
        await client.until(lambda: client.driver.connected)
        yield client


def ofctl(switch: DummySwitch, verb: str, flow: str, *options: str) -> None:
    switch.ofctl(*options, verb, str(switch.rundir / "br0.mgmt"), flow)


def example_flow(number: int, *actions: Action) -> Flow:
    return Flow(30, 100, f.ip(dst=IPv4Address("10.128.0.0") + number), actions or (Output(1),), number)


EXAMPLE_FLOWS = frozenset(map(example_flow, range(20)))


# What can be written


def numbers(field: Field) -> st.SearchStrategy[int]:
    return st.integers(0, field.all_ones if field != f.ARP_OP else 0xFF)  # Open vSwitch keeps eight bits of it


@st.composite
def field_matches(draw: st.DrawFn, field: Field) -> FieldMatch:
    mask = draw(st.one_of(st.just(field.all_ones), st.integers(1, field.all_ones)))
    return FieldMatch(field, draw(numbers(field)) & mask, mask)


networks = st.builds(
    lambda address, length: IPv4Network((address, length), strict=False), numbers(f.IP_SRC), st.integers(0, 32)
)


@st.composite
def matches(draw: st.DrawFn) -> Match:
    maskable = draw(st.sets(st.sampled_from(ANYWHERE)))
    match = Match(tuple(sorted(draw(field_matches(field)) for field in maskable)))
    if draw(st.booleans()):
        match &= f.in_port(draw(st.integers(1, 0xFEFF)))
    if draw(st.booleans()):
        match &= f.untagged()
    protocols = (
        st.just(Match()),
        st.builds(f.ip, networks, networks),
        st.builds(f.dst_port, st.just(17), numbers(f.UDP_DST)),
        st.builds(f.arp, st.sampled_from((None, 1, 2)), networks, networks, st.none() | numbers(f.ARP_SHA)),
    )
    return match & draw(st.one_of(protocols))


def writable(match: Match) -> tuple[Field, ...]:
    kinds = {field_match.value for field_match in match.fields if field_match.field == f.ETH_TYPE}
    is_udp = any(field_match.field == f.IP_PROTO for field_match in match.fields)
    of_protocol = (OF_IP if f.ETH_IPV4 in kinds else ()) + (OF_ARP if f.ETH_ARP in kinds else ())
    return ANYWHERE + of_protocol + (OF_UDP if is_udp else ())


@st.composite
def loads(draw: st.DrawFn, fields: tuple[Field, ...]) -> RegLoad:
    field = draw(st.sampled_from(fields))
    bits = draw(st.integers(1, min(field.bits - 1, 64)))
    return RegLoad(field, draw(st.integers(0, field.bits - bits)), bits, draw(st.integers(0, (1 << bits) - 1)))


@st.composite
def moves(draw: st.DrawFn, fields: tuple[Field, ...]) -> RegMove:
    source, target = draw(st.sampled_from(fields)), draw(st.sampled_from(fields))
    return RegMove(source, target, draw(st.integers(1, min(source.bits, target.bits))))


@st.composite
def flows(draw: st.DrawFn) -> Flow:
    match = draw(matches())
    fields = writable(match)
    steps: st.SearchStrategy[Action] = st.one_of(
        st.builds(Output, st.integers(1, 0xFEFF)),
        st.just(OutputInPort()),
        st.sampled_from(fields).flatmap(lambda field: st.builds(SetField, st.just(field), numbers(field))),
        loads(fields),
        moves(fields),
    )
    actions = tuple(draw(st.lists(steps, max_size=6)))
    table = draw(st.integers(0, 252))
    if draw(st.booleans()):
        actions += (Goto(draw(st.integers(table + 1, 253))),)
    return Flow(
        table,
        draw(st.integers(0, 0xFFFF)),
        match,
        actions,
        draw(st.integers(0, (1 << 64) - 2)) & ~(1 << 34),
    )


def last_of_each_key(flows: list[Flow]) -> frozenset[Flow]:
    return frozenset({flow.key: flow for flow in flows}.values())


@given(st.lists(flows(), min_size=1, max_size=30).map(last_of_each_key))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_flow_is_read_back_as_written(lasting_switch: DummySwitch, written: frozenset[Flow]) -> None:
    lasting_switch.replace(written)
    assert lasting_switch.read() == written
    assert not lasting_switch.replace(written)


@pytest.mark.parametrize(("limit", "learned"), [(0, 5), (2, 2)])
def test_switch_learns_flows_up_to_their_limit(switch: DummySwitch, limit: int, learned: int) -> None:
    table = int(Table.USED_ENDPOINTS)
    learn = Learn(table, 7, service_cookie(), 600, None, ((f.REG6, 1),), of_destination=True, limit=limit)
    flows = frozenset({Flow(0, 1, f.ip(), (learn,))})
    switch.replace(flows)
    switch.add_ports({"p1": 1})
    receivers = [IPv4Address("192.0.2.0") + number for number in range(5)]
    packets = [frames.udp(IPv4Address("10.128.0.1"), receiver, b"") for receiver in receivers]
    received = [frames.ethernet(2, 4, frames.IPV4, packet).hex() for packet in packets]
    run("ovs-appctl", "-t", str(switch.rundir / "ovs-vswitchd.ctl"), "netdev-dummy/receive", "p1", *received)
    socket = str(switch.rundir / "br0.mgmt")
    wait_until(lambda: "n_packets=5," in switch.ofctl("dump-flows", socket, "table=0"), "the packets")
    assert switch.ofctl("dump-flows", socket, f"table={table}").count("idle_timeout=600") == learned
    assert switch.read() == flows


# What others write

STRANGERS = (
    "priority=7,ip,nw_ttl=3,actions=flood",
    "priority=8,ip,idle_timeout=600,actions=output:1",
    "priority=9,hard_timeout=600,actions=drop",
    "priority=10,ipv6,ipv6_src=2001:db8::/32,actions=normal",
    "priority=11,tcp,tcp_flags=+syn-ack,actions=controller",
    "priority=12,dl_vlan=5,actions=pop_vlan,output:1",
    "priority=13,vlan_tci=0x1000/0x1000,actions=output:1",
    "priority=14,mpls,mpls_label=3,actions=pop_mpls:0x0800,output:1",
    "priority=15,ip,ct_state=+trk+est,ct_zone=7,actions=ct(commit,zone=7,nat)",
    "priority=16,actions=learn(table=9,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])",
    "priority=17,actions=resubmit(,20)",
    "priority=18,ip,actions=conjunction(3,1/2)",
    "priority=19,conj_id=3,ip,actions=output:1",
    "priority=20,xreg0=5,xxreg1=6,reg7=1,metadata=8,pkt_mark=9,actions=load:1->NXM_NX_XXREG2[0..63]",
    "priority=21,ip,actions=move:NXM_OF_IP_SRC[8..15]->NXM_NX_REG0[16..23]",
    "priority=22,actions=note:00.01.02,output:1",
    "priority=23,actions=write_actions(output:1)",
    "priority=24,actions=write_metadata:5,goto_table:50",
    "priority=25,actions=set_field:5/7->reg0",
    "priority=26,actions=push_vlan:0x8100,mod_vlan_vid:5,output:1",
    "priority=27,actions=multipath(eth_src,50,modulo_n,1,0,NXM_NX_REG0[])",
    "priority=28,actions=bundle(eth_src,0,active_backup,ofport,members:1)",
    "priority=29,icmp6,icmp_type=135,nd_target=2001:db8::1,actions=drop",
    "priority=30,sctp,tp_dst=9,actions=dec_ttl,output:LOCAL",
    "priority=31,in_port=LOCAL,actions=output:NXM_NX_REG0[]",
    "priority=32,actions=push:NXM_NX_REG0[],pop:NXM_NX_REG1[]",
    "priority=33,ip,nw_tos=4,ip_frag=later,actions=enqueue:1:2",
    "priority=34,tun_flags=oam,actions=drop",
    "priority=35,ip,nw_src=10.0.0.1/255.0.255.0,actions=drop",
    "priority=36,dl_type=0x88cc,actions=drop",
    "priority=37,actions=sample(probability=1,collector_set_id=1)",
    "priority=38,actions=check_pkt_larger(1400)->NXM_NX_REG0[0]",
    "priority=39,actions=output(port=1,max_len=64)",
    "priority=40,importance=3,ip,actions=clone(output:1)",
)


@pytest.mark.parametrize("table", [0, 30, 253])
def test_foreign_flows_are_read_and_removed(switch: DummySwitch, table: int) -> None:
    switch.replace(EXAMPLE_FLOWS)
    for stranger in STRANGERS:
        ofctl(switch, "add-flow", f"table={table},{stranger.replace('goto_table:50', 'goto_table:254')}")
    actual = switch.read()
    assert actual >= EXAMPLE_FLOWS
    assert len(actual) == len(EXAMPLE_FLOWS) + len(STRANGERS)
    assert any(isinstance(flow, UnknownFlow) for flow in actual)
    assert switch.replace(EXAMPLE_FLOWS) == DiffCount(0, len(STRANGERS))
    assert switch.read() == EXAMPLE_FLOWS


def test_flow_changed_by_others_is_rewritten(switch: DummySwitch) -> None:
    switch.replace(EXAMPLE_FLOWS)
    ofctl(switch, "mod-flows", "table=30,ip,nw_dst=10.128.0.1,actions=output:99")
    assert switch.replace(EXAMPLE_FLOWS) == DiffCount(1, 0)
    assert switch.read() == EXAMPLE_FLOWS


def test_flow_with_other_actions_replaces_the_old_one(switch: DummySwitch) -> None:
    switch.replace(EXAMPLE_FLOWS)
    changed = EXAMPLE_FLOWS - {example_flow(3)} | {example_flow(3, Output(7))}
    assert switch.replace(changed) == DiffCount(1, 0)
    assert switch.read() == changed


def test_deleting_one_flow_keeps_its_neighbours(switch: DummySwitch) -> None:
    wide, narrow = f.ip(dst=IPv4Network("10.128.0.0/14")), f.ip(dst=IPv4Address("10.128.0.1"))
    rows = {Flow(30, priority, match, (Output(1),)) for priority in (5, 6) for match in (Match(), f.ip(), wide, narrow)}
    switch.replace(frozenset(rows))
    for flow in sorted(rows, key=str):
        rows.remove(flow)
        assert switch.replace(frozenset(rows)) == DiffCount(0, 1)
        assert switch.read() == rows


# What the switch refuses

IMPOSSIBLE = Flow(30, 7, f.ip(dst=IPv4Address("10.128.0.9")), (SetField(f.IN_PORT, 3), Output(0xFFFFFF00)))


async def test_rejected_flow_is_named_and_retried(switch: DummySwitch) -> None:
    async with connected(switch) as client:
        await client.replace(EXAMPLE_FLOWS)
        for _ in range(2):
            with pytest.raises(Refused, match=r"nw_dst=10\.128\.0\.9.*flows are as they were"):
                await client.replace(EXAMPLE_FLOWS - {example_flow(1)} | {IMPOSSIBLE})
        assert await client.replace(EXAMPLE_FLOWS | {example_flow(21)}) == DiffCount(1, 0)
        assert await client.driver.read() == EXAMPLE_FLOWS | {example_flow(21)}


async def test_flow_rejected_at_commit_is_named(switch: DummySwitch) -> None:
    """A full table is noticed only when the bundle is carried out."""
    switch.vsctl(
        *("--", "--id=@t", "create", "flow_table", "flow_limit=20", "overflow_policy=refuse"),
        *("--", "set", "bridge", "br0", "flow_tables:30=@t"),
    )
    async with connected(switch) as client:
        await client.replace(EXAMPLE_FLOWS)
        with pytest.raises(Refused, match=r"nw_dst=10\.128\.0\.2[01] .*flows are as they were"):
            await client.replace(EXAMPLE_FLOWS - {example_flow(1)} | {example_flow(20), example_flow(21)})
        assert await client.driver.read() == EXAMPLE_FLOWS
        assert await client.replace(EXAMPLE_FLOWS - {example_flow(1)} | {example_flow(20)}) == DiffCount(1, 1)


# Coming, going, and what others do meanwhile


async def test_flow_monitor_reports_foreign_changes_only(switch: DummySwitch) -> None:
    async with connected(switch) as client:
        before = client.changes
        await client.replace(EXAMPLE_FLOWS)
        await client.replace(EXAMPLE_FLOWS - {example_flow(1)})
        await client.driver.read()
        assert client.changes == before
        ofctl(switch, "del-flows", "table=30,priority=100,ip,nw_dst=10.128.0.2", "--strict")
        await client.until(lambda: client.changes > before)
        assert await client.replace(EXAMPLE_FLOWS) == DiffCount(2, 0)


SERVICE_FLOWS = FlowSet(
    frozenset(
        Flow(21, 200, f.ip(dst=IPv4Address("172.30.0.1") + n), (GroupAction(7),), service_cookie(7)) for n in range(5)
    ),
    frozenset({Group(7, (Bucket(1, (Output(3),)), Bucket(1, (Output(4),))))}),
)


@pytest.mark.parametrize("words", [("del-flows", "cookie=0x500000000/0xff00000000"), ("del-groups", "group_id=7")])
async def test_restore_writes_the_flows_and_groups_of_the_other_partition(
    switch: DummySwitch, words: tuple[str, str]
) -> None:
    async with connected(switch) as client:
        await client.driver.sync(Partition.SERVICE, SERVICE_FLOWS)
        await client.replace(EXAMPLE_FLOWS)
        assert await client.driver.restore() == DiffCount(0, 0)
        before = client.changes
        ofctl(switch, *words)
        await client.until(lambda: client.changes > before)
        assert await client.replace(EXAMPLE_FLOWS) == DiffCount(0, 0)
        restored = await client.driver.restore()
        assert restored.added >= 5
        assert await client.driver.read() == EXAMPLE_FLOWS | SERVICE_FLOWS.flows
        assert "group_id=7" in switch.ofctl("dump-groups", str(switch.rundir / "br0.mgmt"))


async def test_missing_switch_is_an_error(tmp_path: Path) -> None:
    async with watched(tmp_path / "br0.mgmt") as client:
        await client.until(lambda: "is not there" in client.driver.unreachable_reason)
        with pytest.raises(NotReady, match="is not there"):
            await client.replace(EXAMPLE_FLOWS)
        with pytest.raises(NotReady):
            await client.driver.read()


async def test_restarted_switch_is_reported_and_has_no_flows(switch: DummySwitch) -> None:
    async with connected(switch) as client:
        await client.replace(EXAMPLE_FLOWS)
        switch.kill_vswitchd()
        await client.until(lambda: not client.driver.connected)
        with pytest.raises(NotReady):
            await client.replace(EXAMPLE_FLOWS)
        switch.start_vswitchd()
        await client.until(lambda: client.driver.connected)
        assert await client.replace(EXAMPLE_FLOWS) == DiffCount(len(EXAMPLE_FLOWS), 0)


async def test_recreated_bridge_is_found(switch: DummySwitch) -> None:
    async with connected(switch) as client:
        await client.replace(EXAMPLE_FLOWS)
        switch.vsctl("del-br", "br0")
        await client.until(lambda: not client.driver.connected)
        switch.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy")
        await client.until(lambda: client.driver.connected)
        assert (await client.replace(EXAMPLE_FLOWS)).added == len(EXAMPLE_FLOWS)
        assert await client.driver.read() == EXAMPLE_FLOWS


async def test_bridge_with_other_openflow_versions_is_reported(switch: DummySwitch) -> None:
    switch.vsctl("set", "bridge", "br0", "protocols=OpenFlow10,OpenFlow13")
    async with watched(switch.rundir / "br0.mgmt") as client:
        await client.until(lambda: "1.4" in client.driver.unreachable_reason)
        with pytest.raises(NotReady, match=r"OpenFlow 1\.4"):
            await client.replace(EXAMPLE_FLOWS)
        switch.vsctl("clear", "bridge", "br0", "protocols")
        await client.until(lambda: client.driver.connected)


# Whatever comes down the socket

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def impostor(socket: Path, answer: Answer) -> AsyncIterator[None]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await answer(reader, writer)
        writer.close()

    server = await asyncio.start_unix_server(serve, socket)
    try:
        yield
    finally:
        server.close()


async def test_closed_switch_connection_is_reopened_at_once(tmp_path: Path) -> None:
    calls = 0

    async def hang_up(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1

    async with impostor(tmp_path / "br0.mgmt", hang_up), watched(tmp_path / "br0.mgmt"):
        async with asyncio.timeout(DEADLINE_SECONDS / 2):
            while calls < 5:
                await asyncio.sleep(0.01)


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_malformed_messages_do_not_crash_the_client(tmp_path_factory: pytest.TempPathFactory, nonsense: bytes) -> None:
    folder = tmp_path_factory.mktemp("nonsense")

    async def talk() -> None:
        answered = asyncio.Event()

        async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(nonsense)
            writer.write_eof()
            await writer.drain()
            answered.set()

        async with impostor(folder / "s", speak), watched(folder / "s") as client:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await answered.wait()
            with pytest.raises(NotReady):
                await client.replace(EXAMPLE_FLOWS)

    asyncio.run(talk())
