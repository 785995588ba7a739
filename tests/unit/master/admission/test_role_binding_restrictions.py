"""RoleBindingRestriction: which subjects role bindings may have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from api.meta.types import ObjectMeta
from api.validation.registry import default
from master.admission.plugin import AdmissionRequest, Operation
from master.admission.role_binding_restrictions import RoleBindingRestrictions
from master.errors import StatusError
from master.resources.legacy_rbac import LEGACY_ROLE_BINDINGS, LegacyRoleBinding, RoleBindingRestriction
from master.resources.rbac import CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS, ClusterRoleBinding, RoleBinding, Subject
from master.resources.resource import AnyResource
from master.resources.scheme import STORED_TYPES
from master.resources.users import Group, User
from master.storage.interface import Transaction
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import put
from tests.unit.master.admission.examples import decoded

AMY, BOB, EVE = (Subject(kind="User", name=name) for name in ("amy", "bob", "eve"))
DEV, OPS = (Subject(kind="Group", name=name) for name in ("dev", "ops"))
ROBOT, FOREIGN, COUSIN = (
    Subject(kind="ServiceAccount", name=name, namespace=namespace)
    for name, namespace in (("robot", "red"), ("robot", "blue"), ("x", "green"))
)


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SQLiteStorage]:
    storage = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    await storage.write(
        put(Group(metadata=ObjectMeta(name="dev", labels={"team": "a"}), users=("bob",))),
        put(User(metadata=ObjectMeta(name="eve", labels={"team": "a"}))),
        put(User(metadata=ObjectMeta(name="bob", labels={"team": "b"}))),
    )
    yield storage
    await storage.close()


def restriction(name: str, **spec: Any) -> RoleBindingRestriction:
    restricted: RoleBindingRestriction = decoded(RoleBindingRestriction, metadata={"name": name}, spec=spec)
    return restricted


def binding(*subjects: Subject, namespace: str = "red") -> RoleBinding:
    return RoleBinding(metadata=ObjectMeta(name="b", namespace=namespace), subjects=subjects)


def validate(
    storage: SQLiteStorage, resource: AnyResource, new: Any, old: Any = None, operation: Operation = Operation.CREATE
) -> None:
    request = AdmissionRequest(
        operation=operation, resource=resource, now=datetime.now(UTC), random_suffix=lambda: "abcde", old=old
    )
    RoleBindingRestrictions().validate(request, new, Transaction(storage))


def denied(storage: SQLiteStorage, *subjects: Subject) -> list[Subject]:
    result = []
    for subject in subjects:
        try:
            validate(storage, ROLE_BINDINGS, binding(subject))
        except StatusError:
            result.append(subject)
    return result


ALL = (AMY, BOB, EVE, DEV, OPS, ROBOT, FOREIGN, COUSIN)


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"userrestriction": {"users": ["amy"]}}, {AMY}),
        ({"userrestriction": {"groups": ["dev", "gone"]}}, {BOB}),
        ({"userrestriction": {"labels": [{"matchLabels": {"team": "a"}}]}}, {EVE}),
        ({"grouprestriction": {"groups": ["ops"]}}, {OPS}),
        ({"grouprestriction": {"labels": [{"matchLabels": {"team": "a"}}]}}, {DEV}),
        ({"serviceaccountrestriction": {"serviceaccounts": [{"name": "robot"}]}}, {ROBOT}),
        ({"serviceaccountrestriction": {"serviceaccounts": [{"name": "x", "namespace": "green"}]}}, {COUSIN}),
        ({"serviceaccountrestriction": {"namespaces": ["blue"]}}, {FOREIGN}),
    ],
)
async def test_restriction_allows_only_its_subjects(
    storage: SQLiteStorage, spec: dict[str, Any], allowed: set[Subject]
) -> None:
    assert denied(storage, *ALL) == []
    await storage.write(put(restriction("r", **spec)))
    assert set(ALL) - {*denied(storage, *ALL)} == allowed


async def test_one_matching_restriction_of_the_namespace_is_enough(storage: SQLiteStorage) -> None:
    await storage.write(put(restriction("a", userrestriction={"users": ["amy"]})))
    await storage.write(put(restriction("b", grouprestriction={"groups": ["dev"]})))
    validate(storage, ROLE_BINDINGS, binding(AMY, DEV))
    validate(storage, ROLE_BINDINGS, binding(BOB, namespace="blue"))
    message = r'\[rolebindings to User "bob" are not allowed in project "red", rolebindings to Group "ops" are'
    with pytest.raises(StatusError, match=message) as refused:
        validate(storage, ROLE_BINDINGS, binding(AMY, BOB, OPS))
    assert refused.value.status.code == 403


async def test_subjects_that_were_bound_before_stay(storage: SQLiteStorage) -> None:
    await storage.write(put(restriction("a", userrestriction={"users": ["amy"]})))
    validate(storage, ROLE_BINDINGS, binding(AMY, BOB), binding(BOB), Operation.UPDATE)
    with pytest.raises(StatusError, match='"eve"'):
        validate(storage, ROLE_BINDINGS, binding(BOB, EVE), binding(BOB), Operation.UPDATE)
    validate(storage, ROLE_BINDINGS, binding(BOB), binding(BOB), Operation.DELETE)


async def test_other_forms_of_bindings(storage: SQLiteStorage) -> None:
    await storage.write(put(restriction("a", userrestriction={"users": ["amy"]})))
    named = LegacyRoleBinding(metadata=ObjectMeta(name="b", namespace="red"), user_names=("bob",))
    with pytest.raises(StatusError, match='rolebindings to User "bob"'):
        validate(storage, LEGACY_ROLE_BINDINGS, default(named, LEGACY_ROLE_BINDINGS.rules))
    cluster = ClusterRoleBinding(metadata=ObjectMeta(name="b"), subjects=(BOB,))
    validate(storage, CLUSTER_ROLE_BINDINGS, cluster)
