"""Limits of the streams that the master forwards from one node."""

from __future__ import annotations

import asyncio

import pytest

from master.errors import StatusError
from master.server.proxy.node_streams import NodeStreams


class Streams:
    """Streams that stay open until they are cancelled."""

    def __init__(self) -> None:
        self._limits = NodeStreams(limit=4, per_project=3)

    async def open(self, project: str, node: str = "n1") -> asyncio.Task[None]:
        """Open a stream, and return its task."""
        task = asyncio.create_task(self._forward(node, project))
        await asyncio.sleep(0)
        return task

    async def _forward(self, node: str, project: str) -> None:
        with self._limits.open(node, project):
            await asyncio.Event().wait()


@pytest.fixture
def streams() -> Streams:
    return Streams()


async def code(task: asyncio.Task[None]) -> int:
    with pytest.raises(StatusError) as raised:
        await task
    return raised.value.status.code


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_project_has_at_most_its_number_of_streams_of_a_node(streams: Streams) -> None:
    first, *others = [await streams.open("red") for _ in range(3)]
    assert await code(await streams.open("red")) == 429
    elsewhere = await streams.open("red", "n2")
    assert not elsewhere.done()
    await end(first)
    again = await streams.open("red")
    assert not again.done()
    for task in (*others, elsewhere, again):
        await end(task)


async def test_a_project_takes_a_place_of_the_one_with_the_most_streams(streams: Streams) -> None:
    red = [await streams.open("red") for _ in range(3)]
    blue = [await streams.open("blue") for _ in range(2)]
    with pytest.raises(asyncio.CancelledError):
        await red[0]
    assert not any(task.done() for task in (*red[1:], *blue))
    assert await code(await streams.open("red")) == 429, "it has as many as the other"
    for task in (*red[1:], *blue):
        await end(task)
