"""Flows, actions, groups and flow sets as values, in the text that `ovs-ofctl` prints. Pure.

`goto` only moves forward. Values are whole numbers; nothing here knows the meaning of a table or a register.

What exists a hundred thousand times is a Struct: it is made, hashed and compared several times as fast as a dataclass.
`gc=False` spares the garbage collector values that cannot refer to themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address

from msgspec import Struct

from sdn.model.match import Field, Match, value_text


class Output(Struct, frozen=True, gc=False):
    """An action that sends the packet out of an OpenFlow port, but never back to the port from which it came."""

    port: int

    def __str__(self) -> str:
        return f"output:{self.port}"


class OutputInPort(Struct, frozen=True, gc=False):
    """An action that sends the packet back to the port from which it came."""

    def __str__(self) -> str:
        return "IN_PORT"


class SetField(Struct, frozen=True, gc=False):
    """An action that writes a whole field."""

    field: Field
    value: int

    def __str__(self) -> str:
        return f"set_field:{value_text(self.field, self.value)}->{self.field.name}"


class RegLoad(Struct, frozen=True, gc=False):
    """An action that writes the `bits` bits of a field that begin at bit `low` (0 is the least significant)."""

    field: Field
    low: int
    bits: int
    value: int

    def __str__(self) -> str:
        return f"load:{self.value:#x}->{self.field.name}[{self.low}..{self.low + self.bits - 1}]"


class RegMove(Struct, frozen=True, gc=False):
    """An action that copies `bits` bits from bit 0 of one field to bit 0 of another."""

    source: Field
    target: Field
    bits: int

    def __str__(self) -> str:
        if self.bits == self.source.bits == self.target.bits:
            return f"move:{self.source.name}->{self.target.name}"
        last = self.bits - 1
        return f"move:{self.source.name}[0..{last}]->{self.target.name}[0..{last}]"


class Goto(Struct, frozen=True, gc=False):
    """An action that continues in a later table; always the last action."""

    table: int

    def __str__(self) -> str:
        return f"goto_table:{self.table}"


class Ct(Struct, frozen=True, gc=False):
    """An action that looks the packet up in a conntrack zone, applies the connection's NAT, and continues in a table.

    With `commit`, a packet without a connection begins one, with DNAT to `dst` and `port` or SNAT to `src`. Without
    `commit`, such a packet continues unchanged.
    """

    zone: int
    table: int
    commit: bool = False
    dst: IPv4Address | None = None
    port: int = 0
    src: IPv4Address | None = None

    def __str__(self) -> str:
        end = f":{self.port}" if self.port else ""
        nat = f"(dst={self.dst}{end})" if self.dst else f"(src={self.src})" if self.src else ""
        return f"ct({'commit,' if self.commit else ''}table={self.table},zone={self.zone},nat{nat})"


class GroupAction(Struct, frozen=True, gc=False):
    """An action that executes one bucket of a group."""

    group: int

    def __str__(self) -> str:
        return f"group:{self.group}"


class Resubmit(Struct, frozen=True, gc=False):
    """An action that executes the matching flow of another table, if there is one, then continues here."""

    table: int

    def __str__(self) -> str:
        return f"resubmit(,{self.table})"


class Multipath(Struct, frozen=True, gc=False):
    """An action that writes a number below `choices` to a register, by a hash of the addresses and ports."""

    choices: int
    target: Field

    def __str__(self) -> str:
        return f"multipath(symmetric_l3l4+udp,0,modulo_n,{self.choices},0,{self.target.name}[])"


class Learn(Struct, frozen=True, gc=False):
    """An action that adds a flow: IPv4 packets of one source, with `key` in a register, get `loads` in others.

    The source is that of the packet, or its destination (`of_destination`). Without `key`, registers do not matter. The
    flow expires when no packet has matched it for `idle_seconds` (at most 65,535). With `limit`, no flow is added while
    the table has that many with this cookie.
    """

    table: int
    priority: int
    cookie: int
    idle_seconds: int
    key: tuple[Field, int] | None
    loads: tuple[tuple[Field, int], ...]
    of_destination: bool = False
    limit: int = 0

    def __str__(self) -> str:
        limit = f"limit={self.limit}," if self.limit else ""
        source = "nw_src=nw_dst[]" if self.of_destination else "nw_src[]"
        key = f"{self.key[0].name}={self.key[1]:#x}," if self.key is not None else ""
        loads = ",".join(f"load:{value:#x}->{target.name}[]" for target, value in self.loads)
        return (
            f"learn(table={self.table},idle_timeout={self.idle_seconds},priority={self.priority},"
            f"cookie={self.cookie:#x},{limit}eth_type=0x800,{source},{key}{loads})"
        )


Action = Output | OutputInPort | SetField | RegLoad | RegMove | Goto | Ct | GroupAction | Resubmit | Multipath | Learn


class Flow(Struct, frozen=True, gc=False, cache_hash=True):
    """A flow of one table. Without actions it drops the packet.

    `cookie` tells the owner of the flow. The switch holds one flow for each `key`.
    """

    table: int
    priority: int
    match: Match
    actions: tuple[Action, ...] = ()
    cookie: int = 0

    def __post_init__(self) -> None:
        for action in self.actions[:-1]:
            if isinstance(action, Goto):
                raise ValueError(f"goto_table:{action.table} is not the last action")
        last = self.actions[-1] if self.actions else None
        if isinstance(last, Goto | Ct) and last.table <= self.table:
            raise ValueError(f"table {self.table} cannot go back to table {last.table}")

    @property
    def key(self) -> tuple[int, int, Match]:
        """Table, priority and match: a flow with the same key replaces this one."""
        return self.table, self.priority, self.match

    def __str__(self) -> str:
        match = f",{self.match}" if self.match.fields else ""
        actions = ",".join(map(str, self.actions)) or "drop"
        return f"table={self.table},priority={self.priority}{match} actions={actions}"


class Bucket(Struct, frozen=True, gc=False):
    """One alternative of a group; `weight` is its share of the connections."""

    weight: int
    actions: tuple[Action, ...]

    def __str__(self) -> str:
        return f"bucket=weight:{self.weight},actions={','.join(map(str, self.actions))}"


class Group(Struct, frozen=True, gc=False):
    """A group of type `select`: each connection gets one bucket, by a hash of its addresses and ports.

    If the sum of weights is at most 64 times the smallest, Open vSwitch distributes up to 64 hash values over the
    buckets; otherwise it hashes each connection for each bucket (group type `select` in ovs-ofctl(8)).
    """

    number: int
    buckets: tuple[Bucket, ...]

    def __hash__(self) -> int:
        """Hash the number only, because tens of thousands of groups are hashed, and their numbers differ."""
        return self.number

    def __str__(self) -> str:
        return f"group_id={self.number},type=select,{','.join(map(str, self.buckets))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeLayout:
    """The division of a bridge's flows and groups into partitions, each of which one part of the daemon writes.

    `partition_of` returns the partition of a flow. `unknown_flows` is the partition whose sync deletes flows that the
    pipeline never writes. `groups` is the partition that has all groups. The switch itself writes the flows of
    `learned_tables` that expire.

    A bridge with the flow `previous_version_flow` is as the previous version left it. `renumbered_flow` and
    `renumbered_group` return what a flow or a group of that version has to become in today's tables, and leave those
    of today as they are. `transition_flows` lead from tables that only that version has to those of today.
    """

    partition_of: Callable[[Flow], str]
    unknown_flows: str
    groups: str
    learned_tables: frozenset[int]
    previous_version_flow: Flow
    renumbered_flow: Callable[[Flow], Flow]
    renumbered_group: Callable[[Group], Group]
    transition_flows: frozenset[Flow]


@dataclass(frozen=True, slots=True)
class FlowSet:
    """Flows, and the groups that they use."""

    flows: frozenset[Flow] = frozenset()
    groups: frozenset[Group] = frozenset()

    def __or__(self, other: FlowSet) -> FlowSet:
        return FlowSet(self.flows | other.flows, self.groups | other.groups)
