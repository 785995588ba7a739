"""Two things at the same time: neither is left alone."""

from __future__ import annotations

import asyncio

import pytest

from node_agent.pods.worker import gather_both


async def test_each_may_wait_for_the_other() -> None:
    one, other = asyncio.Event(), asyncio.Event()

    async def first() -> int:
        one.set()
        await other.wait()
        return 1

    async def second() -> str:
        await one.wait()
        other.set()
        return "2"

    assert await gather_both(first(), second()) == (1, "2")


@pytest.mark.parametrize("is_first", [True, False])
async def test_an_error_is_raised_when_the_other_has_ended(is_first: bool) -> None:
    ended = []

    async def fails() -> None:
        raise LookupError

    async def works() -> None:
        await asyncio.sleep(0)
        ended.append(True)

    with pytest.raises(LookupError):
        await (gather_both(fails(), works()) if is_first else gather_both(works(), fails()))
    assert ended


async def test_who_gives_up_ends_both() -> None:
    ended = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    task = asyncio.create_task(gather_both(waits(), waits()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True, True]
