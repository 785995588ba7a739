"""Control groups as slices of systemd (systemd.slice(5)), which Docker's driver `systemd` puts containers into. Pure.

Names are the kubelet's: `kubepods-burstable-pod<UID with _ for ->.slice`. A dash in a slice's name is a step in the
tree, so none is left in the parts. The properties are those of systemd.resource-control(5), named as on D-Bus.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from node_agent.cgroups import Group, Limits, weight

SLICE = ".slice"
UNLIMITED = 2**64 - 1
PER_SECOND = 10
"""Periods of 100 ms in a second: systemd counts CPU time by the second."""

PERCENT = 10_000
"""µs in a percent of a second. systemd stores whole percents, and a container may not have more than its slice."""


class Property(NamedTuple):
    """A property of a unit on D-Bus: its name, and its value with its signature."""

    name: str
    value: tuple[str, int | bool | str]


def unit(group: Group) -> str:
    """The slice of a group."""
    return "-".join(map(_escaped, group.names)) + SLICE


def path(group: Group) -> str:
    """The directory of a slice, from the top of the hierarchy."""
    return "".join(f"/{unit(Group(group.names[:depth]))}" for depth in range(1, len(group.names) + 1))


def last_name(directory: str) -> str:
    """The last name of the group that a directory is of; empty where it is none of a slice."""
    return directory.removesuffix(SLICE).rpartition("-")[2].replace("_", "-") if directory.endswith(SLICE) else ""


def properties(limits: Limits, version: int) -> Iterator[Property]:
    """What is asked of systemd, for the version of control groups it runs with."""
    quota = -(-limits.quota * PER_SECOND // PERCENT) * PERCENT
    for kind in ("CPU", "Memory", "Tasks"):
        yield Property(f"{kind}Accounting", ("b", True))
    if version == 1:
        yield Property("CPUShares", ("t", limits.shares))
        yield Property("MemoryLimit", ("t", limits.memory or UNLIMITED))
    else:
        yield Property("CPUWeight", ("t", weight(limits.shares)))
        yield Property("MemoryMax", ("t", limits.memory or UNLIMITED))
    yield Property("CPUQuotaPerSecUSec", ("t", quota or UNLIMITED))
    yield Property("TasksMax", ("t", limits.pids or UNLIMITED))


def _escaped(name: str) -> str:
    return name.replace("-", "_")
