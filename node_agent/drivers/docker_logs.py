"""What a container has written, and writes, as Docker keeps it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

import aiohttp

from node_agent.drivers.docker_calls import answering, ask, refusal, session
from node_agent.drivers.docker_frames import TROUBLE, Frames, Piece
from node_agent.log_wish import NANOSECONDS, STDERR, STDOUT, LogWish
from reconcile.errors import NotReady


@contextlib.asynccontextmanager
async def logs(socket: str, container: str, wish: LogWish) -> AsyncIterator[AsyncIterator[bytes]]:
    """The log of a container, running or not; `previous` is for who chooses the container.

    Entering the block raises Gone without the container, Refused when its log driver cannot be read, NotReady when
    Docker is away or hangs: so there is an error before there is an answer. The pieces come as they are written when
    it is followed, until the container ends; who reads slowly holds up only itself. They raise NotReady when Docker
    goes away. Leaving the block lets go of it.
    """
    async with session(socket) as docker:
        async with answering():
            seen = await ask(docker, "GET", f"/containers/{container}/json")
            answer = await docker.get(f"/containers/{seen['Id']}/logs", params=_parameters(wish, time.time_ns()))
            if answer.status >= 400:
                raise await refusal(answer)
        async with answer, contextlib.aclosing(_read(answer, wish, tty=seen["Config"]["Tty"])) as pieces:
            yield pieces


def _parameters(wish: LogWish, now: int) -> dict[str, str]:
    asked = {
        "stdout": wish.stream != STDERR,
        "stderr": wish.stream != STDOUT,
        "follow": wish.follow,
        "timestamps": wish.timestamps,
    }
    query = {name: "1" for name, wanted in asked.items() if wanted}
    if wish.tail_lines is not None:
        query["tail"] = str(wish.tail_lines)
    since = wish.since(now)
    if since is not None and since > 0:
        query["since"] = f"{since // NANOSECONDS}.{since % NANOSECONDS:09}"
    return query


async def _read(answer: aiohttp.ClientResponse, wish: LogWish, *, tty: bool) -> AsyncGenerator[bytes, None]:
    frames, lines, left = Frames(), _Lines(wish.timestamps), wish.limit_bytes
    try:
        async for data in answer.content.iter_any():
            piece = data if tty else b"".join(lines.joined(frames.cut(data)))
            if left is not None and left <= len(piece):
                yield piece[:left]
                return
            left = None if left is None else left - len(piece)
            if piece:
                yield piece
    except (aiohttp.ClientError, OSError) as error:
        raise NotReady(f"Docker went away in the middle of the log: {error}") from None


class _Lines:
    """Joins a line again that Docker has cut: it writes a time before every part, a kubelet before every line."""

    def __init__(self, timestamps: bool) -> None:
        self._timestamps = timestamps
        self._open: set[int] = set()
        self._skipping = False

    def joined(self, pieces: Iterator[Piece]) -> Iterator[bytes]:
        """What is to be read. Raises NotReady with what Docker itself has to say."""
        for piece in pieces:
            data = piece.data
            if piece.stream == TROUBLE:
                raise NotReady(f"Docker: {data.decode(errors='replace').strip()}")
            if piece.begins:
                self._skipping = self._timestamps and piece.stream in self._open
            if self._skipping:
                _, space, data = data.partition(b" ")
                self._skipping = not space
            if data:
                (self._open.discard if data.endswith(b"\n") else self._open.add)(piece.stream)
                yield data
