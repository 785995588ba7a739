"""The audit log: rotation, a full queue, and a disk that fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from master.audit import log as audit_log
from master.audit.log import AuditLog, AuditLogFull, LogFile, append
from tests.testbed.wait import DEADLINE_SECONDS


def test_file_is_rotated_by_size_and_old_ones_are_deleted(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "audit" / "audit.log", max_bytes=10, backups=2)
    for letter in "abcd":
        append(file, letter.encode() * 6)
    contents = {path.name: path.read_text() for path in file.path.parent.iterdir()}
    assert contents == {"audit.log": "dddddd", "audit.log.1": "cccccc", "audit.log.2": "bbbbbb"}
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_without_backups_the_file_begins_again(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "audit.log", max_bytes=10, backups=0)
    append(file, b"a" * 6)
    append(file, b"b" * 6)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["bbbbbb"]


def test_events_are_appended_after_a_restart(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "audit.log", max_bytes=100, backups=2)
    append(file, b"a\n")
    append(file, b"b\n")
    assert file.path.read_text() == "a\nb\n"


@contextlib.asynccontextmanager
async def running(log: AuditLog) -> AsyncIterator[None]:
    task = asyncio.create_task(log.run())
    try:
        yield
    finally:
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_events_are_written_in_order_also_at_the_end(tmp_path: Path) -> None:
    log = AuditLog(LogFile(tmp_path / "audit.log", 1 << 20, 1), is_strict=False)
    async with running(log):
        for number in range(500):
            log.reserve().record(b"%d\n" % number)
    assert (tmp_path / "audit.log").read_text().split() == [str(number) for number in range(500)]


async def test_events_are_collected_for_one_write_until_the_queue_fills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[bytes] = []
    monkeypatch.setattr(audit_log, "append", lambda file, data: writes.append(data))
    monkeypatch.setattr(audit_log, "COLLECT_SECONDS", 3600.0)
    log = AuditLog(LogFile(tmp_path / "audit.log", 1 << 20, 1), is_strict=False, queue_length=40)
    async with running(log):
        for _ in range(12):
            log.reserve().record(b"x")
            for _ in range(10):
                await asyncio.sleep(0)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while log.written < 12:
                await asyncio.sleep(0.01)
        assert writes == [b"x" * 12]
        log.reserve().record(b"the last one")
        for _ in range(10):
            await asyncio.sleep(0)
    assert writes == [b"x" * 12, b"the last one"]


@pytest.mark.parametrize("turns", range(6))
async def test_log_ends_also_if_the_queue_fills_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    monkeypatch.setattr(audit_log, "COLLECT_SECONDS", 3600.0)
    log = AuditLog(LogFile(tmp_path / "audit.log", 1 << 20, 1), is_strict=False, queue_length=4)
    task = asyncio.create_task(log.run())
    log.reserve().record(b"x")
    for _ in range(5):
        await asyncio.sleep(0)
    for _ in range(2):
        log.reserve().record(b"x")
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    ended, _ = await asyncio.wait({task}, timeout=DEADLINE_SECONDS)
    task.cancel()
    assert ended
    assert (log.written, (tmp_path / "audit.log").read_bytes()) == (3, b"xxx")


async def test_full_queue_drops_events_and_counts_them(tmp_path: Path) -> None:
    log = AuditLog(LogFile(tmp_path / "audit.log", 1 << 20, 1), is_strict=False, queue_length=5)
    for _ in range(8):
        log.reserve().record(b"x\n")
    assert log.dropped == 3


async def test_bytes_of_waiting_events_are_limited(tmp_path: Path) -> None:
    log = AuditLog(LogFile(tmp_path / "audit.log", 1 << 30, 1), is_strict=False)
    for _ in range(70):
        log.reserve().record(b"x" * (1 << 20))
    assert log.dropped == 6
    async with running(log):
        while log.written < 64:
            await asyncio.sleep(0.01)
        log.reserve().record(b"y" * (1 << 20))
    assert (log.written, log.dropped) == (65, 6)


async def test_strict_log_rejects_requests_without_room(tmp_path: Path) -> None:
    log = AuditLog(LogFile(tmp_path / "audit.log", 1 << 20, 1), is_strict=True, queue_length=6)
    requests = log.reserve(), log.reserve()
    with pytest.raises(AuditLogFull):
        log.reserve()
    for request in requests:
        for _ in range(3):
            request.record(b"x\n")
        request.release()
        request.release()
    with pytest.raises(AuditLogFull):
        log.reserve()
    async with running(log):
        while log.written < 6:
            await asyncio.sleep(0.01)
        log.reserve()
    assert log.dropped == 0


async def test_streams_hold_no_room(tmp_path: Path) -> None:
    log = AuditLog(LogFile(tmp_path / "audit.log", 1 << 20, 1), is_strict=True, queue_length=6)
    for _ in range(100):
        log.reserve().release()


@pytest.mark.parametrize("is_strict", [False, True])
async def test_disk_that_fails_drops_events_or_keeps_them(tmp_path: Path, is_strict: bool) -> None:
    blocked = tmp_path / "audit"
    blocked.write_text("a file, not a directory")
    log = AuditLog(LogFile(blocked / "audit.log", 1 << 20, 1), is_strict=is_strict)
    async with running(log):
        log.reserve().record(b"x\n")
        while not log.dropped and not log._fails:
            await asyncio.sleep(0.01)
        if is_strict:
            with pytest.raises(AuditLogFull):
                log.reserve()
        blocked.unlink()
        if not is_strict:
            log.reserve().record(b"y\n")
        while not log.written:
            await asyncio.sleep(0.01)
    assert (blocked / "audit.log").read_text() == ("x\n" if is_strict else "y\n")
    assert log.dropped == (0 if is_strict else 1)
