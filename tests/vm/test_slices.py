"""Slices for pods on a real systemd; in the machines of test_machines.py, with both versions of control groups."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent import cgroups, slices
from node_agent.cgroups import Group, Limits, Room, group, groups, limits, top
from node_agent.drivers.cgroup_files import CgroupFiles
from node_agent.drivers.cgroups import MOUNT, Cgroups
from node_agent.drivers.slices import BUS, Slices
from node_agent.stats.uses import FULL
from reconcile.errors import NotReady, Refused
from tests.e2e.cluster import wait_until
from tests.unit.node_agent.make import UID, pod

pytestmark = pytest.mark.skipif(
    not (Path("/run/systemd/system").is_dir() and BUS.exists()),
    reason="no systemd runs here: test_machines.py runs this in machines that have one",
)

ROOT = f"/podlane-test-{os.getpid()}"
WISH = pod("[{name: main, image: a, resources: {limits: {cpu: 500m, memory: 64Mi}}}]")
HERE = group(WISH, ROOT)
LIMITS = limits(WISH, Room(1, 1 << 30, pids=50))
FILES = Cgroups()


@pytest.fixture
def driver() -> Iterator[Slices]:
    one = Slices(FILES)
    yield one
    for where in (*groups(UID, ROOT), *reversed(cgroups.parents(ROOT)), Group((ROOT.strip("/"),))):
        one.remove(where)


def held(limits: Limits) -> dict[str, tuple[str, str]]:
    """By file what the kernel has and what it should have."""
    folder = slices.path(HERE).lstrip("/")
    rows = cgroups.values(limits, FILES.version)
    return {row.file: ((MOUNT / row.controller / folder / row.file).read_text().strip(), row.text) for row in rows}


def test_a_slice_is_made_with_its_limits_and_goes_without_a_trace(driver: Slices) -> None:
    for _ in range(2):
        assert driver.make(HERE, LIMITS) == slices.unit(HERE)
    for found, wanted in held(LIMITS).values():
        assert found == wanted
    assert driver.below(top(ROOT)) == {f"pod{UID}"}
    for where in groups(UID, ROOT):
        driver.remove(where)
        driver.remove(where)
    assert not FILES.has_directory(slices.path(HERE))
    assert driver.below(top(ROOT)) == driver.below(HERE) == set()


def test_limits_change_and_end_also_by_an_agent_without_memory(driver: Slices) -> None:
    for wish in (LIMITS, Limits(shares=4096, memory=128 << 20), Limits()):
        Slices(FILES).make(HERE, wish)
        for file, (found, wanted) in held(wish).items():
            endless = file == "memory.limit_in_bytes" and wanted == "-1"
            assert int(found) > 1 << 60 if endless else found == wanted, file


def test_a_slice_that_somebody_stopped_is_made_again(driver: Slices) -> None:
    driver.make(HERE, LIMITS)
    subprocess.run(["systemctl", "stop", slices.unit(HERE)], check=True)
    assert not FILES.has_directory(slices.path(HERE))
    driver.make(HERE, LIMITS)
    for found, wanted in held(LIMITS).values():
        assert found == wanted


def test_a_slice_in_which_something_runs_stays(driver: Slices) -> None:
    unit = driver.make(HERE, LIMITS)
    command = ["systemd-run", "--scope", "--quiet", f"--slice={unit}", "sleep", "infinity"]
    with subprocess.Popen(command) as inside:
        wait_until(lambda: FILES.has_processes(slices.path(HERE)), "it runs in the slice")
        with pytest.raises(NotReady, match="still has processes"):
            driver.remove(HERE)
        assert inside.poll() is None
        inside.send_signal(signal.SIGKILL)
    wait_until(lambda: not FILES.has_processes(slices.path(HERE)), "it has ended")
    driver.remove(HERE)
    assert not FILES.has_directory(slices.path(HERE))


def test_what_systemd_refuses_is_told_in_its_words(driver: Slices) -> None:
    with pytest.raises(Refused, match=r"systemd: StartTransientUnit .*no name\.slice: Invalid unit name"):
        driver.make(Group((ROOT.strip("/"), "no name")), LIMITS)


def test_what_a_slice_uses_and_may_use_is_read(driver: Slices) -> None:
    driver.make(HERE, LIMITS)
    files = CgroupFiles()
    controllers = ("cpu", "cpuacct", "memory", "pids") if files.version == 1 else ("",)
    seen = files.use(dict.fromkeys(controllers, slices.path(HERE)), FULL)
    assert seen is not None
    assert (seen.memory_limit, seen.quota, seen.tasks_limit, seen.tasks) == (64 << 20, 50_000, 50, 0)
