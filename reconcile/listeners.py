"""Callbacks of parts that are woken when another part has changed."""

from __future__ import annotations

from collections.abc import Callable


class Listeners:
    """Callbacks for one kind of change, called in the order in which they were added.

    The part that changes owns the list. Parts that are built later add their callbacks, so that no part needs another
    one that does not exist yet.
    """

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def add(self, *callbacks: Callable[[], None]) -> None:
        """Add callbacks."""
        self._callbacks.extend(callbacks)

    def notify(self) -> None:
        """Call all callbacks."""
        for callback in self._callbacks:
            callback()
