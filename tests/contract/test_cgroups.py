"""Control groups of pods on the kernel of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.cgroups import Group, Limits, Room, group, groups, limits, path, top, values
from node_agent.drivers.cgroup_files import CgroupFiles
from node_agent.drivers.cgroups import MOUNT, Cgroups
from node_agent.stats.uses import FULL
from reconcile.errors import NotReady
from tests.unit.node_agent.make import UID, pod

ROOT = f"/podlane-test-{os.getpid()}"
WISH = pod("[{name: main, image: a, resources: {limits: {cpu: 500m, memory: 64Mi}}}]")
HERE = group(WISH, ROOT)
LIMITS = limits(WISH, Room(1, 1 << 30, pids=50))


@pytest.fixture
def driver() -> Iterator[Cgroups]:
    one = Cgroups()
    try:
        one.make(top(ROOT), Limits())
    except NotReady as error:
        pytest.skip(f"no control groups can be made here: {error}")
    yield one
    one.remove(Group((ROOT.strip("/"),)))


def test_a_group_is_made_with_its_values_and_goes_without_a_trace(driver: Cgroups) -> None:
    for _ in range(2):
        assert driver.make(HERE, LIMITS) == path(HERE)
    for value in values(LIMITS, driver.version):
        assert (MOUNT / value.controller / path(HERE).lstrip("/") / value.file).read_text().strip() == value.text
    assert driver.below(top(ROOT)) == {f"pod{UID}"}
    for where in groups(UID, ROOT):
        driver.remove(where)
        driver.remove(where)
    assert not [*MOUNT.glob(f"*{path(HERE)}"), *MOUNT.glob(path(HERE).lstrip("/"))]
    assert driver.below(top(ROOT)) == driver.below(HERE) == set()


def test_limits_change_and_end(driver: Cgroups) -> None:
    for wish in (LIMITS, Limits(shares=4096, memory=128 << 20), Limits()):
        driver.make(HERE, wish)
        for value in values(wish, driver.version):
            text = (MOUNT / value.controller / path(HERE).lstrip("/") / value.file).read_text().strip()
            endless = value.file == "memory.limit_in_bytes" and value.text == "-1"
            assert int(text) > 1 << 60 if endless else text == value.text


def test_a_process_can_run_in_a_group(driver: Cgroups) -> None:
    driver.make(HERE, LIMITS)
    found = [*MOUNT.glob(f"*{path(HERE)}")] if driver.version == 1 else [MOUNT / path(HERE).lstrip("/")]
    assert found
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for one in found:
                Path(one / "cgroup.procs").write_text(str(os.getpid()))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_value_that_the_kernel_refuses_is_told(driver: Cgroups) -> None:
    with pytest.raises(NotReady, match=r"pids\.max does not take '-5'"):
        driver.make(HERE, Limits(pids=-5))


WORK = """
import os, sys, time
kept = b"x" * (20 << 20)
while time.process_time() < 0.5:
    pass
print(os.getpid(), time.process_time_ns(), flush=True)
sys.stdin.read()
"""


def test_what_a_program_in_a_group_uses_is_read(driver: Cgroups) -> None:
    driver.make(HERE, LIMITS)
    found = [*MOUNT.glob(f"*{path(HERE)}")] if driver.version == 1 else [MOUNT / path(HERE).lstrip("/")]
    enter = "".join(f"echo $$ > {one}/cgroup.procs; " for one in found)
    command = ["sh", "-c", f'{enter}exec "$0" -c "$1"', sys.executable, WORK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        pid, took = map(int, program.stdout.readline().split())
        files = CgroupFiles()
        groups_of_it = files.groups_of(pid)
        seen = files.use(groups_of_it, FULL)
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
    assert files.use(groups_of_it, FULL) is None
