"""Paginated lists over a store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from api.core.node import Namespace
from api.meta.types import ObjectMeta
from master.admission.chain import AdmissionChain
from master.auth.authorization import Authorizer
from master.errors import StatusError
from master.registry.conversion import MAX_TURN_BYTES
from master.registry.creation import ObjectCreation
from master.registry.registry import MAX_WHOLE_BODY_BYTES, Registry
from master.registry.request import MAX_PAGE_AGE_SECONDS, Request
from master.resources.rbac import RBAC_GROUP, RoleBinding, Subject
from master.resources.scheme import STORED_TYPES, group_resource
from master.server.routes import resolve_path
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import delete, put
from tests.unit.master.examples import namespace

NAMESPACES = group_resource(Namespace)


def now() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStorage]:
    store = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    await store.write(*(put(namespace(name)) for name in "abcdef"))
    yield store
    await store.close()


async def listed(store: SQLiteStorage, **query: str) -> Any:
    return await listed_later(store, 0, query)


async def listed_later(store: SQLiteStorage, age_seconds: int, query: dict[str, str]) -> Any:
    where = resolve_path("/api/v1/namespaces")
    assert where is not None
    creation = ObjectCreation(AdmissionChain(()), lambda: now() + timedelta(seconds=age_seconds), "")
    objects = Registry(store, creation, cast("Authorizer", None))
    actual = json.loads((await objects.list_all(Request(where, query))).body)
    return actual["metadata"], [obj["metadata"]["name"] for obj in actual["items"]]


async def test_list_pages_show_one_revision(store: SQLiteStorage) -> None:
    first, names = await listed(store, limit="2")
    assert (names, first["remainingItemCount"]) == (["a", "b"], 4)
    await store.write(put(namespace("cc")))
    second, names = await listed(store, limit="3", **{"continue": first["continue"]})
    assert (names, second["resourceVersion"]) == (["c", "d", "e"], first["resourceVersion"])
    last, names = await listed(store, limit="3", **{"continue": second["continue"]})
    assert names == ["f"]
    assert "continue" not in last


async def test_expired_continue_token_offers_an_inconsistent_continuation(store: SQLiteStorage) -> None:
    first, _ = await listed(store, limit="2")
    (removed,) = (record.object for record in store.list(NAMESPACES) if record.key.name == "c")
    await store.write(delete(removed), put(namespace("dd")))
    await store.compact(store.revision)
    with pytest.raises(StatusError) as refused:
        await listed(store, limit="2", **{"continue": first["continue"]})
    status = refused.value.status
    assert (status.code, status.reason) == (410, "Expired")
    second, names = await listed(store, limit="2", **{"continue": status.metadata.continue_})
    assert names == ["d", "dd"]
    assert second["resourceVersion"] == str(store.revision)
    assert (await listed(store, **{"continue": second["continue"]}))[1] == ["e", "f"]


async def test_continue_token_expires_with_time(store: SQLiteStorage) -> None:
    first, _ = await listed(store, limit="2")
    second, _ = await listed_later(store, MAX_PAGE_AGE_SECONDS, {"limit": "2", "continue": first["continue"]})
    with pytest.raises(StatusError) as refused:
        await listed_later(store, MAX_PAGE_AGE_SECONDS + 1, {"limit": "2", "continue": second["continue"]})
    assert refused.value.status.code == 410
    token = refused.value.status.metadata.continue_
    last, names = await listed_later(store, MAX_PAGE_AGE_SECONDS + 1, {"limit": "1", "continue": token})
    assert names == ["e"]
    assert (await listed_later(store, MAX_PAGE_AGE_SECONDS + 2, {"continue": last["continue"]}))[1] == ["f"]


async def test_items_of_a_list_do_not_repeat_apiversion_and_kind(store: SQLiteStorage) -> None:
    where = resolve_path("/api/v1/namespaces")
    assert where is not None
    registry = Registry(store, ObjectCreation(AdmissionChain(()), now, ""), cast("Authorizer", None))
    document = json.loads((await registry.list_all(Request(where, {}))).body)
    assert (document["apiVersion"], document["kind"]) == ("v1", "NamespaceList")
    assert {tuple(item) for item in document["items"]} == {("metadata",)}
    await store.write(put(Namespace(metadata=ObjectMeta(name="g", annotations={"a": "b" * MAX_WHOLE_BODY_BYTES}))))
    parts = (await registry.list_all(Request(where, {}))).parts
    assert json.loads(b"".join(parts))["items"][:-1] == document["items"]
    assert len(parts) > len(document["items"])
    (empty,) = ((await registry.list_all(Request(where, {"labelSelector": "no=one"}))).body,)
    assert json.loads(empty)["items"] == []


async def test_list_at_an_expired_revision_is_rejected(store: SQLiteStorage) -> None:
    await store.write(put(namespace("g")))
    await store.compact(store.revision)
    with pytest.raises(StatusError) as refused:
        await listed(store, resourceVersion="2", resourceVersionMatch="Exact")
    assert refused.value.status.message == "The resourceVersion for the provided list is too old."
    assert refused.value.status.metadata.continue_ == ""


LEGACY_BINDINGS = "/apis/authorization.openshift.io/v1/namespaces/red/rolebindings"
SHOWN_AS = ("", *(f"application/json;as={name};v=v1;g=meta.k8s.io" for name in ("Table", "PartialObjectMetadataList")))


@pytest.mark.parametrize("accept", SHOWN_AS, ids=["objects", "table", "metadata"])
async def test_other_tasks_run_while_a_long_list_is_converted(store: SQLiteStorage, accept: str) -> None:
    subjects = tuple(Subject("User", RBAC_GROUP, "u" * 100) for _ in range(500))
    bindings = [
        RoleBinding(metadata=ObjectMeta(name=f"b{number}", namespace="red"), subjects=subjects) for number in range(30)
    ]
    await store.write(*map(put, bindings))
    where = resolve_path(LEGACY_BINDINGS)
    assert where is not None
    registry = Registry(store, ObjectCreation(AdmissionChain(()), now, ""), cast("Authorizer", None))
    turns, is_done = 0, False

    async def count_turns() -> None:
        nonlocal turns
        while not is_done:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await asyncio.sleep(0)
    before = turns
    response = await registry.list_all(Request(where, {}, accept=accept))
    is_done, during = True, turns - before
    await counting
    assert b'"b29"' in (response.body or b"".join(response.parts))
    size = sum(len(record.data) for record in store.list(group_resource(RoleBinding)))
    assert during >= size // (2 * MAX_TURN_BYTES) > 2
