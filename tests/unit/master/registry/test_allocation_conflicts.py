"""Blocks of user IDs that two masters give at the same time, each from a state that may be old."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.core.config import ConfigMap
from api.core.node import Namespace
from api.meta.types import ObjectMeta
from master.admission.chain import AdmissionChain
from master.admission.scc import namespace_ranges
from master.admission.scc.namespace_ranges import UID_BLOCK_CURSOR, UID_RANGE_ANNOTATION
from master.admission.scc.plugin import NamespaceSecurityAllocation
from master.allocators import ALLOCATOR_CURSORS, AllocatorCursor
from master.auth.authorization import Authorizer
from master.registry.creation import ObjectCreation
from master.registry.registry import Registry
from master.registry.request import Request
from master.resources.configuration import ServiceAccount
from master.resources.scheme import STORED_TYPES, group_resource
from master.server.routes import resolve_path
from master.storage.interface import Key, Put
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import delete, put
from tests.testbed.apiserver.master_view import MasterView

BLOCKS, MASTERS = 5, 2
NAMESPACES = group_resource(Namespace)


def registry(storage: MasterView) -> Registry:
    chain = AdmissionChain((NamespaceSecurityAllocation(),))
    creation = ObjectCreation(chain, lambda: datetime(2026, 1, 1, tzinfo=UTC), "certificate")
    return Registry(storage, creation, Authorizer(storage))


async def create_namespace(master: Registry, name: str) -> str:
    """Create a namespace through a master, and return its block of user IDs; empty if all are in use."""
    info = resolve_path("/api/v1/namespaces")
    assert info is not None
    response = await master.create(Request(info, {}, body={"metadata": {"name": name}}))
    return str(json.loads(response.body)["metadata"].get("annotations", {}).get(UID_RANGE_ANNOTATION, ""))


def block(number: int) -> str:
    return f"{namespace_ranges.FIRST_UID + number * namespace_ranges.BLOCK_SIZE}/{namespace_ranges.BLOCK_SIZE}"


async def open_storage(root: Path) -> SQLiteStorage:
    return await SQLiteStorage.open(root / "store.db", {**STORED_TYPES, ALLOCATOR_CURSORS: AllocatorCursor})


def view(backend: SQLiteStorage) -> MasterView:
    kinds = (Namespace, ServiceAccount, ConfigMap)
    return MasterView(backend, ALLOCATOR_CURSORS, *[group_resource(kind) for kind in kinds])


def uids(namespace: Namespace) -> str:
    return namespace.metadata.annotations.get(UID_RANGE_ANNOTATION, "")


async def make_steps(root: Path, cursor: int, used: set[int], steps: list[tuple[int, int | None]]) -> tuple[int, int]:
    """Make the steps: (master, index of the namespace that it deletes, or None to create one).

    Compare the blocks of all namespaces after each step. Return the numbers of blocks that were given and of conflicts.
    """
    backend = await open_storage(root)
    start = AllocatorCursor(metadata=ObjectMeta(name=UID_BLOCK_CURSOR), next=cursor)
    taken = [
        Namespace(metadata=ObjectMeta(name=f"used-{number}", annotations={UID_RANGE_ANNOTATION: block(number)}))
        for number in used
    ]
    await backend.write(Put(Key.of(ALLOCATOR_CURSORS, start), start), *map(put, taken))
    views = [view(backend) for _ in range(MASTERS)]
    masters = list(map(registry, views))
    given_blocks = 0
    for number, (index, victim) in enumerate(steps):
        before: list[Namespace] = [record.object for record in backend.list(NAMESPACES)]
        if victim is None:
            given_blocks += bool(await create_namespace(masters[index], f"n{number}"))
        elif before:
            await views[index].write(delete(before[victim % len(before)]))
        blocks = [found for record in backend.list(NAMESPACES) if (found := uids(record.object))]
        assert len(set(blocks)) == len(blocks), blocks
    await backend.close()
    return given_blocks, sum(each.conflicts for each in views)


@pytest.fixture
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace_ranges, "BLOCKS", BLOCKS)


async def test_master_that_was_not_first_gives_the_next_block(few_blocks: None, tmp_path: Path) -> None:
    steps: list[tuple[int, int | None]] = [(0, None), (1, None), (0, None), (1, None)]
    assert await make_steps(tmp_path, 0, set(), steps) == (4, 3)


async def test_only_free_block_is_given_by_one_master_wherever_the_cursor_is(few_blocks: None, tmp_path: Path) -> None:
    """The block before the cursor is found after a whole round, at which the cursor is where it was."""
    for free in range(BLOCKS):
        for cursor in range(2 * BLOCKS):
            used = set(range(BLOCKS)) - {free}
            root = tmp_path / f"{free}-{cursor}"
            assert await make_steps(root, cursor, used, [(0, None), (1, None)]) == (1, 1)


STEPS = st.lists(
    st.tuples(st.integers(0, MASTERS - 1), st.one_of(st.none(), st.integers(0, BLOCKS))), min_size=2, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2 * BLOCKS), st.sets(st.integers(0, BLOCKS - 1)), STEPS)
def test_two_masters_never_give_one_block_to_two_namespaces(
    tmp_path_factory: pytest.TempPathFactory, cursor: int, used: set[int], steps: list[tuple[int, int | None]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(namespace_ranges, "BLOCKS", BLOCKS)
        asyncio.run(make_steps(tmp_path_factory.mktemp("two-masters"), cursor, used, steps))
