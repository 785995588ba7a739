"""Control groups of pods in the kernel of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.cgroups.cgroupfs import MOUNT, CgroupfsDriver
from node_agent.cgroups.hierarchy import (
    CgroupLimits,
    CgroupPath,
    PodsCapacity,
    candidate_cgroups,
    cgroupfs_path,
    limit_files,
    pod_cgroup,
    pod_limits,
    pods_cgroup,
)
from node_agent.stats.cgroup_stats import ALL_FILES
from node_agent.stats.collector import CgroupReader
from reconcile.errors import NotReady
from tests.unit.node_agent.examples import UID, make_pod

ROOT = f"/podlane-test-{os.getpid()}"
POD = make_pod("[{name: main, image: a, resources: {limits: {cpu: 500m, memory: 64Mi}}}]")
HERE = pod_cgroup(POD, ROOT)
LIMITS = pod_limits(POD, PodsCapacity(1, 1 << 30, pids=50))


@pytest.fixture
def driver() -> Iterator[CgroupfsDriver]:
    cgroupfs_driver = CgroupfsDriver()
    try:
        cgroupfs_driver.create(pods_cgroup(ROOT), CgroupLimits())
    except NotReady as error:
        pytest.skip(f"no control groups can be made here: {error}")
    yield cgroupfs_driver
    cgroupfs_driver.remove(CgroupPath((ROOT.strip("/"),)))


def test_cgroup_is_created_with_its_values_and_removed_completely(driver: CgroupfsDriver) -> None:
    for _ in range(2):
        assert driver.create(HERE, LIMITS) == cgroupfs_path(HERE)
    for value in limit_files(LIMITS, driver.version):
        assert (
            MOUNT / value.controller / cgroupfs_path(HERE).lstrip("/") / value.file
        ).read_text().strip() == value.text
    assert driver.children(pods_cgroup(ROOT)) == {f"pod{UID}"}
    for where in candidate_cgroups(UID, ROOT):
        driver.remove(where)
        driver.remove(where)
    assert not [*MOUNT.glob(f"*{cgroupfs_path(HERE)}"), *MOUNT.glob(cgroupfs_path(HERE).lstrip("/"))]
    assert driver.children(pods_cgroup(ROOT)) == driver.children(HERE) == set()


def test_cgroup_limits_are_changed_and_removed(driver: CgroupfsDriver) -> None:
    for cgroup_limits in (LIMITS, CgroupLimits(shares=4096, memory=128 << 20), CgroupLimits()):
        driver.create(HERE, cgroup_limits)
        for value in limit_files(cgroup_limits, driver.version):
            text = (MOUNT / value.controller / cgroupfs_path(HERE).lstrip("/") / value.file).read_text().strip()
            endless = value.file == "memory.limit_in_bytes" and value.text == "-1"
            assert int(text) > 1 << 60 if endless else text == value.text


def test_process_runs_in_a_cgroup(driver: CgroupfsDriver) -> None:
    driver.create(HERE, LIMITS)
    paths = (
        [*MOUNT.glob(f"*{cgroupfs_path(HERE)}")] if driver.version == 1 else [MOUNT / cgroupfs_path(HERE).lstrip("/")]
    )
    assert paths
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for path in paths:
                Path(path / "cgroup.procs").write_text(str(os.getpid()))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_value_rejected_by_the_kernel_is_reported(driver: CgroupfsDriver) -> None:
    with pytest.raises(NotReady, match=r"pids\.max does not accept '-5'"):
        driver.create(HERE, CgroupLimits(pids=-5))


WORK = """
import os, sys, time
kept = b"x" * (20 << 20)
while time.process_time() < 0.5:
    pass
print(os.getpid(), time.process_time_ns(), flush=True)
sys.stdin.read()
"""


def test_cgroup_usage_is_read(driver: CgroupfsDriver) -> None:
    driver.create(HERE, LIMITS)
    paths = (
        [*MOUNT.glob(f"*{cgroupfs_path(HERE)}")] if driver.version == 1 else [MOUNT / cgroupfs_path(HERE).lstrip("/")]
    )
    enter = "".join(f"echo $$ > {path}/cgroup.procs; " for path in paths)
    command = ["sh", "-c", f'{enter}exec "$0" -c "$1"', sys.executable, WORK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        pid, took = map(int, program.stdout.readline().split())
        files = CgroupReader()
        groups_of_it = files.cgroups_of(pid)
        seen = files.usage(groups_of_it, ALL_FILES)
        program.stdin.close()
    assert seen is not None
    assert took >= 0.5e9
    assert seen.cpu == pytest.approx(took, rel=0.2), "but for what it did before it came here"
    assert seen.user + seen.system == pytest.approx(seen.cpu, rel=0.3)
    assert 20 << 20 <= seen.rss <= seen.memory <= 64 << 20
    assert seen.working_set <= seen.memory
    assert (seen.memory_limit, seen.quota, seen.period, seen.tasks, seen.tasks_limit) == (
        64 << 20,
        50_000,
        100_000,
        1,
        50,
    )
    driver.remove(HERE)
    assert files.usage(groups_of_it, ALL_FILES) is None
