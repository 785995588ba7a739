"""Changes of an nftables table by other programs are told apart from our own changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from lab.process import run
from sdn.drivers.nftables import Nftables, NftablesMonitor
from tests.testbed.namespaces import inside
from tests.testbed.wait import DEADLINE_SECONDS

NAMESPACE = "podnftmon"
REWRITE = "table ip watched; flush table ip watched; table ip watched { set s { type mark; }; }"
OTHER_REWRITE = REWRITE.replace("watched", "other")


class Ruleset(NamedTuple):
    """The ruleset of a network namespace, and a monitor of its table `watched`."""

    nft: Nftables
    monitor: NftablesMonitor

    async def rewrite(self) -> None:
        with self.monitor.suspended():
            await self.nft.run(REWRITE)


@pytest.fixture
async def ruleset() -> AsyncIterator[Ruleset]:
    run("ip", "netns", "add", NAMESPACE)
    try:
        with inside(NAMESPACE):
            nft = Nftables()
            monitor = NftablesMonitor(nft, ("watched",), lambda: None)
        monitor.open()
        yield Ruleset(nft, monitor)
        monitor.close()
        nft.close()
    finally:
        run("ip", "netns", "delete", NAMESPACE)


def edit(table: str) -> None:
    run("ip", "netns", "exec", NAMESPACE, "nft", f"add set ip {table} more {{ type mark; }}")


async def test_change_by_another_program_is_noticed(ruleset: Ruleset) -> None:
    await ruleset.rewrite()
    edit("watched")
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not ruleset.monitor.modified_externally:
            await asyncio.sleep(0.02)
    await ruleset.rewrite()
    assert not ruleset.monitor.modified_externally


async def test_change_by_another_program_after_the_rewrite_is_noticed(ruleset: Ruleset) -> None:
    with ruleset.monitor.suspended():
        await ruleset.nft.run(REWRITE)
        edit("watched")
    assert ruleset.monitor.modified_externally


async def test_other_changes_of_ours_during_a_rewrite_are_not_foreign(ruleset: Ruleset) -> None:
    async def edit_another_table() -> None:
        while True:
            await ruleset.nft.run(OTHER_REWRITE)

    editing = [asyncio.create_task(edit_another_table()) for _ in range(3)]
    wrong = 0
    for _ in range(600):
        await ruleset.rewrite()
        wrong += ruleset.monitor.modified_externally
    for task in editing:
        task.cancel()
    await asyncio.gather(*editing, return_exceptions=True)
    assert (wrong, ruleset.monitor.modified_externally) == (0, False)
