"""The audit log: a file of events, written by a task of its own and rotated by size. Driver.

Source: the log backend of kube-apiserver. A request never waits for the disk. In the mode `batch`, events that do not
fit the queue are dropped and counted. In the mode `blocking-strict`, a request without room for its events is rejected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

QUEUE_LENGTH = 10_000
"""Events that wait for the disk."""

MAX_QUEUED_BYTES = 64 << 20
"""Bytes of the events that wait."""

EVENTS_PER_REQUEST = 3

COLLECT_SECONDS = 0.1
"""Time in which further events join one write. A write in a thread costs more than ten events, and a request must not
pay for it.
"""

RETRY_SECONDS, CLOSING_SECONDS = 1.0, 5.0


@dataclass(frozen=True, slots=True)
class LogFile:
    """The file, the bytes at which it is rotated, and the number of rotated files to keep."""

    path: Path
    max_bytes: int
    backups: int


class Reservation:
    """Places in the queue that a request holds until it has ended, or until it turns out to be a stream."""

    def __init__(self, log: AuditLog, places: int) -> None:
        self._log = log
        self._places = places
        log.change_reserved(places)

    def record(self, event: bytes) -> None:
        """Record an event of the request."""
        self._log.record(event)

    def release(self) -> None:
        """Give the places back. A later event may be dropped."""
        self._log.change_reserved(-self._places)
        self._places = 0


class AuditLog:
    """The queue of events, and the task that writes it. `is_strict` is the mode `blocking-strict`."""

    def __init__(self, file: LogFile, *, is_strict: bool, queue_length: int = QUEUE_LENGTH) -> None:
        self._file = file
        self._is_strict = is_strict
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(queue_length)
        self._queued_bytes = 0
        self._is_filling = asyncio.Event()
        """Set while the queue has so much that it is written at once."""
        self._reserved = 0
        self._fails = False
        self.written = 0
        """Events in the file."""
        self.dropped = 0
        """Events that were lost: the queue was full, or the disk failed."""

    def reserve(self) -> Reservation:
        """Return places in the queue for the events of a request. Raises AuditLogFull if the log is strict."""
        if not self._is_strict:
            return Reservation(self, 0)
        room = self._queue.maxsize - self._queue.qsize() - self._reserved
        if self._fails or room < EVENTS_PER_REQUEST or self._queued_bytes > MAX_QUEUED_BYTES // 2:
            raise AuditLogFull
        return Reservation(self, EVENTS_PER_REQUEST)

    def change_reserved(self, places: int) -> None:
        """Change the number of places that requests hold."""
        self._reserved += places

    def record(self, event: bytes) -> None:
        """Put an event into the queue, or drop it if the queue is full."""
        if self._queue.full() or self._queued_bytes + len(event) > MAX_QUEUED_BYTES:
            self.dropped += 1
            return
        self._queued_bytes += len(event)
        self._queue.put_nowait(event)
        if self._queue.qsize() > self._queue.maxsize // 4 or self._queued_bytes > MAX_QUEUED_BYTES // 4:
            self._is_filling.set()

    async def run(self) -> None:
        """Write events until cancelled, and then those that are left."""
        writing: asyncio.Task[None] | None = None
        first: list[bytes] = []
        try:
            while True:
                first = [await self._queue.get()]
                with contextlib.suppress(TimeoutError):
                    # Not wait_for: in Python 3.11 it may swallow a cancellation that comes together with the event.
                    async with asyncio.timeout(COLLECT_SECONDS):
                        await self._is_filling.wait()
                events, first = [*first, *self._waiting()], []
                self._queued_bytes = 0
                self._is_filling.clear()
                writing = asyncio.create_task(self._write(events))
                await asyncio.shield(writing)
        finally:
            if writing is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(writing, CLOSING_SECONDS)
            if rest := [*first, *self._waiting()]:
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(append, self._file, b"".join(rest))
                    self.written += len(rest)

    def _waiting(self) -> list[bytes]:
        return [self._queue.get_nowait() for _ in range(self._queue.qsize())]

    async def _write(self, events: list[bytes]) -> None:
        """Write events. If the disk fails, they are lost; a strict log tries again."""
        while True:
            try:
                await asyncio.to_thread(append, self._file, b"".join(events))
            except OSError as error:
                if not self._fails:
                    log.error("audit events not written", extra={"file": str(self._file.path), "error": str(error)})
                self._fails = True
                if not self._is_strict:
                    self.dropped += len(events)
                    return
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if self._fails:
                log.info("audit events are written again", extra={"file": str(self._file.path)})
            self._fails = False
            self.written += len(events)
            return


class AuditLogFull(Exception):
    """There is no room for the events of a request."""


def append(file: LogFile, data: bytes) -> None:
    """Append data to the file. Rotate it first if it would become too large: audit.log becomes audit.log.1."""
    file.path.parent.mkdir(parents=True, exist_ok=True)
    size = file.path.stat().st_size if file.path.exists() else 0
    if size and size + len(data) > file.max_bytes:
        _rotate(file)
    descriptor = os.open(file.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as opened:
        begin = opened.seek(0, os.SEEK_END)
        if opened.write(data) != len(data):
            opened.truncate(begin)
            raise OSError("the disk is full")


def _rotate(file: LogFile) -> None:
    names = [file.path, *(file.path.with_name(f"{file.path.name}.{number}") for number in range(1, file.backups + 1))]
    for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
        if newer.exists():
            newer.replace(older)
    if not file.backups:
        file.path.unlink()
