"""Executes the LocalVolumes of this node, and reports their directories."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from api.client.client import Client, ClientError, Conflict, NotFound
from api.client.informer import Informer
from api.core.storage import (
    ABSENT,
    CREATED,
    DELETED,
    MAX_LOCAL_VOLUME_MESSAGE,
    READY,
    SCRUBBED,
    LocalVolume,
    LocalVolumeStatus,
)
from node_agent.volumes.local_directories import LocalDirectories
from reconcile.backoff import Backoff
from reconcile.errors import DriverError, Refused
from reconcile.loop import Loop, LoopTiming, retry_unexpected_errors

T = TypeVar("T")

log = logging.getLogger(__name__)

RETRY_BACKOFF = Backoff(0.5, 60.0)
"""Seconds between attempts to change a directory."""

NO_DIRECTORY = "this node has no local volumes: localVolumeDir is none"

_THREADS = ThreadPoolExecutor(2, thread_name_prefix="local-volume")
"""Threads for directories of local volumes only: deletions of large volumes do not delay the mounts of pods."""


def phase_to_reach(volume: LocalVolume) -> str:
    """Return the phase that the node has to bring about; empty if there is nothing to do. Pure.

    A directory is created only for a volume that was never reported. One that is missing later is not replaced, because
    its data would seem to be lost.
    """
    state, phase = volume.spec.state, volume.status.phase
    if state == CREATED and not phase:
        return READY
    if state == SCRUBBED and phase == READY:
        return SCRUBBED
    return DELETED if state == ABSENT and phase != DELETED else ""


class _Failure(NamedTuple):
    """The last failed attempt: how many in a row, and when the next one is due on the loop's clock."""

    attempts: int
    retry_at: float


class LocalVolumeController:
    """Creates, empties and deletes directories as LocalVolumes of this node say.

    `directories` is None if the node has no local volumes.
    """

    def __init__(self, client: Client, node_name: str, directories: LocalDirectories | None) -> None:
        self.loop = Loop("local volumes", retry_unexpected_errors("local volumes", self._start_pending), LoopTiming())
        self.informer = Informer(
            client,
            LocalVolume,
            field_selector=f"spec.nodeName={node_name}",
            on_change=self.loop.wake,
            optional=True,
            accepts=lambda volume: volume.spec.node_name == node_name,
        )
        self._client = client
        self._directories = directories
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, _Failure] = {}

    async def run(self) -> None:
        """Execute LocalVolumes until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.informer.run())
                tasks.create_task(self.loop.run())
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def _start_pending(self) -> None:
        """Start a task for each volume with something to do, so that no volume waits for another one."""
        pending = {volume.metadata.name for volume in self.informer.items.values() if phase_to_reach(volume)}
        self._failures = {name: failure for name, failure in self._failures.items() if name in pending}
        self._tasks = {name: task for name, task in self._tasks.items() if not task.done()}
        now = asyncio.get_running_loop().time()
        for name in sorted(pending - self._tasks.keys()):
            failure = self._failures.get(name)
            if failure is None or failure.retry_at <= now:
                task = asyncio.create_task(self._execute(name))
                task.add_done_callback(lambda _: self.loop.wake())
                self._tasks[name] = task

    async def _execute(self, name: str) -> None:
        """Bring a volume to its state and report it. A failure is reported, and retried later."""
        try:
            # The informer may be behind. What was emptied a moment ago may be in use again.
            volume = await self._client.get(LocalVolume, name)
            phase = phase_to_reach(volume)
            if not phase:
                return
            status = await self._status(volume, phase)
            if status != volume.status:
                await self._client.update_status(replace(volume, status=status))
        except (NotFound, Conflict):
            return  # The informer brings another version.
        except ClientError as error:
            log.warning("local volume not reported", extra={"volume": name, "error": error})
            self._retry_later(name)

    async def _status(self, volume: LocalVolume, phase: str) -> LocalVolumeStatus:
        """Return the status of a volume after an attempt to bring about a phase."""
        name = volume.metadata.name
        try:
            path = await self._reach(volume, phase)
        except DriverError as error:
            log.warning("local volume not changed", extra={"volume": name, "phase": phase, "error": error})
            self._retry_later(name)
            return replace(volume.status, message=str(error)[:MAX_LOCAL_VOLUME_MESSAGE])
        log.info("local volume changed", extra={"volume": name, "phase": phase})
        self._failures.pop(name, None)
        return LocalVolumeStatus(phase=phase, path=path or volume.status.path)

    async def _reach(self, volume: LocalVolume, phase: str) -> str:
        """Change the directory. Return its path if it was created. Raises DriverError."""
        name, directories = volume.metadata.name, self._directories
        if directories is None:
            raise Refused(NO_DIRECTORY)
        if phase == READY:
            return await self._in_thread(directories.create, name)
        if volume.status.path:
            directories.check_path(name, volume.status.path)
        step = directories.scrub_some if phase == SCRUBBED else directories.delete_some
        while not await self._in_thread(step, name):
            continue
        return ""

    async def _in_thread(self, function: Callable[[str], T], name: str) -> T:
        return await asyncio.get_running_loop().run_in_executor(_THREADS, function, name)

    def _retry_later(self, name: str) -> None:
        previous = self._failures.get(name)
        count = previous.attempts + 1 if previous is not None else 1
        event_loop, delay = asyncio.get_running_loop(), RETRY_BACKOFF.delay(count)
        self._failures[name] = _Failure(count, event_loop.time() + delay)
        event_loop.call_later(delay, self.loop.wake)
