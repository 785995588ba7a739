"""A flow as a value: what it matches, what becomes of the packet, and its text as `ovs-ofctl` would print it.

`goto` only moves forward. Values are whole numbers; nothing here knows the meaning of a table or a register.
"""

from __future__ import annotations

from dataclasses import dataclass

from sdn.match import Field, Match, value_text


@dataclass(frozen=True, slots=True)
class Output:
    """Send the packet out of an OpenFlow port. Open vSwitch never sends it back to where it came from."""

    port: int

    def __str__(self) -> str:
        return f"output:{self.port}"


@dataclass(frozen=True, slots=True)
class ToInPort:
    """Send the packet back to where it came from."""

    def __str__(self) -> str:
        return "IN_PORT"


@dataclass(frozen=True, slots=True)
class SetField:
    """Write a whole field."""

    field: Field
    value: int

    def __str__(self) -> str:
        return f"set_field:{value_text(self.field, self.value)}->{self.field.name}"


@dataclass(frozen=True, slots=True)
class Load:
    """Write the `bits` bits of a field that begin at bit `low` (0 is the least significant)."""

    field: Field
    low: int
    bits: int
    value: int

    def __str__(self) -> str:
        return f"load:{self.value:#x}->{self.field.name}[{self.low}..{self.low + self.bits - 1}]"


@dataclass(frozen=True, slots=True)
class Move:
    """Copy `bits` bits from bit 0 of one field to bit 0 of another."""

    source: Field
    target: Field
    bits: int

    def __str__(self) -> str:
        if self.bits == self.source.bits == self.target.bits:
            return f"move:{self.source.name}->{self.target.name}"
        last = self.bits - 1
        return f"move:{self.source.name}[0..{last}]->{self.target.name}[0..{last}]"


@dataclass(frozen=True, slots=True)
class Goto:
    """Go on in a later table; always the last action."""

    table: int

    def __str__(self) -> str:
        return f"goto_table:{self.table}"


Action = Output | ToInPort | SetField | Load | Move | Goto


@dataclass(frozen=True, slots=True)
class Flow:
    """One row of one table. No actions means that the packet is dropped.

    `cookie` tells whose row it is; two flows with the same table, priority and match are the same row to the switch.
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
        if isinstance(last, Goto) and last.table <= self.table:
            raise ValueError(f"table {self.table} cannot go back to table {last.table}")

    @property
    def row(self) -> tuple[int, int, Match]:
        """What makes the switch take two flows for the same row."""
        return self.table, self.priority, self.match

    def __str__(self) -> str:
        match = f",{self.match}" if self.match.fields else ""
        actions = ",".join(map(str, self.actions)) or "drop"
        return f"table={self.table},priority={self.priority}{match} actions={actions}"
