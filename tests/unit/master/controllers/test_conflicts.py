"""Controllers of two masters that write at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from api.core.node import Namespace
from master.allocators import ALLOCATOR_CURSORS, AllocatorCursor
from master.controllers.runtime import ControllerRuntime
from master.resources.scheme import STORED_TYPES, group_resource
from master.storage.interface import Key, Put
from tests.testbed.apiserver.contended_storage import Change, ContendedStorage
from tests.unit.master.controller_context import controller_context


async def test_controllers_reconcile_again_when_another_master_was_first(tmp_path: Path) -> None:
    storage = await ContendedStorage.open(tmp_path / "store.db", {**STORED_TYPES, ALLOCATOR_CURSORS: AllocatorCursor})
    assert isinstance(storage, ContendedStorage)
    taken: set[Key] = set()

    def take_first(changes: Sequence[Change]) -> Change | None:
        """Write the first object that ours writes, but only once per object and for some writes."""
        change = changes[0]
        if not isinstance(change, Put) or change.key in taken or len(taken) >= 5:
            return None
        taken.add(change.key)
        return change._replace(expect=None)

    storage.competitor = take_first
    runtime = ControllerRuntime(controller_context(storage))
    running = asyncio.create_task(runtime.run())
    async with asyncio.timeout(30):
        await runtime.started.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert storage.conflicts == len(taken) > 0
    names = {record.key.name for record in storage.list(group_resource(Namespace))}
    assert {"default", "kube-system"} <= names
    await storage.close()
