"""Reads the usage of the machine from the text of /proc files. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from node_agent.stats.cgroup_stats import TICK_NANOSECONDS

FILES = ("stat", "meminfo", "vmstat", "net/dev", "net/route", "loadavg", "sys/kernel/pid_max", "sys/kernel/threads-max")
"""Files in /proc that parse_machine reads."""

KIB = 1024
IGNORED_INTERFACES = ("lo", "veth", "docker", "nerdctl")
"""Prefixes of the interfaces that cAdvisor does not count for the machine."""


class NetworkInterface(NamedTuple):
    """A network interface and its counters."""

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
    """The usage of the host: CPU times in nanoseconds since its start, memory in bytes.

    `boot_time` is in seconds since 1970. `default_interface` is the interface of the default route, empty if there is
    none.
    """

    cpu: int = 0
    user: int = 0
    system: int = 0
    boot_time: int = 0
    memory: int = 0
    total_memory: int = 0
    working_set: int = 0
    rss: int = 0
    cache: int = 0
    mapped_file: int = 0
    active_file: int = 0
    inactive_file: int = 0
    swap: int = 0
    total_swap: int = 0
    page_faults: int = 0
    major_faults: int = 0
    tasks: int = 0
    tasks_limit: int = 0
    interfaces: tuple[NetworkInterface, ...] = ()
    default_interface: str = ""

    @property
    def available(self) -> int:
        """Bytes outside of the working set: free memory, and page cache that can be reclaimed at once."""
        return max(self.total_memory - self.working_set, 0)


def parse_machine(texts: Mapping[str, str]) -> MachineStats:
    """Parse the contents of FILES. Values of missing files are 0."""
    stat = {line.split()[0]: line.split()[1:] for line in texts.get("stat", "").splitlines() if line}
    ticks = [int(text) for text in [*stat.get("cpu", ()), *"0000000"][:7]]
    user, nice, system, _, _, irq, softirq = (count * TICK_NANOSECONDS for count in ticks)
    memory = {name: number * KIB for name, number in _parse_pairs(texts.get("meminfo", "")).items()}
    faults = _parse_pairs(texts.get("vmstat", ""))
    total = memory.get("MemTotal", 0)
    used = total - memory.get("MemFree", 0)
    task_limits = [int(texts[name]) for name in ("sys/kernel/pid_max", "sys/kernel/threads-max") if texts.get(name)]
    return MachineStats(
        cpu=user + nice + system + irq + softirq,
        user=user + nice,
        system=system + irq + softirq,
        boot_time=int(stat.get("btime", ["0"])[0]),
        memory=used,
        total_memory=total,
        working_set=max(used - memory.get("Inactive(file)", 0), 0),
        rss=memory.get("AnonPages", 0),
        cache=memory.get("Cached", 0) + memory.get("Buffers", 0),
        mapped_file=memory.get("Mapped", 0),
        active_file=memory.get("Active(file)", 0),
        inactive_file=memory.get("Inactive(file)", 0),
        swap=memory.get("SwapTotal", 0) - memory.get("SwapFree", 0),
        total_swap=memory.get("SwapTotal", 0),
        page_faults=faults.get("pgfault", 0),
        major_faults=faults.get("pgmajfault", 0),
        tasks=_parse_tasks(texts.get("loadavg", "")),
        tasks_limit=min(task_limits, default=0),
        interfaces=parse_interfaces(texts.get("net/dev", ""), IGNORED_INTERFACES),
        default_interface=_parse_default_interface(texts.get("net/route", "")),
    )


def parse_interfaces(text: str, ignored_prefixes: Iterable[str] = ("lo",)) -> tuple[NetworkInterface, ...]:
    """Parse /proc/PID/net/dev, without interfaces whose names begin with one of the prefixes."""
    prefixes = tuple(ignored_prefixes)
    interfaces = []
    for line in text.splitlines()[2:]:
        name, _, counters = line.strip().partition(":")
        numbers = [int(number) for number in counters.split()]
        if len(numbers) >= 12 and not name.startswith(prefixes):
            interfaces.append(NetworkInterface(name, *numbers[:4], *numbers[8:12]))
    return tuple(interfaces)


def _parse_pairs(text: str) -> dict[str, int]:
    """Parse lines with a name, perhaps with a colon, and a number."""
    lines = (line.split() for line in text.splitlines())
    return {fields[0].rstrip(":"): int(fields[1]) for fields in lines if len(fields) > 1 and fields[1].isdecimal()}


def _parse_tasks(loadavg: str) -> int:
    fields = loadavg.split()
    return int(fields[3].partition("/")[2]) if len(fields) > 3 else 0


def _parse_default_interface(route: str) -> str:
    for line in route.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7:
            name, destination, mask = fields[0], fields[1], fields[7]
            if destination == mask == "00000000":
                return name
    return ""
