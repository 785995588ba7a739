"""Back-off and cool-down of controllers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from api.core.pod import Container, Pod, PodSpec
from api.meta.types import Object, ObjectMeta
from master.admission.chain import AdmissionChain
from master.admission.defaults import apply_priority
from master.controllers.actions import Create
from master.controllers.context import CreateBackoff, Lister
from master.controllers.pending_creates import PendingCreates
from master.controllers.runtime import (
    MAX_BACKOFF_SECONDS,
    MIN_BACKOFF_SECONDS,
    CreateQueue,
    cool_down,
    next_backoff,
    reset_after,
)
from master.resources.configuration import ServiceAccount
from master.resources.priority_classes import PriorityClass
from master.resources.quotas import LimitRange
from master.resources.rbac import ClusterRoleBinding, RoleBinding
from master.resources.scheme import STORED_TYPES
from master.resources.security_context_constraints import SecurityContextConstraints
from master.storage.interface import Record, Transaction, WatchEvent
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import key_of
from tests.unit.master.admission.examples import quota
from tests.unit.master.controller_context import controller_context
from tests.unit.master.examples import meta, pod


def test_controller_back_off_doubles_up_to_a_minute() -> None:
    create_backoff, now, pauses = None, 100.0, list[float]()
    for _ in range(9):
        create_backoff = next_backoff(create_backoff, "red", "no", now)
        assert create_backoff.until == now + create_backoff.seconds
        pauses.append(create_backoff.seconds)
        now = create_backoff.until
    assert pauses[:3] == [MIN_BACKOFF_SECONDS, 2 * MIN_BACKOFF_SECONDS, 4 * MIN_BACKOFF_SECONDS]
    assert pauses[-2:] == [MAX_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS]


def event(kind: str, new: Object, old: Object | None = None) -> WatchEvent:
    def record(obj: Object) -> Record:
        return Record(key_of(obj), 1, msgspec.json.encode(obj), type(obj), obj)

    return WatchEvent(kind, record(new), None if old is None else record(old))


FULL = quota({"pods": "2"}, {"pods": "2"})
CHANGES = [
    (event("MODIFIED", quota({"pods": "2"}, {"pods": "1"}), FULL), True),
    (event("MODIFIED", quota({"pods": "3"}, {"pods": "2"}), FULL), True),
    (event("DELETED", FULL, FULL), True),
    (event("MODIFIED", LimitRange(metadata=meta("l", namespace="red")), None), True),
    (event("MODIFIED", FULL, quota({"pods": "2"}, {"pods": "1"})), False),
    (event("MODIFIED", FULL, FULL), False),
    (event("ADDED", FULL), False),
]


@pytest.mark.parametrize(("change", "resets"), CHANGES)
def test_create_back_off_is_reset_when_quota_is_freed(change: WatchEvent, resets: bool) -> None:
    known = {"mine": CreateBackoff("red", "no", 8.0, 50.0), "theirs": CreateBackoff("blue", "no", 8.0, 50.0)}
    actual = reset_after(known, change, 10.0)
    assert actual["mine"].until == (10.0 if resets else 50.0)
    assert actual["theirs"] == known["theirs"]
    assert actual["mine"].seconds == 8.0


BINDING = RoleBinding(metadata=meta("b", namespace="red"))
IN_THE_WHOLE_CLUSTER = (
    ClusterRoleBinding(metadata=meta("b")),
    SecurityContextConstraints(metadata=meta("s")),
)


def test_create_back_off_is_reset_when_rights_change() -> None:
    known = {"mine": CreateBackoff("red", "no", 8.0, 50.0), "theirs": CreateBackoff("blue", "no", 8.0, 50.0)}
    assert [backoff.until for backoff in reset_after(known, event("MODIFIED", BINDING, BINDING), 10.0).values()] == [
        10.0, 50.0,
    ]  # fmt: skip
    for changed in IN_THE_WHOLE_CLUSTER:
        assert {backoff.until for backoff in reset_after(known, event("ADDED", changed), 10.0).values()} == {10.0}
        assert reset_after(known, event("DELETED", changed, changed), 10.0) == known


def new_pod(**spec: Any) -> Pod:
    obj = pod("p")
    return replace(obj, spec=replace(obj.spec, **spec))


CLASSES = (
    PriorityClass(metadata=meta("high"), value=9),
    PriorityClass(metadata=meta("low"), value=-4, preemption_policy="Never"),
)
USUAL = PriorityClass(metadata=meta("usual"), value=3, global_default=True)
RANKS = [
    (new_pod(), CLASSES, ("", 0, "PreemptLowerPriority")),
    (new_pod(priority_class_name="high"), CLASSES, ("high", 9, "PreemptLowerPriority")),
    (new_pod(priority_class_name="low"), CLASSES, ("low", -4, "Never")),
    (new_pod(priority_class_name="high", priority=9, preemption_policy="PreemptLowerPriority"), CLASSES,
     ("high", 9, "PreemptLowerPriority")),
    (new_pod(), (*CLASSES, USUAL), ("usual", 3, "PreemptLowerPriority")),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "classes", "wanted"), RANKS)
def test_pod_priority_is_set_from_its_priority_class(obj: Pod, classes: Any, wanted: tuple[str, int, str]) -> None:
    spec = apply_priority(obj, classes).spec
    assert (spec.priority_class_name, spec.priority, spec.preemption_policy) == wanted
    assert apply_priority(replace(obj, spec=spec), classes).spec == spec


@pytest.mark.parametrize(
    ("spent", "written", "seconds"),
    [
        (0.001, 0, 0.0),
        (0.1, 0, 0.4),
        (60.0, 0, 2.0),
        (60.0, 1, 0.0),
        (0.1, 500, 0.0),
        (0.1, 1500, 1.0),
        (0.1, 1_000_000, 2.0),
    ],
)
def test_controller_cools_down_after_a_vain_pass_and_a_large_write(spent: float, written: int, seconds: float) -> None:
    assert cool_down(spent, written) == pytest.approx(seconds)


def pod_of(containers: int) -> Pod:
    image = "i" * 100
    return Pod(
        metadata=ObjectMeta(generate_name="p-", namespace="red"),
        spec=PodSpec(containers=tuple(Container(name=f"c{number}", image=image) for number in range(containers))),
    )


@pytest.mark.parametrize(("containers", "at_most"), [(1, 128), (200, 6)])
async def test_one_pass_creates_a_part_of_many_pods(tmp_path: Path, containers: int, at_most: int) -> None:
    storage = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    try:
        context = controller_context(storage)
        creation = dataclasses.replace(context.creation, chain=AdmissionChain(()))
        queue = CreateQueue(creation, Lister(context), Transaction(storage), PendingCreates())
        queue.create(Create(pod_of(containers)))
        assert (len(queue.transaction.changes), queue.is_full) == (1, False)
        for _ in range(200):
            queue.create(Create(pod_of(containers)))
        assert 1 < len(queue.transaction.changes) <= at_most
        assert queue.is_full
        account = ServiceAccount(metadata=ObjectMeta(name="a", namespace="red"))
        before = len(queue.transaction.changes)
        queue.create(Create(account))  # Not of a kind that is created by the thousand.
        assert len(queue.transaction.changes) == before + 1
    finally:
        await storage.close()
