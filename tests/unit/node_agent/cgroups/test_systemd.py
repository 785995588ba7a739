"""The systemd cgroup driver on a machine without systemd."""

from __future__ import annotations

from pathlib import Path

import pytest

from node_agent.cgroups.cgroupfs import CgroupfsDriver
from node_agent.cgroups.hierarchy import CgroupLimits, pods_cgroup
from node_agent.cgroups.systemd import SystemdDriver
from reconcile.errors import NotReady


def test_missing_systemd_bus_is_reported_with_what_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    bus = tmp_path / "bus"
    driver = SystemdDriver(CgroupfsDriver(tmp_path), bus)
    with pytest.raises(NotReady) as caught:
        driver.create(pods_cgroup("/"), CgroupLimits())
    assert str(caught.value) == (
        f"Docker has the cgroup driver systemd, but {bus}: No such file or directory; systemd with dbus is"
        ' accepted, or Docker with "exec-opts": ["native.cgroupdriver=cgroupfs"] in its daemon.json'
    )


def test_removing_a_missing_slice_needs_no_systemd(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    SystemdDriver(CgroupfsDriver(tmp_path), tmp_path / "bus").remove(pods_cgroup("/"))


def test_slice_with_processes_is_not_removed(tmp_path: Path) -> None:
    scope = tmp_path / "cpu" / "kubepods.slice" / "docker-1.scope"
    scope.mkdir(parents=True)
    (scope / "cgroup.procs").write_text("1\n")
    with pytest.raises(NotReady, match=r"control group /kubepods\.slice still has processes"):
        SystemdDriver(CgroupfsDriver(tmp_path), tmp_path / "bus").remove(pods_cgroup("/"))
