"""Process set-up that all daemons share: log format, signals, memory, notification of systemd."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
from asyncio import sslproto
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from reconcile import malloc
from reconcile.reload import Reloader

_LIBC = ctypes.CDLL(None)
_M_ARENA_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -8, -3, -1
_MAX_HEAP_BLOCK = 512 << 10
"""Size in bytes above which a block of memory is mapped by itself, and returns to the kernel as soon as it is freed.

Without a fixed value, the C library raises it to the size of the largest block that was freed, up to 32 MB. A list of
all services would then lie among small blocks that stay. Buffers of sockets (256 KB) are smaller, so that they are
not mapped for every read.
"""
_TLS_BUFFER = 64 << 10
"""Size in bytes of a TLS read buffer. Most connections are idle, and asyncio's default is four times as large."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class KeyValue(logging.Formatter):
    """Formatter of log lines such as `level=info msg="flows replaced" added=3`: message, then extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line. The traceback of an exception follows on separate lines."""
        extra = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        fields = {"level": record.levelname.lower(), "msg": record.getMessage(), **extra}
        line = " ".join(f"{key}={_quoted(str(value))}" for key, value in fields.items())
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class TimedKeyValue(KeyValue):
    """Formatter of the same lines with their time (RFC 3339), for files and terminals, which add none."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with its time in UTC before it."""
        moment = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
        return f"time={moment.isoformat(timespec='milliseconds')}Z {super().format(record)}"


class JournalKeyValue(KeyValue):
    """Formatter of the same lines for journald: each begins with its priority (sd-daemon(3)), also in a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines, each with the priority of the record."""
        priority = _PRIORITIES.get(record.levelno, "<6>")
        return "\n".join(f"{priority}{line}" for line in super().format(record).split("\n"))


_PRIORITIES = {
    logging.DEBUG: "<7>",
    logging.INFO: "<6>",
    logging.WARNING: "<4>",
    logging.ERROR: "<3>",
    logging.CRITICAL: "<2>",
}


def _writes_to_journal() -> bool:
    """Return True if the standard error is a stream of journald, which systemd names by device and inode."""
    try:
        here = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{here.st_dev}:{here.st_ino}"


def _quoted(text: str) -> str:
    """Return a value of a line, in quotes if needed. Control characters are escaped: they may be of a client."""
    if text.isprintable() and text and not any(c in ' "=' for c in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    if not escaped.isprintable():
        escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in escaped)
    return f'"{escaped}"'


def run(
    main: Callable[[], Awaitable[None]], level: str = "info", make_reloader: Callable[[], Reloader[Any]] | None = None
) -> int:
    """Run a daemon until it ends or receives SIGTERM or SIGINT. Return the exit code, 0 after a signal.

    At SIGHUP the daemon reads its settings again by the reloader. Without one, the signal ends it.

    Enables faulthandler, so that a crash in a native library leaves a traceback in the log.
    """
    faulthandler.enable()
    _LIBC.mallopt(_M_ARENA_MAX, 1)  # threads share one heap: they wait far more than they allocate
    _LIBC.mallopt(_M_MMAP_THRESHOLD, _MAX_HEAP_BLOCK)
    _LIBC.mallopt(_M_TRIM_THRESHOLD, 2 * _MAX_HEAP_BLOCK)
    sslproto.SSLProtocol.max_size = _TLS_BUFFER
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JournalKeyValue() if _writes_to_journal() else TimedKeyValue())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    return asyncio.run(_until_stopped(main, make_reloader))


async def _until_stopped(main: Callable[[], Awaitable[None]], make_reloader: Callable[[], Reloader[Any]] | None) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(main())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    background = [asyncio.create_task(_feed_watchdog()), asyncio.create_task(malloc.trim_periodically())]
    if make_reloader is not None:
        reloader = make_reloader()
        loop.add_signal_handler(signal.SIGHUP, reloader.request)
        background.append(asyncio.create_task(reloader.run()))
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    finally:
        for task_in_background in background:
            task_in_background.cancel()
        notify("STOPPING=1")
    return 0


async def _feed_watchdog() -> None:
    """Notify the systemd watchdog twice per WatchdogSec, as long as the event loop runs."""
    seconds = int(os.environ.get("WATCHDOG_USEC", "0")) / 2_000_000
    while seconds:
        notify("WATCHDOG=1")
        await asyncio.sleep(seconds)


def notify(state: str) -> None:
    """Send a state to the service manager (sd_notify(3)). Do nothing if there is none."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as service_manager:
        service_manager.connect("\0" + path[1:] if path.startswith("@") else path)
        service_manager.sendall(state.encode())
