"""What keeps a pod from being looked at, told once for each trouble and not at every attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reconcile.errors import DriverError


class SyncTrouble:
    """Of one pod. `tell` tells an event: (reason, message)."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self._tell = tell
        self._told = ""

    @contextmanager
    def told(self) -> Iterator[None]:
        """Tell of a driver's error that the block raises, and let it pass."""
        try:
            yield
        except DriverError as error:
            if str(error) != self._told:
                self._told = str(error)
                self._tell("FailedSync", f"error determining status: {error}")
            raise
        self._told = ""
