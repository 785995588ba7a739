"""Calls a web server repeatedly, on a new connection each time, and counts which endpoint answered.

    python http_caller.py ADDRESS PORT TIMES            TIMES calls, several at once
    python http_caller.py ADDRESS PORT each-second N    N calls a second, until the standard input ends

The page of an endpoint is its name. The program prints one JSON object: `answers` counts the calls by name, `failures`
has a sentence for each failed call. It imports nothing of Podlane, because it runs in other network namespaces.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections import Counter

AT_ONCE = 16
CALL_SECONDS = 10.0
"""The test's web server has an accept queue of 9: on a busy machine it drops SYNs, which are sent again after 1, 3 and
7 seconds."""


class Caller:
    """Counts."""

    def __init__(self, address: str, port: int) -> None:
        self._where = address, port
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self._began = time.monotonic()

    async def call(self) -> None:
        """Once."""
        begun = time.monotonic()
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
            try:
                self.answers[await asyncio.wait_for(self._request(connection), CALL_SECONDS)] += 1
            except (OSError, ValueError, TimeoutError) as error:
                after = time.monotonic()
                output = str(error) or type(error).__name__
                when = f"call at {begun - self._began:.2f} s, after {after - begun:.2f} s"
                self.failures.append(f"{when}, {_state_of(connection)}: {output}")

    async def _request(self, connection: socket.socket) -> str:
        await asyncio.get_running_loop().sock_connect(connection, self._where)
        reader, writer = await asyncio.open_connection(sock=connection.dup())
        try:
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise ValueError(f"the answer is {head[:80]!r}")
        return body.decode().strip()


def _state_of(connection: socket.socket) -> str:
    """Return the local port and the TCP state: 1 is established, 2 waits for the answer to a SYN."""
    state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return f"local port {connection.getsockname()[1]}, TCP state {state}"


async def so_often(caller: Caller, times: int) -> None:
    """Make several calls, at most AT_ONCE at a time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def limited_call() -> None:
        async with turns:
            await caller.call()

    await asyncio.gather(*(limited_call() for _ in range(times)))


async def steadily(caller: Caller, each_second: int) -> None:
    """Make calls at a constant rate, also while earlier ones have no response. A late call delays those after it, so
    that a busy machine makes no burst.
    """
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    calls: set[asyncio.Task[None]] = set()
    while not ended.done():
        calls.add(call := asyncio.create_task(caller.call()))
        call.add_done_callback(calls.discard)
        await asyncio.sleep(1 / each_second)
    await asyncio.gather(*calls)


def main() -> None:
    address, port, *how = sys.argv[1:]
    caller = Caller(address, int(port))
    asyncio.run(steadily(caller, int(how[1])) if how[0] == "each-second" else so_often(caller, int(how[0])))
    sys.stdout.write(json.dumps({"answers": caller.answers, "failures": caller.failures}))


if __name__ == "__main__":
    main()
