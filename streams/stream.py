"""What every carrier of bytes looks like to those who read and write it."""

from __future__ import annotations

from typing import Protocol


class Stream(Protocol):
    """Bytes from and to another side; one reader and one writer at a time."""

    async def read(self) -> bytes:
        """Give the next bytes as they came, nothing at the end; a ConnectionError tells that the other side is lost."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes and return when there is room for more; a ConnectionError tells that the other side is lost."""
        ...

    async def end(self) -> None:
        """Say that nothing more will be written; reading goes on where the carrier can be closed one way."""
        ...

    def abort(self) -> None:
        """End it at once, both ways, and drop what was not sent; a second time does nothing."""
        ...
