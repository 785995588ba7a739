"""Turns of TLS handshakes."""

from __future__ import annotations

import asyncio

import pytest

from reconcile import handshake_turns
from reconcile.handshake_turns import HandshakeTurns


class Clients:
    """Connections that wait for a turn, and the names of those that have one, in order."""

    def __init__(self) -> None:
        self.turns = HandshakeTurns(1, 1.0, 8.0)
        self.begun: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def connect(self, *names: str, is_known: bool = False) -> None:
        """Let connections ask for a turn. Their source is the first letter of the name."""
        for name in names:
            self._tasks[name] = asyncio.create_task(self._begin(name, is_known))
            await asyncio.sleep(0)

    async def end(self, *names: str) -> None:
        for name in names:
            self.turns.end(name[0], is_done=True)
            await asyncio.sleep(0)

    async def leave(self, *names: str) -> None:
        """Let connections leave at the same moment."""
        for name in names:
            self._tasks[name].cancel()
        await asyncio.gather(*(self._tasks[name] for name in names), return_exceptions=True)

    async def _begin(self, name: str, is_known: bool) -> None:
        await self.turns.begin(name[0], is_known=is_known)
        self.begun.append(name)


async def test_sources_take_turns() -> None:
    clients = Clients()
    await clients.connect("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    assert clients.begun == ["a1"]
    await clients.end("a1", "a2", "b1", "c1", "a3", "b2")
    assert clients.begun == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_known_sources_and_others_take_turns() -> None:
    clients = Clients()
    await clients.connect("a1", "b1", "c1", "d1", "e1")
    await clients.connect("x1", "x2", is_known=True)
    await clients.end("a1", "x1", "b1", "x2", "c1", "d1")
    assert clients.begun == ["a1", "x1", "b1", "x2", "c1", "d1", "e1"]


async def test_a_turn_that_nobody_waits_for_is_free() -> None:
    clients = Clients()
    await clients.connect("a1")
    await clients.end("a1")
    await clients.connect("b1", "b2")
    assert clients.begun == ["a1", "b1"]


async def test_connections_that_leave_get_no_turn() -> None:
    clients = Clients()
    await clients.connect("a1", "b1", "b2", "c1", "d1")
    await clients.leave("b1", "c1")
    await clients.end("a1", "b2", "d1")
    await clients.connect("e1")
    assert clients.begun == ["a1", "b2", "d1", "e1"]


async def test_a_turn_passes_on_if_its_connection_leaves_at_the_same_moment() -> None:
    clients = Clients()
    await clients.connect("a1", "b1", "c1", "d1")
    clients._tasks["b1"].cancel()  # before its turn: it is passed over
    clients.turns.end("a", is_done=True)
    clients._tasks["c1"].cancel()  # it has the turn, and does not know yet
    await asyncio.gather(*clients._tasks.values(), return_exceptions=True)
    assert clients.begun == ["a1", "d1"]


async def test_sources_whose_clients_do_not_answer_have_short_turns() -> None:
    turns = HandshakeTurns(1, 1.0, 8.0)

    async def seconds(source: str, *, is_done: bool) -> float:
        begun = await turns.begin(source, is_known=True)
        turns.end(source, is_done=is_done)
        return begun

    assert [await seconds("a", is_done=False) for _ in range(5)] == [8.0, 4.0, 2.0, 1.0, 1.0]
    assert await seconds("b", is_done=True) == 8.0
    assert [await seconds("a", is_done=True) for _ in range(9)] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 8.0]


async def test_number_of_sources_with_short_turns_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake_turns, "MAX_IMPATIENT", 2)
    turns = HandshakeTurns(1, 1.0, 8.0)
    for source in "abcb":
        await turns.begin(source, is_known=False)
        turns.end(source, is_done=False)
    seconds = []
    for source in "abc":
        seconds.append(await turns.begin(source, is_known=False))
        turns.end(source, is_done=True)
    assert seconds == [8.0, 2.0, 4.0]
