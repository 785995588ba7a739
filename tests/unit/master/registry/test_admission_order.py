"""The order of admission: mutate, set server fields, validate the kind, admit, reserve."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from api.core.config import ConfigMap
from api.core.node import Namespace
from api.core.services import Service, ServiceSpec
from api.meta.types import ObjectMeta
from master import errors
from master.admission.chain import AdmissionChain
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.auth.attributes import SYSTEM_MASTERS, User
from master.auth.authorization import Authorizer
from master.errors import StatusError
from master.registry.creation import ObjectCreation
from master.registry.registry import Registry
from master.registry.request import Request
from master.resources.configuration import CONFIG_MAPS
from master.resources.metadata import with_metadata
from master.resources.scheme import STORED_TYPES
from master.serialization.negotiation import APPLY_PATCH, MERGE_PATCH
from master.server.routes import resolve_path
from master.storage.interface import Transaction
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import put

PATH = "/api/v1/namespaces/red/configmaps"
ADMIN = User("admin", frozenset((SYSTEM_MASTERS,)))


class InvalidLabel(AdmissionPlugin):
    """A plugin that adds a label with an invalid value to every object."""

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        return with_metadata(obj, labels={"app": "no/label"})


class Repair(AdmissionPlugin):
    """Replaces the labels of every object by valid ones."""

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        return with_metadata(obj, labels={"app": "web"})


class Reject(AdmissionPlugin):
    """A plugin that fails the test when it is called."""

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        pytest.fail("an invalid object reached validating admission")


def now() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SQLiteStorage]:
    storage = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    stored = ConfigMap(metadata=ObjectMeta(name="stored", namespace="red", uid="u"), data={"a": "1"})
    await storage.write(put(Namespace(metadata=ObjectMeta(name="red"))), put(stored))
    yield storage
    await storage.close()


def creation(*plugins: AdmissionPlugin) -> ObjectCreation:
    return ObjectCreation(AdmissionChain(plugins), now, "")


def registry(storage: SQLiteStorage, *plugins: AdmissionPlugin) -> Registry:
    return Registry(storage, creation(*plugins), Authorizer(storage))


def request(path: str, body: dict[str, Any], content_type: str = "", **query: str) -> Request:
    info = resolve_path(path)
    assert info is not None
    return Request(info, query, body=body, content_type=content_type, user=ADMIN)


async def test_mutation_of_a_plugin_is_validated(storage: SQLiteStorage) -> None:
    objects = registry(storage, InvalidLabel(), Reject())
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}, "data": {"b": "2"}}
    stored = {**body, "metadata": {"name": "stored"}}
    for write in (
        objects.create(request(PATH, body)),
        objects.update(request(f"{PATH}/stored", stored)),
        objects.patch(request(f"{PATH}/stored", {"data": {"b": "2"}}, MERGE_PATCH)),
        objects.patch(request(f"{PATH}/stored", stored, APPLY_PATCH, fieldManager="me")),
        objects.patch(request(f"{PATH}/new", body, APPLY_PATCH, fieldManager="me")),
    ):
        with pytest.raises(StatusError, match=r"metadata\.labels") as rejected:
            await write
        assert rejected.value.status.code == 422


async def test_mutation_of_a_plugin_is_validated_for_controllers(storage: SQLiteStorage) -> None:
    config_map = ConfigMap(metadata=ObjectMeta(name="new", namespace="red"))
    with pytest.raises(StatusError, match=r"metadata\.labels"):
        creation(InvalidLabel(), Reject()).create(CONFIG_MAPS, config_map, Transaction(storage))


async def test_plugin_may_repair_what_would_be_invalid(storage: SQLiteStorage) -> None:
    body = {"metadata": {"name": "new", "labels": {"app": "no/label"}}}
    response = await registry(storage, Repair()).create(request(PATH, body))
    assert response.status == 201


async def test_existing_object_is_reported_after_its_errors(storage: SQLiteStorage) -> None:
    objects = registry(storage)
    with pytest.raises(StatusError, match="already exists"):
        await objects.create(request(PATH, {"metadata": {"name": "stored"}}))
    with pytest.raises(StatusError, match=r"metadata\.labels"):
        await objects.create(request(PATH, {"metadata": {"name": "stored", "labels": {"app": "no/label"}}}))


class DenyDeletion(AdmissionPlugin):
    """Rejects every deletion."""

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        if request.operation is Operation.DELETE:
            raise errors.forbidden(request.resource, obj.metadata.name, "it is needed")


async def test_plugins_validate_each_deletion_of_a_collection(storage: SQLiteStorage) -> None:
    rejecting = registry(storage, DenyDeletion())
    for deletion in (rejecting.delete(request(f"{PATH}/stored", {})), rejecting.delete_all(request(PATH, {}))):
        with pytest.raises(StatusError, match="it is needed"):
            await deletion
    assert [record.key.name for record in storage.list(CONFIG_MAPS.stored_group_resource, "red")] == ["stored"]
    response = await registry(storage).delete_all(request(PATH, {}))
    assert response.status == 200
    assert not list(storage.list(CONFIG_MAPS.stored_group_resource, "red"))


@pytest.mark.parametrize("spec", [{"selector": None, "template": {"spec": {"containers": None}}}, {"selector": 1}, {}])
async def test_status_write_needs_no_valid_spec_and_keeps_the_stored_one(
    storage: SQLiteStorage, spec: dict[str, Any]
) -> None:
    path, selector = "/apis/apps/v1/namespaces/red/replicasets", {"matchLabels": {"app": "web"}}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
    body = {"metadata": {"name": "web"}, "spec": {"selector": selector, "template": template}}
    await registry(storage).create(request(path, body))
    sent = {"metadata": {"name": "web", "labels": {"a": "b"}}, "spec": spec, "status": {"replicas": 3}}
    answer = msgspec.json.decode((await registry(storage).update(request(f"{path}/web/status", sent))).body)
    assert answer["spec"]["selector"] == selector
    assert (answer["status"]["replicas"], answer["metadata"]["labels"]) == (3, {"a": "b"})
    for broken in ({"status": {"replicas": "3"}}, {"metadata": {"labels": {"a": "b c"}}}):
        with pytest.raises(StatusError, match="is invalid"):
            await registry(storage).update(request(f"{path}/web/status", {**sent, **broken}))


async def test_status_write_of_an_object_that_is_no_longer_valid_succeeds(storage: SQLiteStorage) -> None:
    stored = Service(metadata=ObjectMeta(name="web", namespace="red", uid="u"), spec=ServiceSpec(type="Other"))
    await storage.write(put(stored))
    path = "/api/v1/namespaces/red/services/web"
    status = {"conditions": [{"type": "A", "status": "True", "reason": "B", "lastTransitionTime": None}]}
    answer = msgspec.json.decode(
        (await registry(storage).patch(request(f"{path}/status", {"status": status}, MERGE_PATCH))).body
    )
    assert answer["status"]["conditions"][0]["lastTransitionTime"] is None
    with pytest.raises(StatusError, match=r"spec\.type"):
        await registry(storage).patch(request(path, {"metadata": {"labels": {"a": "b"}}}, MERGE_PATCH))


async def test_apply_of_what_only_defaults_have_changed_has_no_conflict(storage: SQLiteStorage) -> None:
    path, labels = "/apis/apps/v1/namespaces/red/statefulsets", {"app": "db"}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    body: dict[str, Any] = {
        "metadata": {"name": "db"},
        "spec": {
            "serviceName": "db",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "a", "image": "b", "ports": [{"containerPort": 1}]}]},
            },
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
        },
    }
    objects = registry(storage)
    await objects.create(request(path, body))
    apply = replace(request(f"{path}/db", body, APPLY_PATCH, fieldManager="flux"), field_manager="flux")
    answer = msgspec.json.decode((await objects.patch(apply)).body)
    owners = {entry["manager"]: entry["fieldsV1"]["f:spec"] for entry in answer["metadata"]["managedFields"]}
    assert "f:volumeClaimTemplates" in owners["flux"]
    assert "f:volumeClaimTemplates" in owners["before-first-apply"]
    claim["resources"] = {"requests": {"storage": "2Gi"}}
    with pytest.raises(StatusError, match=r"conflict with .*volumeClaimTemplates"):
        await objects.patch(apply)
