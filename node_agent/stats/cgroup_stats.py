"""Reads usage from the text of cgroup files, v1 and v2. Pure.

Sources: Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst of the kernel. The meaning of each field is cAdvisor's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from node_agent.cgroups.hierarchy import MAX_SHARES, MAX_WEIGHT, MIN_SHARES, MIN_WEIGHT

TICK_NANOSECONDS = 10_000_000
"""Nanoseconds in a clock tick: USER_HZ is 100 on all current machines."""

MICROSECOND_NANOSECONDS = 1000
NO_LIMIT = 1 << 62
"""In version 1, limits from here on mean no limit: the kernel rounds the maximum down to whole pages."""


Texts = Mapping[str, str]
"""File name → content, without files that do not exist."""

Files = Mapping[int, Sequence[tuple[str, str]]]
"""Version → files to read, each with its controller (empty in version 2)."""

MEMORY_FILES: Files = {
    1: (("memory", "memory.usage_in_bytes"), ("memory", "memory.stat")),
    2: (("", "memory.current"), ("", "memory.stat")),
}
TASK_FILES: Files = {1: (("pids", "pids.current"),), 2: (("", "pids.current"),)}
CPU_AND_MEMORY_FILES: Files = {
    1: (
        ("cpuacct", "cpuacct.usage"),
        ("memory", "memory.usage_in_bytes"),
        ("memory", "memory.stat"),
        ("memory", "memory.limit_in_bytes"),
    ),
    2: (("", "cpu.stat"), ("", "memory.current"), ("", "memory.stat"), ("", "memory.swap.current"), ("", "memory.max")),
}
ALL_FILES: Files = {
    1: (
        *CPU_AND_MEMORY_FILES[1],
        ("cpuacct", "cpuacct.stat"),
        ("cpu", "cpu.stat"),
        ("cpu", "cpu.shares"),
        ("cpu", "cpu.cfs_quota_us"),
        ("cpu", "cpu.cfs_period_us"),
        ("memory", "memory.max_usage_in_bytes"),
        ("memory", "memory.failcnt"),
        ("pids", "pids.current"),
        ("pids", "pids.max"),
    ),
    2: (
        *CPU_AND_MEMORY_FILES[2],
        ("", "cpu.weight"),
        ("", "cpu.max"),
        ("", "memory.peak"),
        ("", "memory.events"),
        ("", "pids.current"),
        ("", "pids.max"),
    ),
}


@dataclass(frozen=True, slots=True)
class CgroupUsage:
    """The usage of a cgroup: CPU times in nanoseconds, memory in bytes, quota and period in microseconds.

    A limit of 0 means no limit.
    """

    cpu: int = 0
    user: int = 0
    system: int = 0
    periods: int = 0
    throttled_periods: int = 0
    throttled_time: int = 0
    shares: int = 0
    quota: int = 0
    period: int = 0
    memory: int = 0
    working_set: int = 0
    rss: int = 0
    cache: int = 0
    mapped_file: int = 0
    active_file: int = 0
    inactive_file: int = 0
    swap: int = 0
    max_memory: int = 0
    memory_failures: int = 0
    page_faults: int = 0
    major_faults: int = 0
    memory_limit: int = 0
    tasks: int = 0
    tasks_limit: int = 0

    @property
    def available(self) -> int | None:
        """Bytes of memory that are available, None without a limit."""
        return max(self.memory_limit - self.working_set, 0) if self.memory_limit else None


def parse_usage(texts: Texts, version: int) -> CgroupUsage | None:
    """Return the usage of a cgroup, None if the cgroup does not exist."""
    if not texts:
        return None
    return _parse_v1(texts) if version == 1 else _parse_v2(texts)


SUMMED_FIELDS = (
    "cpu",
    "user",
    "system",
    "memory",
    "working_set",
    "rss",
    "cache",
    "mapped_file",
    "active_file",
    "inactive_file",
    "swap",
    "page_faults",
    "major_faults",
    "tasks",
)


def sum_usage(usages: list[CgroupUsage]) -> CgroupUsage:
    """Return the total usage of several cgroups, without their limits."""
    return CgroupUsage(**{name: sum(getattr(usage, name) for usage in usages) for name in SUMMED_FIELDS})


def _parse_v1(texts: Texts) -> CgroupUsage:
    times = _parse_pairs(texts, "cpuacct.stat")
    throttling = _parse_pairs(texts, "cpu.stat")
    stat = _parse_pairs(texts, "memory.stat")
    memory = _number(texts, "memory.usage_in_bytes")
    inactive_file = stat.get("total_inactive_file", 0)
    return CgroupUsage(
        cpu=_number(texts, "cpuacct.usage"),
        user=times.get("user", 0) * TICK_NANOSECONDS,
        system=times.get("system", 0) * TICK_NANOSECONDS,
        periods=throttling.get("nr_periods", 0),
        throttled_periods=throttling.get("nr_throttled", 0),
        throttled_time=throttling.get("throttled_time", 0),
        shares=_number(texts, "cpu.shares"),
        quota=max(_number(texts, "cpu.cfs_quota_us"), 0),
        period=_number(texts, "cpu.cfs_period_us"),
        memory=memory,
        working_set=max(memory - inactive_file, 0),
        rss=stat.get("total_rss", 0),
        cache=stat.get("total_cache", 0),
        mapped_file=stat.get("total_mapped_file", 0),
        active_file=stat.get("total_active_file", 0),
        inactive_file=inactive_file,
        swap=stat.get("total_swap", 0),
        max_memory=_number(texts, "memory.max_usage_in_bytes"),
        memory_failures=_number(texts, "memory.failcnt"),
        page_faults=stat.get("total_pgfault", 0),
        major_faults=stat.get("total_pgmajfault", 0),
        memory_limit=_limit(texts, "memory.limit_in_bytes"),
        tasks=_number(texts, "pids.current"),
        tasks_limit=_limit(texts, "pids.max"),
    )


def _parse_v2(texts: Texts) -> CgroupUsage:
    times = _parse_pairs(texts, "cpu.stat")
    stat = _parse_pairs(texts, "memory.stat")
    events = _parse_pairs(texts, "memory.events")
    memory = _number(texts, "memory.current")
    inactive_file = stat.get("inactive_file", 0)
    quota, _, period = texts.get("cpu.max", "max 100000").strip().partition(" ")
    return CgroupUsage(
        cpu=times.get("usage_usec", 0) * MICROSECOND_NANOSECONDS,
        user=times.get("user_usec", 0) * MICROSECOND_NANOSECONDS,
        system=times.get("system_usec", 0) * MICROSECOND_NANOSECONDS,
        periods=times.get("nr_periods", 0),
        throttled_periods=times.get("nr_throttled", 0),
        throttled_time=times.get("throttled_usec", 0) * MICROSECOND_NANOSECONDS,
        shares=_shares(_number(texts, "cpu.weight")),
        quota=int(quota) if quota.isdecimal() else 0,
        period=int(period) if period.isdecimal() else 0,
        memory=memory,
        working_set=max(memory - inactive_file, 0),
        rss=stat.get("anon", 0),
        cache=stat.get("file", 0),
        mapped_file=stat.get("file_mapped", 0),
        active_file=stat.get("active_file", 0),
        inactive_file=inactive_file,
        swap=_number(texts, "memory.swap.current"),
        max_memory=_number(texts, "memory.peak"),
        memory_failures=events.get("max", 0),
        page_faults=stat.get("pgfault", 0),
        major_faults=stat.get("pgmajfault", 0),
        memory_limit=_limit(texts, "memory.max"),
        tasks=_number(texts, "pids.current"),
        tasks_limit=_limit(texts, "pids.max"),
    )


def _shares(weight: int) -> int:
    """Convert a CPU weight of version 2 (1 to 10000) to CPU shares of version 1 (2 to 262144)."""
    if not weight:
        return 0
    return MIN_SHARES + (weight - MIN_WEIGHT) * (MAX_SHARES - MIN_SHARES) // (MAX_WEIGHT - MIN_WEIGHT)


def _parse_pairs(texts: Texts, name: str) -> dict[str, int]:
    """Parse a file with a name and a number in each line."""
    pairs = (line.split() for line in texts.get(name, "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def _number(texts: Texts, name: str) -> int:
    text = texts.get(name, "").strip()
    return int(text) if text.removeprefix("-").isdecimal() else 0


def _limit(texts: Texts, name: str) -> int:
    limit = _number(texts, name)
    return limit if 0 < limit < NO_LIMIT else 0


def parse_memberships(text: str) -> dict[str, str]:
    """Parse /proc/PID/cgroup: the path of the cgroup by controller (version 1), or by an empty string (version 2)."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def parent_cgroups(paths: Mapping[str, str]) -> dict[str, str]:
    """Return the parents of cgroups, by controller."""
    return {controller: path.rpartition("/")[0] or "/" for controller, path in paths.items()}
