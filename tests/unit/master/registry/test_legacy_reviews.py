"""Who may do something: a review of many bindings neither holds the master nor grows without a limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from api.meta.types import ObjectMeta
from master.auth.attributes import User
from master.auth.authorization import Authorizer
from master.auth.scopes import SCOPES_EXTRA
from master.registry import legacy_reviews
from master.registry.legacy_reviews import LegacyReviews
from master.resources.legacy_reviews import (
    LegacyLocalSubjectAccessReview,
    LocalResourceAccessReview,
    ResourceAccessReviewResponse,
    SubjectAccessReviewResponse,
    SubjectRulesReview,
    SubjectRulesReviewSpec,
)
from master.resources.rbac import PolicyRule, Role, RoleBinding, RoleRef, Subject
from master.resources.scheme import STORED_TYPES
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import put

RULE = PolicyRule(verbs=("get",), api_groups=("",), resources=("pods",))


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SQLiteStorage]:
    storage = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    await storage.write(put(Role(metadata=ObjectMeta(name="reader", namespace="red"), rules=(RULE,))))
    yield storage
    await storage.close()


def binding(name: str, users: Iterable[str]) -> RoleBinding:
    return RoleBinding(
        metadata=ObjectMeta(name=name, namespace="red"),
        subjects=tuple(Subject(kind="User", name=user) for user in users),
        role_ref=RoleRef(kind="Role", name="reader"),
    )


async def who_can(storage: SQLiteStorage) -> ResourceAccessReviewResponse:
    review = LocalResourceAccessReview(verb="get", resource="pods")
    answer = await LegacyReviews(storage, Authorizer(storage)).answer(review, User("amy"), "red")
    assert isinstance(answer, ResourceAccessReviewResponse)
    return answer


async def test_other_tasks_have_their_turn(storage: SQLiteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_reviews, "WORK_PER_TURN", 10)
    await storage.write(*(put(binding(f"b{number}", [f"u{number}", "x", "y"])) for number in range(20)))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count())
    answer = await who_can(storage)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert len(answer.users or ()) == 22
    assert turns >= 6


async def test_number_of_names_is_limited(storage: SQLiteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_reviews, "MAX_SUBJECTS", 5)
    await storage.write(put(binding("a", ["u1", "u2"])))
    answer = await who_can(storage)
    assert (answer.users, answer.groups, answer.evaluation_error) == (("u1", "u2"), ("system:masters",), "")
    await storage.write(put(binding("b", [f"v{number}" for number in range(4)])), put(binding("c", ["w"])))
    answer = await who_can(storage)
    assert "w" not in (answer.users or ())
    assert answer.evaluation_error == "only some of more than 5 users and groups are listed"


async def test_rules_of_a_role_are_listed_once_and_limited(
    storage: SQLiteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await storage.write(*(put(binding(f"b{number}", ["eve"])) for number in range(20)))
    authorizer = Authorizer(storage)
    assert authorizer.rules_for(User("eve"), "red") == (RULE,)
    monkeypatch.setattr(legacy_reviews, "MAX_RULES", 0)
    review = SubjectRulesReview(spec=SubjectRulesReviewSpec(user="eve"))
    answer = await LegacyReviews(storage, authorizer).answer(review, User("amy"), "red")
    assert isinstance(answer, SubjectRulesReview)
    assert (answer.status.rules, answer.status.evaluation_error) == ((), "only the first 0 rules are listed")


async def test_rules_of_a_scoped_user_are_marked_as_limited(storage: SQLiteStorage) -> None:
    await storage.write(put(binding("b", ["eve"])))
    for scopes, error in (
        (None, ""),
        ((), ""),
        (("user:full",), ""),
        (("user:info",), "scopes [user:info] limit these rules further"),
    ):
        review = SubjectRulesReview(spec=SubjectRulesReviewSpec(user="eve", scopes=scopes))
        answer = await LegacyReviews(storage, Authorizer(storage)).answer(review, User("amy"), "red")
        assert isinstance(answer, SubjectRulesReview)
        assert answer.status.evaluation_error == error


@pytest.mark.parametrize(
    ("given", "scopes", "allowed"),
    [((), None, True), (("user:info",), None, False), (("user:info",), (), True), ((), ("user:info",), False)],
)
async def test_scopes_of_a_review_of_oneself(
    storage: SQLiteStorage, given: tuple[str, ...], scopes: tuple[str, ...] | None, allowed: bool
) -> None:
    await storage.write(put(binding("b", ["eve"])))
    eve = User("eve", extra=((SCOPES_EXTRA, given),) if given else ())
    review = LegacyLocalSubjectAccessReview(verb="get", resource="pods", scopes=scopes)
    answer = await LegacyReviews(storage, Authorizer(storage)).answer(review, eve, "red")
    assert isinstance(answer, SubjectAccessReviewResponse)
    assert answer.allowed is allowed
