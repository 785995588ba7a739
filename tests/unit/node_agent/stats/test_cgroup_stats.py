"""Usage from cgroup files of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from node_agent.stats.cgroup_stats import (
    ALL_FILES,
    CPU_AND_MEMORY_FILES,
    TASK_FILES,
    CgroupUsage,
    parent_cgroups,
    parse_memberships,
    sum_usage,
)
from node_agent.stats.collector import CgroupReader
from node_agent.stats.machine import FILES, NetworkInterface, parse_interfaces, parse_machine

SECOND = {
    "cpu.stat": "usage_usec 5000000\nuser_usec 3000000\nsystem_usec 2000000\nnr_periods 40\nnr_throttled 7\n"
    "throttled_usec 900\n",
    "cpu.weight": "39\n",
    "cpu.max": "30000 100000\n",
    "memory.current": "9000000\n",
    "memory.peak": "9500000\n",
    "memory.max": "67108864\n",
    "memory.swap.current": "4096\n",
    "memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n",
    "memory.stat": "anon 5000000\nfile 4000000\nkernel 100000\nfile_mapped 700000\ninactive_file 1500000\n"
    "active_file 2500000\npgfault 11\npgmajfault 2\n",
    "pids.current": "4\n",
    "pids.max": "max\n",
}
FIRST = {
    "cpuacct/cpuacct.usage": "5000000000\n",
    "cpuacct/cpuacct.stat": "user 300\nsystem 200\n",
    "cpu/cpu.stat": "nr_periods 40\nnr_throttled 7\nthrottled_time 900000\n",
    "cpu/cpu.shares": "1024\n",
    "cpu/cpu.cfs_quota_us": "30000\n",
    "cpu/cpu.cfs_period_us": "100000\n",
    "memory/memory.usage_in_bytes": "9000000\n",
    "memory/memory.max_usage_in_bytes": "9500000\n",
    "memory/memory.failcnt": "3\n",
    "memory/memory.limit_in_bytes": "67108864\n",
    "memory/memory.stat": "cache 1\nrss 1\ntotal_rss 5000000\ntotal_cache 4000000\ntotal_mapped_file 700000\n"
    "total_inactive_file 1500000\ntotal_active_file 2500000\ntotal_swap 4096\ntotal_pgfault 11\ntotal_pgmajfault 2\n",
    "pids/pids.current": "4\n",
    "pids/pids.max": "max\n",
}
CGROUP = "/kubepods/podx/c"
EXPECTED = CgroupUsage(
    cpu=5_000_000_000,
    user=3_000_000_000,
    system=2_000_000_000,
    periods=40,
    throttled_periods=7,
    throttled_time=900_000,
    shares=1024,
    quota=30_000,
    period=100_000,
    memory=9_000_000,
    working_set=7_500_000,
    rss=5_000_000,
    cache=4_000_000,
    mapped_file=700_000,
    active_file=2_500_000,
    inactive_file=1_500_000,
    swap=4096,
    max_memory=9_500_000,
    memory_failures=3,
    page_faults=11,
    major_faults=2,
    memory_limit=64 << 20,
    tasks=4,
)


@pytest.fixture(params=[1, 2])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> CgroupReader:
    """Return a reader of the same cgroup in both versions, for process 77."""
    mount, proc = tmp_path / "cgroup", tmp_path / "proc" / "77"
    proc.mkdir(parents=True)
    if request.param == 1:
        files_by_path = {
            f"{path.partition('/')[0]}{CGROUP}/{path.partition('/')[2]}": text for path, text in FIRST.items()
        }
        (proc / "cgroup").write_text(f"9:cpu,cpuacct:{CGROUP}\n4:memory:{CGROUP}\n3:pids:{CGROUP}\n1:name=systemd:/\n")
    else:
        files_by_path = {f"{CGROUP.lstrip('/')}/{path}": text for path, text in SECOND.items()} | {
            "cgroup.controllers": "cpu"
        }
        (proc / "cgroup").write_text(f"0::{CGROUP}\n")
    for path, text in files_by_path.items():
        (mount / path).parent.mkdir(parents=True, exist_ok=True)
        (mount / path).write_text(text)
    reader = CgroupReader(mount, proc.parent)
    assert reader.version == request.param
    return reader


def test_cgroup_versions_yield_the_same_usage(files: CgroupReader) -> None:
    usage = files.usage(files.cgroups_of(77), ALL_FILES)
    assert usage is not None
    # Shares of version 2 come from weights, which are coarser.
    assert (usage.shares, EXPECTED.shares) == pytest.approx((1024, 1024), rel=0.03)
    assert {name: getattr(usage, name) for name in CgroupUsage.__slots__ if name != "shares"} == {
        name: getattr(EXPECTED, name) for name in CgroupUsage.__slots__ if name != "shares"
    }
    assert usage.available == (64 << 20) - 7_500_000


def test_brief_cgroup_usage_has_cpu_and_memory(files: CgroupReader) -> None:
    usage = files.usage(files.cgroups_of(77), CPU_AND_MEMORY_FILES)
    assert usage is not None
    assert (usage.cpu, usage.working_set, usage.memory_limit, usage.swap) == (5_000_000_000, 7_500_000, 64 << 20, 4096)
    assert usage.tasks == usage.quota == 0
    only = files.usage(files.cgroups_of(77), TASK_FILES)
    assert only is not None
    assert (only.tasks, only.cpu) == (4, 0)


def test_missing_cgroup_uses_nothing(files: CgroupReader) -> None:
    assert files.usage(files.cgroups_of(78), ALL_FILES) is None
    assert files.usage(dict.fromkeys(files.cgroups_of(77), "/elsewhere"), ALL_FILES) is None


def test_cgroup_without_a_limit_has_no_available_memory() -> None:
    assert CgroupUsage(working_set=5).available is None
    assert CgroupUsage(working_set=5, memory_limit=3).available == 0


def test_cgroup_parents_are_listed() -> None:
    reader = parse_memberships("4:memory:/a/b\n2:cpu,cpuacct:/a\n0::/\n")
    assert reader == {"memory": "/a/b", "cpu": "/a", "cpuacct": "/a", "": "/"}
    assert parent_cgroups(reader) == {"memory": "/a", "cpu": "/", "cpuacct": "/", "": "/"}


def test_summed_usage_has_no_limits() -> None:
    summed = sum_usage([EXPECTED, EXPECTED])
    assert (summed.cpu, summed.working_set, summed.tasks) == (10_000_000_000, 15_000_000, 8)
    assert summed.memory_limit == summed.quota == 0


NET = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier comp
    lo: 10 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0
  eth0: 1000 20 3 4 0 0 0 0 500 6 7 8 0 0 0 0
veth1a: 5 5 5 5 0 0 0 0 5 5 5 5 0 0 0 0
"""


def test_machine_stats_are_parsed() -> None:
    texts = {
        "stat": "cpu  100 20 50 9000 30 4 6 70 0 0\ncpu0 1 2 3\nbtime 1700000000\n",
        "meminfo": "MemTotal: 1000 kB\nMemFree: 300 kB\nBuffers: 10 kB\nCached: 200 kB\nInactive(file): 100 kB\n"
        "AnonPages: 90 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n",
        "vmstat": "pgfault 12\npgmajfault 3\n",
        "net/dev": NET,
        "net/route": "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "eth1\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\neth0\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\n",
        "loadavg": "0.1 0.2 0.3 2/345 999\n",
        "sys/kernel/pid_max": "4000\n",
        "sys/kernel/threads-max": "3000\n",
    }
    assert set(texts) == set(FILES)
    machine = parse_machine(texts)
    assert (machine.cpu, machine.user, machine.system) == (1_800_000_000, 1_200_000_000, 600_000_000)
    assert (machine.boot_time, machine.tasks, machine.tasks_limit) == (1_700_000_000, 345, 3000)
    assert (machine.total_memory, machine.memory, machine.working_set) == (1000 << 10, 700 << 10, 600 << 10)
    assert (machine.available, machine.swap, machine.rss, machine.cache) == (400 << 10, 30 << 10, 90 << 10, 210 << 10)
    assert (machine.default_interface, [interface.name for interface in machine.interfaces]) == ("eth0", ["eth0"])
    assert (machine.page_faults, machine.major_faults) == (12, 3)
    assert parse_machine({}).cpu == 0


def test_network_interfaces_are_parsed() -> None:
    assert parse_interfaces(NET) == (
        NetworkInterface("eth0", 1000, 20, 3, 4, 500, 6, 7, 8),
        NetworkInterface("veth1a", 5, 5, 5, 5, 5, 5, 5, 5),
    )
    assert parse_interfaces("") == ()
