"""Reads the settings of a daemon again at SIGHUP: changes the log level, and says what needs a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from reconcile.config_file import InvalidConfig

S = TypeVar("S", bound=msgspec.Struct)

log = logging.getLogger(__name__)

LOG_LEVEL = "log_level"
"""The setting that is changed without a restart."""


class Reloader(Generic[S]):
    """The settings in force. `read` reads and judges the settings of now; it raises InvalidConfig."""

    def __init__(self, settings: S, read: Callable[[], S]) -> None:
        self._settings = settings
        self._read = read
        self._requested = asyncio.Event()

    def request(self) -> None:
        """Request to read the settings again. Requests meanwhile lead to one further reading."""
        self._requested.set()

    async def run(self) -> None:
        """Read settings at each request until cancelled. Wrong settings change nothing."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            try:
                found = await asyncio.to_thread(self._read)
            except InvalidConfig as error:
                for line in str(error).splitlines():
                    log.error("configuration not reloaded; the former one stays in force", extra={"problem": line})
                continue
            self._apply(found)

    def _apply(self, found: S) -> None:
        changed = changed_settings(self._settings, found)
        level = getattr(found, LOG_LEVEL)
        if level != getattr(self._settings, LOG_LEVEL):
            logging.getLogger().setLevel(level.upper())
            self._settings = msgspec.structs.replace(self._settings, **{LOG_LEVEL: level})
        # A line of any lower level would not be seen with `logLevel: warning`.
        log.warning("configuration reloaded", extra={"log_level": level})
        if needing_restart := [name for name in changed if name != "logLevel"]:
            log.warning("settings that change at a restart only", extra={"settings": " ".join(needing_restart)})


def changed_settings(old: msgspec.Struct, new: msgspec.Struct) -> list[str]:
    """Return the names of settings that differ, as they are in the file. Values may be secret."""
    fields = msgspec.structs.fields(old)
    return [field.encode_name for field in fields if getattr(old, field.name) != getattr(new, field.name)]
