"""Which way of making control groups the agent takes, by what Docker says of itself."""

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
from tests.unit.node_agent.examples import UID, pod

WISH = pod("[{name: main, image: a, resources: {requests: {cpu: 500m}}}]")


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
        docker, files, SystemdDriver(files, mount / "bus"), "/", PodsCapacity(2, 4 << 30), lambda: (WISH,)
    )


async def test_with_cgroupfs_the_pod_its_class_and_all_pods_have_a_group(
    docker: FakeDocker, groups: CgroupManager, mount: Path
) -> None:
    docker.cgroups = "cgroupfs"
    assert await groups.make(WISH) == f"/kubepods/burstable/pod{UID}"
    assert (mount / "memory/kubepods/memory.limit_in_bytes").read_text() == str(4 << 30)
    for group in ("burstable", f"burstable/pod{UID}"):
        assert (mount / "cpu/kubepods" / group / "cpu.shares").read_text() == "512"
    assert await groups.known() == {UID}


async def test_with_systemd_nothing_is_done_without_it(docker: FakeDocker, groups: CgroupManager) -> None:
    docker.cgroups = "systemd"
    for _ in range(2):
        with pytest.raises(NotReady, match=r"through systemd, but .*/bus: No such file"):
            await groups.make(WISH)
    assert await groups.known() == set()


async def test_docker_may_come_back_with_another_driver(docker: FakeDocker, groups: CgroupManager) -> None:
    assert await groups.make(WISH) == ""
    docker.cgroups = "cgroupfs"
    assert await groups.make(WISH) == ""
    groups.docker_came()
    assert await groups.make(WISH) == f"/kubepods/burstable/pod{UID}"


async def test_pods_run_without_groups_where_the_machine_allows_none(
    docker: FakeDocker, groups: CgroupManager, mount: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (mount / "pids").rmdir()
    (mount / "pids").write_text("")
    docker.cgroups = "cgroupfs"
    with caplog.at_level(logging.WARNING):
        assert await groups.make(WISH) == await groups.make(WISH) == ""
    (record,) = caplog.records
    assert "pids.max does not take" in record.__dict__["reason"]


async def test_a_driver_that_nobody_knows_is_refused(docker: FakeDocker, groups: CgroupManager) -> None:
    docker.cgroups = "magic"
    with pytest.raises(Refused, match="Docker's cgroup driver is magic; cgroupfs, systemd and none are accepted"):
        await groups.make(WISH)
