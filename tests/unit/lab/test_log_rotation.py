"""Logs of a lab stay within their bound, and the processes that write them go on."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from pathlib import Path

import pytest

from lab.log_rotation import keep_bounded, rotate

MAX = 4096


def test_a_log_is_rotated_when_it_is_longer_than_the_bound(tmp_path: Path) -> None:
    log, previous = tmp_path / "sdn.log", tmp_path / "sdn.log.1"
    assert not rotate(log, MAX)
    with log.open("ab", buffering=0) as writer:
        writer.write(b"a" * MAX)
        assert not rotate(log, MAX)
        writer.write(b"b")
        assert rotate(log, MAX)
        assert (log.read_bytes(), previous.read_bytes()) == (b"", b"a" * (MAX - 1) + b"b")
        writer.write(b"c")
        assert log.read_bytes() == b"c", "the writer appends: there is no hole"
        writer.write(b"d" * 3 * MAX)
        assert rotate(log, MAX)
        assert (log.read_bytes(), previous.read_bytes()) == (b"", b"d" * MAX)


def test_a_log_is_emptied_also_where_no_copy_can_be_written(tmp_path: Path) -> None:
    log = tmp_path / ("n" * 255)  # the name of the copy would be too long
    log.write_bytes(b"a" * (MAX + 1))
    assert rotate(log, MAX)
    assert log.stat().st_size == 0


async def test_a_process_that_writes_past_the_bound_is_kept_within_it(tmp_path: Path) -> None:
    log, previous = tmp_path / "node-agent.log", tmp_path / "node-agent.log.1"
    rotating = asyncio.create_task(keep_bounded([tmp_path / "missing.log", log], MAX, 0.001))
    script = (
        f"for number in $(seq 3000); do echo $number 0123456789; done; until [ -s {previous} ]; do sleep 0.01; done"
    )
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec("sh", "-c", script, stdout=output, stderr=subprocess.STDOUT)
        assert await process.wait() == 0
    while log.stat().st_size > MAX:
        await asyncio.sleep(0.001)
    rotating.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await rotating
    text = previous.read_text() + log.read_text()
    assert 0 < len(text) <= 2 * MAX
    assert "\0" not in text


@pytest.mark.parametrize("size", [0, 1])
def test_rotation_of_a_folder_is_harmless(size: int, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    assert not rotate(tmp_path / "log", size)
