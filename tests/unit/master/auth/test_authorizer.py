"""What a node may read because a pod on it refers to it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from api.core.pod import Container, Pod, PodSpec
from api.core.storage import PersistentVolumeClaim, PersistentVolumeClaimSpec
from api.core.volumes import PersistentVolumeClaimVolumeSource, Volume
from api.meta.types import ObjectMeta
from master.auth import authorization
from master.auth.attributes import Attributes, Decision, User
from master.auth.authorization import Authorizer
from master.errors import StatusError
from master.resources.namespaces import PROJECTS
from master.resources.rbac import PolicyRule, Role, RoleBinding, RoleRef, Subject
from master.resources.scheme import STORED_TYPES
from master.server.routes import resolve_path
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import delete, put

NODE = User("system:node:n1", frozenset(("system:nodes",)))
CLAIM = PersistentVolumeClaim(metadata=ObjectMeta(name="data", namespace="red"))
SOURCE = PersistentVolumeClaimVolumeSource(claim_name="data")
POD = Pod(
    metadata=ObjectMeta(name="p", namespace="red"),
    spec=PodSpec(
        node_name="n1",
        containers=(Container(name="a", image="i"),),
        volumes=(Volume(name="v", persistent_volume_claim=SOURCE),),
    ),
)


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SQLiteStorage]:
    storage = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    await storage.write(put(CLAIM), put(POD))
    yield storage
    await storage.close()


def may(storage: SQLiteStorage, verb: str, path: str, **query: str) -> bool:
    info = resolve_path(path)
    assert info is not None
    try:
        Authorizer(storage).require(NODE, verb, info, query)
    except StatusError:
        return False
    return True


async def test_node_reads_the_volume_of_a_bound_claim_and_no_other(storage: SQLiteStorage) -> None:
    await storage.write(put(replace(CLAIM, spec=PersistentVolumeClaimSpec(volume_name="disk"))))
    assert may(storage, "get", "/api/v1/persistentvolumes/disk")
    assert may(storage, "list", "/api/v1/persistentvolumes", fieldSelector="metadata.name=disk")
    assert not may(storage, "get", "/api/v1/persistentvolumes/other")
    assert not may(storage, "list", "/api/v1/persistentvolumes")


async def test_claim_without_a_volume_opens_no_list(storage: SQLiteStorage) -> None:
    assert may(storage, "get", "/api/v1/namespaces/red/persistentvolumeclaims/data")
    for verb in ("list", "watch"):
        assert not may(storage, verb, "/api/v1/persistentvolumes")
        assert not may(storage, verb, "/api/v1/persistentvolumes", fieldSelector="metadata.name=")


async def test_lists_show_an_administrator_what_the_scopes_allow(storage: SQLiteStorage) -> None:
    """An administrator can impersonate a user with scopes."""
    authorizer = Authorizer(storage)
    masters = frozenset(("system:masters",))
    assert authorizer.name_filter(User("system:admin", masters), PROJECTS) is None
    for scope, is_shown in (("user:list-scoped-projects", False), ("user:list-projects", True)):
        extra = (("scopes.authorization.openshift.io", (scope,)),)
        shows = authorizer.name_filter(User("system:admin", masters, "", extra), PROJECTS)
        assert shows is not None
        assert shows("red") == is_shown


async def test_filter_of_names_follows_roles_and_bindings(storage: SQLiteStorage) -> None:
    """It keeps its decisions, because each watch asks for each change of an object."""
    authorizer = Authorizer(storage)
    shows = authorizer.name_filter(User("amy", frozenset(("dev",))), PROJECTS)
    assert shows is not None
    assert not shows("red")
    rules = (PolicyRule(verbs=("get",), api_groups=("",), resources=("namespaces",)),)
    role = Role(metadata=ObjectMeta(name="reader", namespace="red"), rules=rules)
    reference = RoleRef(kind="Role", name="reader")
    subjects = (Subject(kind="Group", name="dev"),)
    binding = RoleBinding(metadata=ObjectMeta(name="b", namespace="red"), role_ref=reference, subjects=subjects)
    await storage.write(put(role), put(binding))
    assert shows("red")
    await storage.write(put(replace(role, rules=())))
    assert not shows("red")
    await storage.write(put(role))
    assert shows("red")
    await storage.write(delete(binding))
    assert not shows("red")


async def test_decisions_of_admission_are_kept_until_roles_or_bindings_change(
    storage: SQLiteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    authorizer, decided = Authorizer(storage), list[User]()
    decide = authorization.decide

    def counted(user: User, *rest: Any) -> Decision:
        decided.append(user)
        return decide(user, *rest)

    monkeypatch.setattr(authorization, "decide", counted)
    amy, bob = User("amy", frozenset(("dev",))), User("bob")
    use = Attributes("use", "security.openshift.io", "securitycontextconstraints", namespace="red", name="anyuid")
    elsewhere = dataclasses.replace(use, namespace="blue")

    def allowed() -> list[bool]:
        return [authorizer.allows_in_admission(*each) for each in ((amy, use), (amy, elsewhere), (bob, use))]

    assert [allowed() for _ in range(3)] == [[False, False, False]] * 3
    assert decided == [amy, amy, bob]
    rules = (
        PolicyRule(verbs=("use",), api_groups=(use.group,), resources=(use.resource,), resource_names=("anyuid",)),
    )
    role = Role(metadata=ObjectMeta(name="anyuid", namespace="red"), rules=rules)
    binding = RoleBinding(
        metadata=ObjectMeta(name="b", namespace="red"),
        role_ref=RoleRef(kind="Role", name="anyuid"),
        subjects=(Subject(kind="Group", name="dev"),),
    )
    await storage.write(put(role), put(binding))
    assert allowed() == [True, False, False]
    await storage.write(put(replace(role, rules=())))
    assert allowed() == [False, False, False]
    await storage.write(put(role))
    assert allowed() == [True, False, False]
    await storage.write(delete(binding))
    assert allowed() == [False, False, False]
    limited = User("amy", amy.groups, "", (("scopes.authorization.openshift.io", ("user:info",)),))
    await storage.write(put(binding))
    assert authorizer.allows_in_admission(amy, use)
    assert not authorizer.allows_in_admission(limited, use), "the decision of another token"


async def test_decisions_of_admission_are_bounded_and_never_about_nodes(
    storage: SQLiteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorization, "MAX_ADMISSION_DECISIONS", 10)
    authorizer = Authorizer(storage)
    for number in range(35):
        attributes = Attributes("use", "g", "r", name=f"n{number}")
        assert not authorizer.allows_in_admission(User("amy"), attributes)
        assert not authorizer.allows_in_admission(NODE, attributes)
    kept = authorizer._admission._decisions
    assert len(kept) == 5
    assert {user for user, _ in kept} == {User("amy")}
