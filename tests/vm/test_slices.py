"""Slices of pods on a real systemd; test_cgroup_versions.py runs them with both versions of cgroups."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.cgroups import hierarchy
from node_agent.cgroups.cgroupfs import MOUNT, CgroupfsDriver
from node_agent.cgroups.hierarchy import (
    CgroupLimits,
    CgroupPath,
    PodsCapacity,
    candidate_cgroups,
    pod_cgroup,
    pod_limits,
    pods_cgroup,
)
from node_agent.cgroups.systemd import BUS, SystemdDriver
from node_agent.stats.cgroup_stats import ALL_FILES
from node_agent.stats.collector import CgroupReader
from reconcile.errors import NotReady, Refused
from tests.testbed.wait import wait_until
from tests.unit.node_agent.examples import UID, make_pod

pytestmark = pytest.mark.skipif(
    not (Path("/run/systemd/system").is_dir() and BUS.exists()),
    reason="no systemd runs here: test_machines.py runs this in machines that have one",
)

ROOT = f"/podlane-test-{os.getpid()}"
POD = make_pod("[{name: main, image: a, resources: {limits: {cpu: 500m, memory: 64Mi}}}]")
HERE = pod_cgroup(POD, ROOT)
LIMITS = pod_limits(POD, PodsCapacity(1, 1 << 30, pids=50))
FILES = CgroupfsDriver()


@pytest.fixture
def driver() -> Iterator[SystemdDriver]:
    systemd_driver = SystemdDriver(FILES)
    yield systemd_driver
    for where in (
        *candidate_cgroups(UID, ROOT),
        *reversed(hierarchy.parent_cgroups(ROOT)),
        CgroupPath((ROOT.strip("/"),)),
    ):
        systemd_driver.remove(where)


def held(limits: CgroupLimits) -> dict[str, tuple[str, str]]:
    """Return the value in the kernel and the expected one, by file."""
    folder = hierarchy.slice_path(HERE).lstrip("/")
    cgroup_files = hierarchy.limit_files(limits, FILES.version)
    return {
        cgroup_file.file: (
            (MOUNT / cgroup_file.controller / folder / cgroup_file.file).read_text().strip(),
            cgroup_file.text,
        )
        for cgroup_file in cgroup_files
    }


def test_slice_is_created_with_its_limits_and_removed_completely(driver: SystemdDriver) -> None:
    for _ in range(2):
        assert driver.create(HERE, LIMITS) == hierarchy.slice_unit(HERE)
    for actual, wanted in held(LIMITS).values():
        assert actual == wanted
    assert driver.children(pods_cgroup(ROOT)) == {f"pod{UID}"}
    for where in candidate_cgroups(UID, ROOT):
        driver.remove(where)
        driver.remove(where)
    assert not FILES.has_directory(hierarchy.slice_path(HERE))
    assert driver.children(pods_cgroup(ROOT)) == driver.children(HERE) == set()


def test_slice_limits_change_and_end_after_an_agent_restart(driver: SystemdDriver) -> None:
    for cgroup_limits in (LIMITS, CgroupLimits(shares=4096, memory=128 << 20), CgroupLimits()):
        SystemdDriver(FILES).create(HERE, cgroup_limits)
        for file, (actual, wanted) in held(cgroup_limits).items():
            endless = file == "memory.limit_in_bytes" and wanted == "-1"
            assert int(actual) > 1 << 60 if endless else actual == wanted, file


def test_stopped_slice_is_created_again(driver: SystemdDriver) -> None:
    driver.create(HERE, LIMITS)
    subprocess.run(["systemctl", "stop", hierarchy.slice_unit(HERE)], check=True)
    assert not FILES.has_directory(hierarchy.slice_path(HERE))
    driver.create(HERE, LIMITS)
    for actual, wanted in held(LIMITS).values():
        assert actual == wanted


def test_slice_with_a_running_process_is_kept(driver: SystemdDriver) -> None:
    unit = driver.create(HERE, LIMITS)
    command = ["systemd-run", "--scope", "--quiet", f"--slice={unit}", "sleep", "infinity"]
    with subprocess.Popen(command) as inside:
        wait_until(lambda: FILES.has_processes(hierarchy.slice_path(HERE)), "it runs in the slice")
        with pytest.raises(NotReady, match="still has processes"):
            driver.remove(HERE)
        assert inside.poll() is None
        inside.send_signal(signal.SIGKILL)
    wait_until(lambda: not FILES.has_processes(hierarchy.slice_path(HERE)), "it has ended")
    driver.remove(HERE)
    assert not FILES.has_directory(hierarchy.slice_path(HERE))


def test_systemd_errors_are_reported_verbatim(driver: SystemdDriver) -> None:
    with pytest.raises(Refused, match=r"systemd: StartTransientUnit .*no name\.slice: Invalid unit name"):
        driver.create(CgroupPath((ROOT.strip("/"), "no name")), LIMITS)


def test_slice_usage_and_limits_are_read(driver: SystemdDriver) -> None:
    driver.create(HERE, LIMITS)
    files = CgroupReader()
    controllers = ("cpu", "cpuacct", "memory", "pids") if files.version == 1 else ("",)
    seen = files.usage(dict.fromkeys(controllers, hierarchy.slice_path(HERE)), ALL_FILES)
    assert seen is not None
    assert (seen.memory_limit, seen.quota, seen.tasks_limit, seen.tasks) == (64 << 20, 50_000, 50, 0)
