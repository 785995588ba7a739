"""What a container has written, and writes, as Docker keeps it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from node_agent.log_wish import LogWish


def logs(socket: str, container: str, wish: LogWish) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
    """The log of a container, running or not; `previous` is for who chooses the container.

    Entering the block raises Gone without the container, Refused when its log driver cannot be read, NotReady when
    Docker is away or hangs: so there is an error before there is an answer. The pieces come as they are written when
    it is followed, until the container ends; who reads slowly holds up only itself. They raise NotReady when Docker
    goes away. Leaving the block lets go of it.
    """
    raise NotImplementedError
