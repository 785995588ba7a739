"""Logs of containers on a real Docker: complete, tailed and followed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from api.core.log_options import NANOSECONDS, PodLogOptions, parse_nanoseconds
from node_agent.docker.logs import stream_logs
from reconcile.errors import Gone, NotReady, Refused
from tests.testbed.docker.containers import open_sockets, run_docker, start_container, until
from tests.testbed.docker.daemon import DEADLINE_SECONDS, Dockerd
from tests.testbed.wait import wait_until

LONG = 40_000
LINES = ("echo a", "echo b >&2", f"head -c {LONG} /dev/zero | tr '\\0' x; echo; echo c")
LOGGED = "until rm /logged 2>/dev/null; do usleep 10000; done"
"""Waits until the test says that the last line is in Docker's log. Docker reads stdout and stderr side by side."""
STAMP = re.compile(rb"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z ")


@pytest.fixture(autouse=True)
async def _nothing_stays() -> AsyncIterator[None]:
    """Check that no socket and no task is left after a test."""
    before = open_sockets()
    yield
    await until(lambda: open_sockets() <= before, "no socket is left")
    await until(lambda: len(asyncio.all_tasks()) == 1, "no task is left")


@pytest.fixture(scope="module")
def ended(dockerd: Dockerd) -> str:
    """Return a container that has written its log and ended."""
    container = start_container(dockerd, "sh", "-c", f"; {LOGGED}; ".join(LINES))
    with contextlib.closing(dockerd.client()) as client:
        for lines in (b"a\n", b"a\nb\n"):
            wait_until(lambda lines=lines: client.logs(container) == lines, f"the log {lines!r}")  # type: ignore[misc]
            run_docker(dockerd, "exec", container, "touch", "/logged")
    run_docker(dockerd, "wait", container)
    return container


async def text(dockerd: Dockerd, container: str, options: PodLogOptions) -> bytes:
    async with asyncio.timeout(DEADLINE_SECONDS), stream_logs(str(dockerd.socket), container, options) as pieces:
        return b"".join([piece async for piece in pieces])


def changed_options(options: PodLogOptions) -> list[str]:
    """Return the options that differ from their defaults."""
    fields = (field.name for field in dataclasses.fields(options))
    return [f"{name}={value}" for name in fields if (value := getattr(options, name)) != getattr(PodLogOptions(), name)]


ALL = b"a\nb\n" + b"x" * LONG + b"\nc\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (PodLogOptions(), ALL),
        (PodLogOptions(follow=True), ALL),
        (PodLogOptions(tail_lines=0), b""),
        (PodLogOptions(tail_lines=1), b"c\n"),
        (PodLogOptions(tail_lines=1, follow=True), b"c\n"),
        (PodLogOptions(stream="Stdout"), ALL.replace(b"b\n", b"")),
        (PodLogOptions(stream="Stderr"), b"b\n"),
        (PodLogOptions(limit_bytes=3), b"a\nb"),
        (PodLogOptions(limit_bytes=3, follow=True), b"a\nb"),
        (PodLogOptions(limit_bytes=len(ALL)), ALL),
        (PodLogOptions(limit_bytes=len(ALL) + 1), ALL),
        (PodLogOptions(since_seconds=3600), ALL),
        (PodLogOptions(since_time=1), ALL),
        (PodLogOptions(since_time=4_000_000_000 * NANOSECONDS), b""),
    ],
    ids=lambda value: ",".join(changed_options(value)) if isinstance(value, PodLogOptions) else f"{len(value)} bytes",
)
async def test_log_options_select_the_returned_lines(
    dockerd: Dockerd, ended: str, options: PodLogOptions, said: bytes
) -> None:
    assert await text(dockerd, ended, options) == said


async def test_timestamped_log_has_every_line_complete(dockerd: Dockerd, ended: str) -> None:
    timed = await text(dockerd, ended, PodLogOptions(timestamps=True))
    assert all(STAMP.match(line) for line in timed.splitlines())
    assert STAMP.sub(b"", timed) == ALL
    assert await text(dockerd, ended, PodLogOptions(timestamps=True, limit_bytes=31)) == timed[:31]


async def test_log_since_time_resumes_to_the_nanosecond(dockerd: Dockerd, ended: str) -> None:
    timed = await text(dockerd, ended, PodLogOptions(timestamps=True))
    second = parse_nanoseconds(timed.splitlines()[1].split()[0].decode())
    assert await text(dockerd, ended, PodLogOptions(since_time=second)) == ALL.removeprefix(b"a\n")
    assert await text(dockerd, ended, PodLogOptions(since_time=second + 1)) == ALL.removeprefix(b"a\nb\n")


async def test_terminal_log_is_complete(dockerd: Dockerd) -> None:
    container = start_container(dockerd, "sh", "-c", "; ".join(LINES), flags=("-t",))
    followed = await text(dockerd, container, PodLogOptions(follow=True))
    output = ALL.replace(b"\n", b"\r\n")
    assert followed == await text(dockerd, container, PodLogOptions()) == output
    timed = await text(dockerd, container, PodLogOptions(timestamps=True))
    assert STAMP.sub(b"", timed) == output
    assert all(STAMP.match(line) for line in timed.splitlines())
    assert await text(dockerd, container, PodLogOptions(stream="Stderr")) == b""


async def test_followed_log_streams_lines_and_ends_with_the_container(dockerd: Dockerd) -> None:
    container = start_container(dockerd, "sh", "-c", "echo first; while read line; do echo $line; done", flags=("-i",))
    async with stream_logs(str(dockerd.socket), container, PodLogOptions(follow=True)) as pieces:
        assert await anext(pieces) == b"first\n"
        run_docker(dockerd, "exec", container, "sh", "-c", "echo second > /proc/1/fd/1")
        assert await anext(pieces) == b"second\n"
        run_docker(dockerd, "kill", container)
        assert [piece async for piece in pieces] == []


@pytest.mark.parametrize("flags", [(), ("-t",)], ids=["plain", "terminal"])
async def test_followed_log_ends_with_the_unterminated_last_line_once(dockerd: Dockerd, flags: tuple[str, ...]) -> None:
    """Docker's own `logs -f` loses a last line without an end more often than not."""
    script = "sleep 0.5; echo whole; printf %20000s x; echo; printf unfinished"
    containers = [start_container(dockerd, "sh", "-c", script, flags=flags) for _ in range(8)]
    output = await asyncio.gather(*(text(dockerd, container, PodLogOptions(follow=True)) for container in containers))
    end = b"\r\n" if flags else b"\n"
    assert output == [b"whole" + end + b" " * 19_999 + b"x" + end + b"unfinished"] * 8
    timed = await text(dockerd, containers[0], PodLogOptions(timestamps=True))
    assert STAMP.sub(b"", timed) == output[0]


async def test_followed_log_ends_when_the_container_is_removed(dockerd: Dockerd) -> None:
    container = start_container(dockerd, "sh", "-c", "echo first; sleep 100")
    async with stream_logs(str(dockerd.socket), container, PodLogOptions(follow=True)) as pieces:
        assert await anext(pieces) == b"first\n"
        run_docker(dockerd, "rm", "-f", container)
        assert [piece async for piece in pieces] == []


async def test_cancelled_log_reader_leaves_nothing(dockerd: Dockerd) -> None:
    container = start_container(dockerd, "sh", "-c", "while :; do echo again; done")
    for _ in range(3):
        async with stream_logs(str(dockerd.socket), container, PodLogOptions(follow=True)) as pieces:
            assert await anext(pieces)
    run_docker(dockerd, "kill", container)
    silent = start_container(dockerd)
    async with stream_logs(str(dockerd.socket), silent, PodLogOptions(follow=True)) as pieces:
        waiting = asyncio.ensure_future(anext(pieces))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("flags", [(), ("-t",)], ids=["plain", "terminal"])
async def test_rotated_log_is_followed_line_by_line(dockerd: Dockerd, flags: tuple[str, ...]) -> None:
    lines = 2000
    script = f"i=0; while [ $i -lt {lines} ]; do echo $i {'y' * 50}; usleep 1000; i=$((i+1)); done"
    rotation = ("--log-opt=max-size=20k", "--log-opt=max-file=2")
    container = start_container(dockerd, "sh", "-c", script, flags=(*rotation, *flags))
    followed = await text(dockerd, container, PodLogOptions(follow=True))
    assert [int(line.split()[0]) for line in followed.splitlines()] == list(range(lines))
    log = Path(run_docker(dockerd, "inspect", "-f", "{{.LogPath}}", container).strip())
    assert log.with_name(f"{log.name}.1").exists()
    numbers = [int(line.split()[0]) for line in (await text(dockerd, container, PodLogOptions())).splitlines()]
    assert numbers == list(range(numbers[0], lines))
    assert numbers[0] > 0


async def test_log_of_driver_none_is_rejected(dockerd: Dockerd) -> None:
    container = start_container(dockerd, "true", flags=("--log-driver=none",))
    run_docker(dockerd, "wait", container)
    with pytest.raises(Refused, match="configured logging driver does not support reading"):
        await text(dockerd, container, PodLogOptions())


async def test_log_of_another_logging_driver_is_read(dockerd: Dockerd) -> None:
    container = start_container(dockerd, "echo", "hello", flags=("--log-driver=local",))
    run_docker(dockerd, "wait", container)
    assert await text(dockerd, container, PodLogOptions(timestamps=True, follow=True)) != b""
    assert await text(dockerd, container, PodLogOptions()) == b"hello\n"


async def test_missing_container_or_docker_is_reported_before_any_output(dockerd: Dockerd, tmp_path: Path) -> None:
    with pytest.raises(Gone, match="No such container"):
        await text(dockerd, "nobody", PodLogOptions())
    with pytest.raises(NotReady, match="does not answer"):
        await text(Dockerd(tmp_path), "any", PodLogOptions())
