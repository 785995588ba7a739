"""Cgroup files to usage, v1 and v2. Pure.

Sources: Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst of the kernel; what counts as what is cAdvisor's choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TICK = 10_000_000
"""Nanoseconds in a tick of the clock in which the kernel counts for users (USER_HZ is 100 on all machines of today)."""

MICRO = 1000
NO_LIMIT = 1 << 62
"""From here on a limit of version 1 is none: the kernel rounds it down to whole pages."""

MOST_SHARES, MOST_WEIGHT = 262_144, 10_000

Texts = Mapping[str, str]
"""File → its text; a file that is not there is left out."""

MEMORY = {
    1: (("memory", "memory.usage_in_bytes"), ("memory", "memory.stat")),
    2: (("", "memory.current"), ("", "memory.stat")),
}
TASKS = {1: (("pids", "pids.current"),), 2: (("", "pids.current"),)}
BRIEF = {
    1: (
        ("cpuacct", "cpuacct.usage"),
        ("memory", "memory.usage_in_bytes"),
        ("memory", "memory.stat"),
        ("memory", "memory.limit_in_bytes"),
    ),
    2: (("", "cpu.stat"), ("", "memory.current"), ("", "memory.stat"), ("", "memory.swap.current"), ("", "memory.max")),
}
"""CPU and memory. Each is version → the files that tell, each with its controller."""

FULL = {
    1: (
        *BRIEF[1],
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
        *BRIEF[2],
        ("", "cpu.weight"),
        ("", "cpu.max"),
        ("", "memory.peak"),
        ("", "memory.events"),
        ("", "pids.current"),
        ("", "pids.max"),
    ),
}
"""All there is."""


@dataclass(frozen=True, slots=True)
class CgroupUsage:
    """CPU times in nanoseconds, memory in bytes, quota and period in microseconds. A limit of 0 is none."""

    cpu: int = 0
    user: int = 0
    system: int = 0
    periods: int = 0
    throttled_periods: int = 0
    throttled: int = 0
    shares: int = 0
    quota: int = 0
    period: int = 0
    memory: int = 0
    working_set: int = 0
    rss: int = 0
    cache: int = 0
    mapped: int = 0
    active_file: int = 0
    inactive_file: int = 0
    swap: int = 0
    most_memory: int = 0
    failures: int = 0
    page_faults: int = 0
    major_faults: int = 0
    memory_limit: int = 0
    tasks: int = 0
    tasks_limit: int = 0

    @property
    def available(self) -> int | None:
        """What is left of its memory; None where there is no limit."""
        return max(self.memory_limit - self.working_set, 0) if self.memory_limit else None


def parse_usage(texts: Texts, version: int) -> CgroupUsage | None:
    """What the group uses; None when it has gone."""
    return _first(texts) if version == 1 else _second(texts)


def sum_usage(uses: list[CgroupUsage]) -> CgroupUsage:
    """What groups use together, of what can be summed up; limits are not."""
    summed = ("cpu", "user", "system", "memory", "working_set", "rss", "cache", "mapped", "active_file")
    more = ("inactive_file", "swap", "page_faults", "major_faults", "tasks")
    return CgroupUsage(**{name: sum(getattr(one, name) for one in uses) for name in (*summed, *more)})


def _first(texts: Texts) -> CgroupUsage | None:
    if not texts:
        return None
    times, held, stat = _rows(texts, "cpuacct.stat"), _rows(texts, "cpu.stat"), _rows(texts, "memory.stat")
    used, inactive = _number(texts, "memory.usage_in_bytes"), stat.get("total_inactive_file", 0)
    return CgroupUsage(
        cpu=_number(texts, "cpuacct.usage"),
        user=times.get("user", 0) * TICK,
        system=times.get("system", 0) * TICK,
        periods=held.get("nr_periods", 0),
        throttled_periods=held.get("nr_throttled", 0),
        throttled=held.get("throttled_time", 0),
        shares=_number(texts, "cpu.shares"),
        quota=max(_number(texts, "cpu.cfs_quota_us"), 0),
        period=_number(texts, "cpu.cfs_period_us"),
        memory=used,
        working_set=max(used - inactive, 0),
        rss=stat.get("total_rss", 0),
        cache=stat.get("total_cache", 0),
        mapped=stat.get("total_mapped_file", 0),
        active_file=stat.get("total_active_file", 0),
        inactive_file=inactive,
        swap=stat.get("total_swap", 0),
        most_memory=_number(texts, "memory.max_usage_in_bytes"),
        failures=_number(texts, "memory.failcnt"),
        page_faults=stat.get("total_pgfault", 0),
        major_faults=stat.get("total_pgmajfault", 0),
        memory_limit=_limit(texts, "memory.limit_in_bytes"),
        tasks=_number(texts, "pids.current"),
        tasks_limit=_limit(texts, "pids.max"),
    )


def _second(texts: Texts) -> CgroupUsage | None:
    if not texts:
        return None
    times, stat, events = _rows(texts, "cpu.stat"), _rows(texts, "memory.stat"), _rows(texts, "memory.events")
    used, inactive = _number(texts, "memory.current"), stat.get("inactive_file", 0)
    quota, _, period = texts.get("cpu.max", "max 100000").strip().partition(" ")
    return CgroupUsage(
        cpu=times.get("usage_usec", 0) * MICRO,
        user=times.get("user_usec", 0) * MICRO,
        system=times.get("system_usec", 0) * MICRO,
        periods=times.get("nr_periods", 0),
        throttled_periods=times.get("nr_throttled", 0),
        throttled=times.get("throttled_usec", 0) * MICRO,
        shares=_shares(_number(texts, "cpu.weight")),
        quota=int(quota) if quota.isdecimal() else 0,
        period=int(period) if period.isdecimal() else 0,
        memory=used,
        working_set=max(used - inactive, 0),
        rss=stat.get("anon", 0),
        cache=stat.get("file", 0),
        mapped=stat.get("file_mapped", 0),
        active_file=stat.get("active_file", 0),
        inactive_file=inactive,
        swap=_number(texts, "memory.swap.current"),
        most_memory=_number(texts, "memory.peak"),
        failures=events.get("max", 0),
        page_faults=stat.get("pgfault", 0),
        major_faults=stat.get("pgmajfault", 0),
        memory_limit=_limit(texts, "memory.max"),
        tasks=_number(texts, "pids.current"),
        tasks_limit=_limit(texts, "pids.max"),
    )


def _shares(weight: int) -> int:
    """CPU weight of version 2 (1 to 10000) as the shares of version 1 (2 to 262144)."""
    return 2 + (weight - 1) * (MOST_SHARES - 2) // (MOST_WEIGHT - 1) if weight else 0


def _rows(texts: Texts, name: str) -> dict[str, int]:
    """`NAME NUMBER` in each line."""
    pairs = (line.split() for line in texts.get(name, "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def _number(texts: Texts, name: str) -> int:
    text = texts.get(name, "").strip()
    return int(text) if text.removeprefix("-").isdecimal() else 0


def _limit(texts: Texts, name: str) -> int:
    found = _number(texts, name)
    return found if 0 < found < NO_LIMIT else 0


def parse_memberships(text: str) -> dict[str, str]:
    """The text of /proc/PID/cgroup: controller of version 1 → path, and the empty one → that of version 2."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def parent_groups(paths: Mapping[str, str]) -> dict[str, str]:
    """The group that this one is in, by controller as `memberships` has them."""
    return {controller: path.rpartition("/")[0] or "/" for controller, path in paths.items()}
