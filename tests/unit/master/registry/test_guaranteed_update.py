"""Requests whose write conflicts with that of another master."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from api.core.config import ConfigMap
from api.core.node import Namespace
from api.core.pod import Pod
from api.meta.types import Object, ObjectMeta
from master.admission.chain import AdmissionChain
from master.admission.plugin import AdmissionPlugin
from master.admission.resource_quota import ResourceQuotaPlugin
from master.auth.authorization import Authorizer
from master.errors import StatusError
from master.registry.creation import ObjectCreation
from master.registry.guaranteed_update import MAX_ATTEMPTS
from master.registry.pods import PodActions
from master.registry.registry import Registry
from master.registry.request import Request
from master.resources.disruption_budgets import PodDisruptionBudget
from master.resources.quotas import ResourceQuota
from master.resources.scheme import STORED_TYPES, group_resource
from master.serialization.negotiation import MERGE_PATCH
from master.server.routes import resolve_path
from master.storage.interface import Key
from tests.testbed.apiserver.changes import delete, put
from tests.testbed.apiserver.contended_storage import Change, Competitor, ContendedStorage
from tests.unit.master.admission.examples import pod, quota

CONFIG_MAPS = "/api/v1/namespaces/red/configmaps"
SHARED = f"{CONFIG_MAPS}/shared"


def now() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[ContendedStorage]:
    storage = await ContendedStorage.open(tmp_path / "store.db", STORED_TYPES)
    assert isinstance(storage, ContendedStorage)
    await storage.write(put(Namespace(metadata=ObjectMeta(name="red"))), put(config_map(a="1")))
    storage.attempts = 0
    yield storage
    await storage.close()


def config_map(name: str = "shared", **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="red", uid="u"), data=data)


def registry(storage: ContendedStorage, plugins: Iterable[AdmissionPlugin] = ()) -> Registry:
    return Registry(storage, ObjectCreation(AdmissionChain(tuple(plugins)), now, ""), Authorizer(storage))


def request(path: str, body: Any = None, **options: Any) -> Request:
    info = resolve_path(path)
    assert info is not None
    return Request(info, options.pop("query", {}), body=body, **options)


def stored(storage: ContendedStorage, kind: type[Object], name: str) -> Any:
    record = storage.get(Key(group_resource(kind), "red", name))
    return None if record is None else record.object


def once(*competing: Change) -> Competitor:
    """Return a competitor that makes these changes, one before each write."""
    left = list(competing)
    return lambda changes: left.pop(0) if left else None


async def conflict_message(response: Awaitable[object]) -> str:
    with pytest.raises(StatusError) as rejected:
        await response
    assert (rejected.value.status.code, rejected.value.status.reason) == (409, "Conflict")
    return rejected.value.status.message


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


async def test_update_without_a_resource_version_is_decided_again(storage: ContendedStorage) -> None:
    storage.competitor = once(put(config_map(a="2")), put(config_map(a="3")))
    response = await registry(storage).update(request(SHARED, {"data": {"b": "1"}}))
    assert (response.status, json.loads(response.body)["data"]) == (200, {"b": "1"})
    assert stored(storage, ConfigMap, "shared").data == {"b": "1"}
    assert (storage.attempts, storage.conflicts) == (3, 2)


async def test_update_with_a_resource_version_conflicts(storage: ContendedStorage) -> None:
    storage.competitor = once(put(config_map(a="2")))
    body = {"metadata": {"resourceVersion": "2"}, "data": {"b": "1"}}
    assert MODIFIED in await conflict_message(registry(storage).update(request(SHARED, body)))
    assert stored(storage, ConfigMap, "shared").data == {"a": "2"}
    assert storage.attempts == 1


async def test_patch_is_applied_to_the_newer_state(storage: ContendedStorage) -> None:
    storage.competitor = once(put(config_map(a="2")))
    await registry(storage).patch(request(SHARED, {"data": {"b": "1"}}, content_type=MERGE_PATCH))
    assert stored(storage, ConfigMap, "shared").data == {"a": "2", "b": "1"}


async def test_patch_with_a_resource_version_conflicts(storage: ContendedStorage) -> None:
    storage.competitor = once(put(config_map(a="2")))
    body = {"metadata": {"resourceVersion": "2"}, "data": {"b": "1"}}
    await conflict_message(registry(storage).patch(request(SHARED, body, content_type=MERGE_PATCH)))
    assert stored(storage, ConfigMap, "shared").data == {"a": "2"}


async def test_update_of_an_object_deleted_meanwhile_is_not_found(storage: ContendedStorage) -> None:
    storage.competitor = once(delete(config_map()))
    with pytest.raises(StatusError) as rejected:
        await registry(storage).update(request(SHARED, {"data": {"b": "1"}}))
    assert rejected.value.status.code == 404


async def test_conflicts_without_end_are_reported_after_five_attempts(storage: ContendedStorage) -> None:
    storage.competitor = lambda changes: put(config_map(a="2"))
    message = await conflict_message(registry(storage).update(request(SHARED, {"data": {"b": "1"}})))
    assert message == f'Operation cannot be fulfilled on configmaps "shared": {MODIFIED}'
    assert storage.attempts == MAX_ATTEMPTS == 5


async def test_create_of_a_name_that_exists_meanwhile_is_rejected(storage: ContendedStorage) -> None:
    storage.competitor = once(put(config_map("new", a="theirs")))
    with pytest.raises(StatusError) as rejected:
        await registry(storage).create(request(CONFIG_MAPS, {"metadata": {"name": "new"}}))
    assert rejected.value.status.reason == "AlreadyExists"
    assert stored(storage, ConfigMap, "new").data == {"a": "theirs"}


async def test_create_generates_another_name_if_its_name_exists_meanwhile(storage: ContendedStorage) -> None:
    taken: list[str] = []

    def take(changes: Sequence[Change]) -> Change | None:
        if taken:
            return None
        taken.append(changes[0].key.name)
        return put(config_map(changes[0].key.name, a="theirs"))

    storage.competitor = take
    response = await registry(storage).create(request(CONFIG_MAPS, {"metadata": {"generateName": "new-"}}))
    name = json.loads(response.body)["metadata"]["name"]
    assert name.startswith("new-")
    assert name != taken[0]
    assert stored(storage, ConfigMap, taken[0]).data == {"a": "theirs"}


async def test_delete_is_decided_again_unless_it_has_a_resource_version(storage: ContendedStorage) -> None:
    storage.competitor = once(put(config_map(a="2")))
    options = {"preconditions": {"resourceVersion": "2"}}
    assert "does not match the ResourceVersion" in await conflict_message(
        registry(storage).delete(request(SHARED, options))
    )
    storage.competitor = once(put(config_map(a="3")))
    assert (await registry(storage).delete(request(SHARED))).status == 200
    assert stored(storage, ConfigMap, "shared") is None


async def test_delete_collection_skips_an_object_that_is_deleted_meanwhile(storage: ContendedStorage) -> None:
    await storage.write(put(config_map("other")))
    storage.competitor = once(delete(config_map("other")))
    response = await registry(storage).delete_all(request(CONFIG_MAPS))
    assert [obj["metadata"]["name"] for obj in json.loads(response.body)["items"]] == ["shared"]
    assert storage.list(group_resource(ConfigMap), "red") == []


async def test_quota_is_charged_on_the_newer_usage(storage: ContendedStorage) -> None:
    limited = {"count/configmaps": "3"}
    before = replace(quota(limited, {"count/configmaps": "1"}), metadata=ObjectMeta(name="q", namespace="red"))
    after = replace(quota(limited, {"count/configmaps": "2"}), metadata=before.metadata)
    await storage.write(put(before))
    storage.competitor = once(put(after))
    objects = registry(storage, [ResourceQuotaPlugin()])
    await objects.create(request(CONFIG_MAPS, {"metadata": {"name": "new"}}))
    assert stored(storage, ResourceQuota, "q").status.used == {"count/configmaps": "3"}
    assert storage.conflicts == 1


async def test_eviction_is_charged_to_the_newer_budget(storage: ContendedStorage) -> None:
    def budget(allowed: int) -> PodDisruptionBudget:
        document = {
            "metadata": {"name": "b", "namespace": "red"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}},
            "status": {"disruptionsAllowed": allowed, "currentHealthy": 9, "desiredHealthy": 1, "expectedPods": 9},
        }
        return msgspec.convert(document, PodDisruptionBudget)

    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    web = msgspec.convert(
        {"metadata": {"name": "web", "namespace": "red", "labels": {"app": "web"}}, "status": ready}, Pod
    )
    web = replace(web, spec=pod().spec)
    await storage.write(put(web), put(budget(3)))
    storage.competitor = once(put(budget(2)))
    await PodActions(storage, now, registry(storage)).evict(
        request("/api/v1/namespaces/red/pods/web/eviction", {"metadata": {"name": "web"}})
    )
    assert stored(storage, PodDisruptionBudget, "b").status.disruptions_allowed == 1
    assert storage.conflicts == 1
