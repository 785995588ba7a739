"""The selection of a cgroup driver by Docker's setting."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from node_agent.cgroups.cgroupfs import CgroupfsDriver
from node_agent.cgroups.hierarchy import PodsCapacity
from node_agent.cgroups.manager import CgroupManager
from node_agent.cgroups.systemd import SystemdDriver
from reconcile.errors import NotReady, Refused
from tests.testbed.docker.fake import FakeDocker
from tests.unit.node_agent.examples import UID, make_pod

POD = make_pod("[{name: main, image: a, resources: {requests: {cpu: 500m}}}]")


@pytest.fixture
def docker() -> FakeDocker:
    return FakeDocker()


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    for name in ("cpu", "memory", "pids"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def groups(docker: FakeDocker, mount: Path) -> CgroupManager:
    files = CgroupfsDriver(mount)
    return CgroupManager(
        docker, files, SystemdDriver(files, mount / "bus"), "/", PodsCapacity(2, 4 << 30), lambda: (POD,)
    )


async def test_cgroupfs_driver_creates_pod_qos_and_root_cgroups(
    docker: FakeDocker, groups: CgroupManager, mount: Path
) -> None:
    docker.cgroups = "cgroupfs"
    assert await groups.create(POD) == f"/kubepods/burstable/pod{UID}"
    assert (mount / "memory/kubepods/memory.limit_in_bytes").read_text() == str(4 << 30)
    for group in ("burstable", f"burstable/pod{UID}"):
        assert (mount / "cpu/kubepods" / group / "cpu.shares").read_text() == "512"
    assert await groups.list_pod_uids() == {UID}


async def test_systemd_driver_does_nothing_without_systemd(docker: FakeDocker, groups: CgroupManager) -> None:
    docker.cgroups = "systemd"
    for _ in range(2):
        with pytest.raises(NotReady, match=r"has the cgroup driver systemd, but .*/bus: No such file"):
            await groups.create(POD)
    assert await groups.list_pod_uids() == set()


async def test_cgroup_driver_follows_docker_after_a_restart(docker: FakeDocker, groups: CgroupManager) -> None:
    assert await groups.create(POD) == ""
    docker.cgroups = "cgroupfs"
    assert await groups.create(POD) == ""
    groups.invalidate_driver()
    assert await groups.create(POD) == f"/kubepods/burstable/pod{UID}"


async def test_pods_run_without_cgroups_when_the_machine_forbids_them(
    docker: FakeDocker, groups: CgroupManager, mount: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (mount / "pids").rmdir()
    (mount / "pids").write_text("")
    docker.cgroups = "cgroupfs"
    with caplog.at_level(logging.WARNING):
        assert await groups.create(POD) == await groups.create(POD) == ""
    (record,) = caplog.records
    assert "pids.max does not accept" in record.__dict__["reason"]


async def test_unknown_cgroup_driver_is_rejected(docker: FakeDocker, groups: CgroupManager) -> None:
    docker.cgroups = "magic"
    with pytest.raises(Refused, match="Docker's cgroup driver is magic; cgroupfs, systemd and none are accepted"):
        await groups.create(POD)
