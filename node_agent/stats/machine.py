"""/proc files to machine usage. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from node_agent.stats.cgroup_stats import TICK

FILES = ("stat", "meminfo", "vmstat", "net/dev", "net/route", "loadavg", "sys/kernel/pid_max", "sys/kernel/threads-max")
KIB = 1024
IGNORED = ("lo", "veth", "docker", "nerdctl")
"""Interfaces that say nothing of the machine: cAdvisor leaves out those whose names begin so."""


class NetworkInterface(NamedTuple):
    """A network interface, and what it has carried since it was made."""

    name: str
    rx_bytes: int = 0
    rx_packets: int = 0
    rx_errors: int = 0
    rx_dropped: int = 0
    tx_bytes: int = 0
    tx_packets: int = 0
    tx_errors: int = 0
    tx_dropped: int = 0


@dataclass(frozen=True, slots=True)
class MachineStats:
    """CPU times in nanoseconds since it was started (at `booted`, seconds since 1970), memory in bytes.

    `main_link` is the name of the interface of the default route, empty if there is none.
    """

    cpu: int = 0
    user: int = 0
    system: int = 0
    booted: int = 0
    memory: int = 0
    total: int = 0
    working_set: int = 0
    rss: int = 0
    cache: int = 0
    mapped: int = 0
    active_file: int = 0
    inactive_file: int = 0
    swap: int = 0
    total_swap: int = 0
    page_faults: int = 0
    major_faults: int = 0
    tasks: int = 0
    tasks_limit: int = 0
    links: tuple[NetworkInterface, ...] = ()
    main_link: str = ""

    @property
    def available(self) -> int:
        """All but the working set: what is free, and what the page cache would give back first."""
        return max(self.total - self.working_set, 0)


def parse_machine(texts: Mapping[str, str]) -> MachineStats:
    """The machine whose files of `FILES` have these texts; what a missing one tells is 0."""
    stat = {line.split()[0]: line.split()[1:] for line in texts.get("stat", "").splitlines() if line}
    user, nice, system, _, _, irq, softirq = [int(one) * TICK for one in [*stat.get("cpu", ()), *"0000000"][:7]]
    memory = {name: number * KIB for name, number in _rows(texts.get("meminfo", "")).items()}
    faults = _rows(texts.get("vmstat", ""))
    total, used = memory.get("MemTotal", 0), memory.get("MemTotal", 0) - memory.get("MemFree", 0)
    limits = [int(texts[name]) for name in FILES[-2:] if texts.get(name)]
    return MachineStats(
        cpu=user + nice + system + irq + softirq,
        user=user + nice,
        system=system + irq + softirq,
        booted=int(stat.get("btime", ["0"])[0]),
        memory=used,
        total=total,
        working_set=max(used - memory.get("Inactive(file)", 0), 0),
        rss=memory.get("AnonPages", 0),
        cache=memory.get("Cached", 0) + memory.get("Buffers", 0),
        mapped=memory.get("Mapped", 0),
        active_file=memory.get("Active(file)", 0),
        inactive_file=memory.get("Inactive(file)", 0),
        swap=memory.get("SwapTotal", 0) - memory.get("SwapFree", 0),
        total_swap=memory.get("SwapTotal", 0),
        page_faults=faults.get("pgfault", 0),
        major_faults=faults.get("pgmajfault", 0),
        tasks=_tasks(texts.get("loadavg", "")),
        tasks_limit=min(limits, default=0),
        links=parse_interfaces(texts.get("net/dev", ""), IGNORED),
        main_link=_main_link(texts.get("net/route", "")),
    )


def parse_interfaces(text: str, ignored: Iterable[str] = ("lo",)) -> tuple[NetworkInterface, ...]:
    """The interfaces of /proc/PID/net/dev, but for those whose names begin with one of `ignored`."""
    found = []
    for line in text.splitlines()[2:]:
        name, _, rest = line.strip().partition(":")
        numbers = [int(number) for number in rest.split()]
        if len(numbers) >= 12 and not name.startswith(tuple(ignored)):
            found.append(NetworkInterface(name, *numbers[:4], *numbers[8:12]))
    return tuple(found)


def _rows(text: str) -> dict[str, int]:
    words = (line.split() for line in text.splitlines())
    return {row[0].rstrip(":"): int(row[1]) for row in words if len(row) > 1 and row[1].isdecimal()}


def _tasks(loadavg: str) -> int:
    fields = loadavg.split()
    return int(fields[3].partition("/")[2]) if len(fields) > 3 else 0


def _main_link(route: str) -> str:
    rows = (line.split() for line in route.splitlines()[1:])
    return next((row[0] for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"), "")
