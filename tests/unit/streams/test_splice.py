"""Two streams joined."""

from __future__ import annotations

import asyncio

import pytest

from streams.splice import splice

FOREVER = 3600.0


class Side:
    """A stream whose other end is driven by the test."""

    def __init__(self) -> None:
        self.coming: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.got: list[bytes] = []
        self.room = asyncio.Event()
        self.room.set()
        self.ended = self.aborted = False
        self.refuses = False

    async def read(self) -> bytes:
        actual = await self.coming.get()
        if isinstance(actual, Exception):
            raise actual
        return actual

    async def write(self, data: bytes) -> None:
        if self.refuses:
            raise ConnectionResetError
        self.got.append(data)
        await self.room.wait()

    async def end(self) -> None:
        self.ended = True

    def abort(self) -> None:
        if not self.aborted:
            self.aborted = True
            self.coming.put_nowait(b"")


async def test_splice_copies_both_ways_until_both_sides_end() -> None:
    a, b = Side(), Side()
    for side, words in ((a, (b"one", b"two", b"")), (b, (b"three", b""))):
        for word in words:
            side.coming.put_nowait(word)
    await splice(a, b, FOREVER)
    assert (a.got, b.got) == ([b"three"], [b"one", b"two"])
    assert (a.ended, b.ended, a.aborted, b.aborted) == (True, True, False, False)


async def test_splice_continues_one_way_after_the_other_ended() -> None:
    a, b = Side(), Side()
    a.coming.put_nowait(b"")
    joined = asyncio.create_task(splice(a, b, FOREVER))
    while not b.ended:
        await asyncio.sleep(0)
    b.coming.put_nowait(b"late")
    b.coming.put_nowait(b"")
    await joined
    assert a.got == [b"late"]
    assert a.ended


async def test_splice_delivers_data_of_a_lost_side_before_it_ends_the_other() -> None:
    a, b = Side(), Side()
    for actual in (b"last words", ConnectionResetError()):
        a.coming.put_nowait(actual)
    await splice(a, b, FOREVER)
    assert b.got == [b"last words"]
    assert b.ended
    assert b.aborted


async def test_splice_delivers_data_sent_before_a_reset() -> None:
    a, b = Side(), Side()
    b.refuses = True
    a.coming.put_nowait(b"nobody takes it")
    for actual in (b"last words", b""):
        b.coming.put_nowait(actual)
    await splice(a, b, FOREVER)
    assert a.got == [b"last words"]
    assert a.ended
    assert not a.aborted


async def test_splice_reads_no_more_than_the_other_side_accepts() -> None:
    a, b = Side(), Side()
    b.room.clear()
    for word in (b"1", b"2", b"3", b""):
        a.coming.put_nowait(word)
    b.coming.put_nowait(b"")
    joined = asyncio.create_task(splice(a, b, FOREVER))
    while not a.ended:
        await asyncio.sleep(0)
    assert b.got == [b"1"]
    assert a.coming.qsize() == 3
    b.room.set()
    await joined
    assert b.got == [b"1", b"2", b"3"]


async def test_splice_aborts_both_sides_at_its_idle_timeout() -> None:
    a, b = Side(), Side()
    await splice(a, b, 0.001)
    assert a.aborted
    assert b.aborted


async def test_cancelled_splice_aborts_both_sides() -> None:
    a, b = Side(), Side()
    joined = asyncio.create_task(splice(a, b, FOREVER))
    await asyncio.sleep(0)
    joined.cancel()
    with pytest.raises(asyncio.CancelledError):
        await joined
    assert a.aborted
    assert b.aborted
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@pytest.mark.parametrize("way", ["read", "write"])
async def test_splice_ends_a_lost_side_while_the_other_does_not_read(way: str) -> None:
    """The client has disconnected. The other side neither reads the remaining input nor ends."""
    client, node = Side(), Side()
    node.room.clear()
    client.coming.put_nowait(b"input that nobody reads")
    joined = asyncio.create_task(splice(client, node, FOREVER, drain_seconds=0))
    while not node.got:
        await asyncio.sleep(0)
    if way == "write":
        client.refuses = True
        node.coming.put_nowait(b"a sign of life")
    else:
        node.coming.put_nowait(ConnectionResetError())
    while not (client.aborted and node.aborted):
        await asyncio.sleep(0)
    node.room.set()
    await joined


async def test_splice_aborts_a_side_that_cannot_be_ended() -> None:
    class Reset(Side):
        async def end(self) -> None:
            raise ConnectionResetError

    a, b = Side(), Reset()
    a.coming.put_nowait(b"")
    b.coming.put_nowait(b"")
    await splice(a, b, FOREVER)
    assert a.ended
