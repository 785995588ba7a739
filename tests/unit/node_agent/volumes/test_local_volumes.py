"""The LocalVolumes of a node: what is to be done, and that nothing is done for an outdated version of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from api.client.client import Client, Event
from api.core.storage import LocalVolume, LocalVolumeSpec, LocalVolumeStatus
from api.meta.types import ObjectMeta
from node_agent.volumes.local_directories import LocalDirectories
from node_agent.volumes.local_volumes import NO_DIRECTORY, LocalVolumeController, phase_to_reach


def volume(state: str, phase: str = "", path: str = "", name: str = "pvc-1") -> LocalVolume:
    return LocalVolume(
        metadata=ObjectMeta(name=name, resource_version="1"),
        spec=LocalVolumeSpec(node_name="node-1", state=state),
        status=LocalVolumeStatus(phase=phase, path=path),
    )


@pytest.mark.parametrize(
    ("state", "phase", "expected"),
    [
        ("Created", "", "Ready"),
        ("Created", "Ready", ""),
        ("Present", "", ""),
        ("Present", "Ready", ""),
        ("Scrubbed", "Ready", "Scrubbed"),
        ("Scrubbed", "Scrubbed", ""),
        ("Scrubbed", "Deleted", ""),
        ("Absent", "", "Deleted"),
        ("Absent", "Ready", "Deleted"),
        ("Absent", "Scrubbed", "Deleted"),
        ("Absent", "Deleted", ""),
        ("of a later version", "Ready", ""),
    ],
)
def test_phase_to_reach_follows_from_state_and_phase(state: str, phase: str, expected: str) -> None:
    assert phase_to_reach(volume(state, phase)) == expected


class Master:
    """The LocalVolumes as the API server has them, and as it lists them to an informer, which may be behind."""

    def __init__(self, stored: LocalVolume, listed: LocalVolume) -> None:
        self.stored = stored
        self.listed = listed
        self.is_away = False
        self.reads = 0
        self.reports: list[LocalVolumeStatus] = []

    async def list_each(
        self, kind: type[Any], handle: Callable[[Any], None], namespace: str = "", field_selector: str = ""
    ) -> str:
        assert field_selector == "spec.nodeName=node-1"
        handle(self.listed)
        return "1"

    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[Event[LocalVolume]]:
        await asyncio.Event().wait()
        yield cast("Event[LocalVolume]", None)

    async def get(self, kind: type[Any], name: str) -> LocalVolume:
        self.reads += 1
        return self.stored

    async def update_status(self, obj: LocalVolume) -> LocalVolume:
        self.reports.append(obj.status)
        self.stored = replace(self.stored, status=obj.status)
        return self.stored


async def act(master: Master, directories: LocalDirectories | None) -> None:
    """Run the controller until it has read the volume, and has reported if it does."""
    controller = LocalVolumeController(cast("Client", master), "node-1", directories)
    task = asyncio.create_task(controller.run())
    try:
        async with asyncio.timeout(20):
            while not master.reads or any(not each.done() for each in controller._tasks.values()):
                await asyncio.sleep(0.005)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def exist(*paths: Path) -> bool:
    return all(path.exists() for path in paths)


@pytest.fixture
def directories(tmp_path: Path) -> LocalDirectories:
    (tmp_path / "pods").mkdir()
    return LocalDirectories(tmp_path / "local", tmp_path / "pods", creates_root=True)


@pytest.mark.parametrize("state", ["Scrubbed", "Absent"])
async def test_volume_that_is_in_use_again_is_not_emptied_for_an_old_request(
    directories: LocalDirectories, state: str
) -> None:
    path = Path(directories.create("pvc-1"))
    (path / "file").write_text("of the next claim")
    listed = volume(state, "Ready", str(path))
    master = Master(stored=volume("Present", "Ready", str(path)), listed=listed)
    await act(master, directories)
    assert ((path / "file").read_text(), master.reports) == ("of the next claim", [])
    await act(Master(stored=listed, listed=listed), directories)
    assert not (path / "file").exists(), "a request that holds is executed"


async def test_directory_outside_of_the_setting_is_not_deleted(directories: LocalDirectories, tmp_path: Path) -> None:
    path = Path(directories.create("pvc-1"))
    elsewhere = tmp_path / "disk" / "pvc-1"
    elsewhere.mkdir(parents=True)
    master = Master(stored := volume("Absent", "Ready", str(elsewhere)), stored)
    await act(master, directories)
    (report,) = master.reports
    assert (report.phase, exist(elsewhere, path)) == ("Ready", True)
    assert f"{elsewhere} is not in localVolumeDir, which is {tmp_path / 'local'}" in report.message


async def test_node_without_local_volumes_says_so() -> None:
    master = Master(stored := volume("Created"), stored)
    await act(master, None)
    assert [(report.phase, report.message) for report in master.reports] == [("", NO_DIRECTORY)]


async def test_directory_is_reported_with_its_path(directories: LocalDirectories, tmp_path: Path) -> None:
    master = Master(stored := volume("Created"), stored)
    await act(master, directories)
    assert master.reports[0] == LocalVolumeStatus(phase="Ready", path=str(tmp_path / "local" / "pvc-1"))
