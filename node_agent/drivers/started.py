"""Which programs were started for callers and have not ended: their exec ids, each the name of a file of its own."""

from __future__ import annotations

import logging
from pathlib import Path

log = logging.getLogger(__name__)


class Started:
    """Outlives an agent that is killed: the next one finds in `left` what was never crossed off.

    A program is written down before it begins, so that there is none that nobody knows of; files need no order to be
    whole, and what others run in the containers is not among them.
    """

    def __init__(self, directory: Path) -> None:
        """Make the directory if it is not there. Raises OSError."""
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.left = tuple(sorted(entry.name for entry in directory.iterdir()))

    def write_down(self, identity: str) -> None:
        """It is about to begin. On a full disk it begins all the same: people look for the reason in this way."""
        try:
            (self._directory / identity).touch(mode=0o600)
        except OSError as error:
            log.warning(
                "a program would outlive an agent that is killed", extra={"exec": identity, "error": error.strerror}
            )

    def since(self, identity: str) -> float:
        """When it was written down, in seconds since 1970; 0 when it was not."""
        try:
            return (self._directory / identity).stat().st_mtime
        except OSError:
            return 0.0

    def cross_off(self, identity: str) -> None:
        """It has ended."""
        try:
            (self._directory / identity).unlink(missing_ok=True)
        except OSError as error:
            log.warning("a program that has ended stays noted", extra={"exec": identity, "error": error.strerror})
