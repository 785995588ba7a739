"""What every daemon does around its work: log lines, signals, memory, and word to systemd."""

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

from reconcile import memory

_LIBC = ctypes.CDLL(None)
_M_ARENA_MAX = -8
_TLS_BUFFER = 64 << 10
"""Bytes that a TLS connection keeps for reading: most of ours are idle, and asyncio's own choice is four times that."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class KeyValue(logging.Formatter):
    """`level=info msg="flows replaced" added=3`: the message, then the record's extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; an exception's traceback follows on lines of its own."""
        extra = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        fields = {"level": record.levelname.lower(), "msg": record.getMessage(), **extra}
        line = " ".join(f"{key}={_quoted(str(value))}" for key, value in fields.items())
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _quoted(text: str) -> str:
    if text and not any(c in ' "=\n' for c in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def run(main: Callable[[], Awaitable[None]], level: str = "info") -> int:
    """Run a daemon until it ends or is told to stop (SIGTERM, SIGINT: exit 0). Returns the exit code.

    If a library of another language crashes, the log tells where.
    """
    faulthandler.enable()
    _LIBC.mallopt(_M_ARENA_MAX, 1)  # threads share one heap: they wait far more than they allocate
    sslproto.SSLProtocol.max_size = _TLS_BUFFER
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValue())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    return asyncio.run(_until_stopped(main))


async def _until_stopped(main: Callable[[], Awaitable[None]]) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(main())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    beside = [asyncio.create_task(_feed_watchdog()), asyncio.create_task(memory.give_back())]
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    finally:
        for one in beside:
            one.cancel()
        notify("STOPPING=1")
    return 0


async def _feed_watchdog() -> None:
    """Tell systemd twice per WatchdogSec that the event loop turns."""
    seconds = int(os.environ.get("WATCHDOG_USEC", "0")) / 2_000_000
    while seconds:
        notify("WATCHDOG=1")
        await asyncio.sleep(seconds)


def notify(state: str) -> None:
    """Tell the service manager (sd_notify(3)); nothing happens without one."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to_manager:
        to_manager.connect("\0" + path[1:] if path.startswith("@") else path)
        to_manager.sendall(state.encode())
