"""Threads for checks that unauthenticated clients start: few of them, with a short queue. Driver."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from master.auth.identity_providers.provider import ProviderError

T = TypeVar("T")


class BoundedThreads:
    """A few threads. Calls beyond the length of the queue are rejected.

    The threads of `asyncio.to_thread` serve the rest of the master, so checks of passwords do not use them. Neither do
    look-ups of host names, which take long when DNS servers are gone.
    """

    def __init__(self, name: str, threads: int, max_waiting: int) -> None:
        self._name = name
        self._max_calls = threads + max_waiting
        self._calls = 0
        self._executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)

    async def run(self, function: Callable[[], T]) -> T:
        """Return the result of a function that runs in a thread. Raises ProviderError if too many calls wait.

        A function that began runs to its end even if the caller is cancelled.
        """
        if self._calls >= self._max_calls:
            raise ProviderError(f"{self._name}: {self._calls} checks are running or waiting; try again later")
        future = asyncio.get_running_loop().run_in_executor(self._executor, function)
        self._calls += 1
        future.add_done_callback(self._ended)
        return await future

    def _ended(self, _future: asyncio.Future[T]) -> None:
        self._calls -= 1


def bcrypt_threads() -> int:
    """Return the number of threads for bcrypt: half of the processors, at least one, at most four."""
    return max(1, min(4, (os.cpu_count() or 1) // 2))


_resolver = BoundedThreads("resolver", threads=2, max_waiting=32)


async def resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    """Return the addresses of a host, in the order in which they are to be tried. Raises OSError and ProviderError."""
    found = await _resolver.run(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return [(family, str(address[0])) for family, _, _, _, address in found]
