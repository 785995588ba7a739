"""Writes that are decided after external calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from api.core.node import Namespace
from api.core.pod import Pod
from api.meta.types import ObjectMeta
from master import errors
from master.admission.chain import AdmissionChain
from master.admission.external_calls import MAX_ROUNDS, ExternalCall
from master.admission.plugin import AdmissionPlugin, AdmissionRequest
from master.auth.authorization import Authorizer
from master.controllers.runtime import ControllerRuntime
from master.errors import StatusError
from master.registry.creation import ObjectCreation
from master.registry.external_caller import ExternalCaller
from master.registry.registry import Registry
from master.registry.request import Request
from master.resources.deployments import ReplicaSet
from master.resources.metadata import with_metadata
from master.resources.scheme import STORED_TYPES, group_resource
from master.server.routes import resolve_path
from master.storage.interface import Transaction
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import put
from tests.testbed.apiserver.contended_storage import ContendedStorage
from tests.unit.master.controller_context import controller_context

CONFIG_MAPS = "/api/v1/namespaces/red/configmaps"


@dataclass(frozen=True, slots=True)
class Question(ExternalCall):
    text: str
    about: str


class Asking(AdmissionPlugin):
    """Labels each object with the answer about it, and rejects it if the answer is no."""

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        if request.external is None:
            return obj
        name = obj.metadata.name
        first, second = request.external.results_of((Question("first", name), Question("second", name)))
        return with_metadata(obj, labels={**obj.metadata.labels, "first": first, "second": second})

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        if request.external is None:
            return
        (answer,) = request.external.results_of((Question("allowed", obj.metadata.uid),))
        if answer == "no":
            raise errors.forbidden(request.resource, obj.metadata.name, "denied")


class Answers:
    """A driver that answers every question with its number, and remembers all questions."""

    def __init__(self, allowed: str = "yes") -> None:
        self.allowed = allowed
        self.rounds: list[tuple[Question, ...]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def call(self, questions: tuple[Question, ...]) -> list[str]:
        self.rounds.append(questions)
        await self.gate.wait()
        return [self.allowed if question.text == "allowed" else question.text for question in questions]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.005)


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[ContendedStorage]:
    storage = await ContendedStorage.open(tmp_path / "store.db", STORED_TYPES)
    assert isinstance(storage, ContendedStorage)
    await storage.write(put(Namespace(metadata=ObjectMeta(name="red"))))
    yield storage
    await storage.close()


def registry(storage: SQLiteStorage, answers: Answers, plugin: AdmissionPlugin | None = None) -> Registry:
    creation = ObjectCreation(
        AdmissionChain((plugin or Asking(),)), now, "", caller=ExternalCaller({Question: answers.call})
    )
    return Registry(storage, creation, Authorizer(storage))


def create(body: Any) -> Request:
    info = resolve_path(CONFIG_MAPS)
    assert info is not None
    return Request(info, {}, body=body)


async def test_each_question_is_asked_once(storage: ContendedStorage) -> None:
    answers = Answers()
    response = await registry(storage, answers).create(create({"metadata": {"generateName": "some-"}}))
    metadata = json.loads(response.body)["metadata"]
    assert metadata["labels"] == {"first": "first", "second": "second"}
    # The generated name and the uid are those that were asked about.
    assert answers.rounds == [
        (Question("first", metadata["name"]), Question("second", metadata["name"])),
        (Question("allowed", metadata["uid"]),),
    ]


async def test_nothing_is_written_after_a_refusal(storage: ContendedStorage) -> None:
    with pytest.raises(StatusError, match="denied"):
        await registry(storage, Answers("no")).create(create({"metadata": {"name": "some"}}))
    info = resolve_path(CONFIG_MAPS)
    assert info is not None
    assert storage.list(info.resource.group_resource) == []


async def test_writes_of_others_do_not_wait_for_calls(storage: ContendedStorage) -> None:
    answers = Answers()
    answers.gate.clear()
    waiting = asyncio.create_task(registry(storage, answers).create(create({"metadata": {"name": "slow"}})))
    await until(lambda: bool(answers.rounds))
    quick = await registry(storage, Answers()).create(create({"metadata": {"name": "quick"}}))
    assert quick.status == 201
    assert not waiting.done()
    answers.gate.set()
    assert (await waiting).status == 201


async def test_questions_without_end_are_an_error(storage: ContendedStorage) -> None:
    class Endless(AdmissionPlugin):
        asked = 0

        def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
            assert request.external is not None
            self.asked += 1
            request.external.results_of((Question("first", str(self.asked)),))

    answers = Answers()
    with pytest.raises(StatusError, match="external calls") as rejected:
        await registry(storage, answers, Endless()).create(create({"metadata": {"name": "some"}}))
    assert (rejected.value.status.code, len(answers.rounds)) == (500, MAX_ROUNDS)


async def test_controllers_create_after_the_calls_and_go_on_meanwhile(storage: ContendedStorage) -> None:
    """Pods of a replica set wait for the calls about them; those of another, about which nobody is asked, do not."""

    class Selective(Asking):
        def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
            return super().mutate(request, obj, objects) if obj.metadata.labels.get("app") == "slow" else obj

        def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
            if obj.metadata.labels.get("first"):
                super().validate(request, obj, objects)

    answers = Answers()
    answers.gate.clear()
    context = controller_context(storage)
    creation = replace(
        context.creation, chain=AdmissionChain((Selective(),)), caller=ExternalCaller({Question: answers.call})
    )
    runtime = ControllerRuntime(replace(context, creation=creation))
    for name in ("slow", "quick"):
        await storage.write(put(replica_set(name)))
    running = asyncio.create_task(runtime.run())
    try:
        await until(lambda: [pod.metadata.generate_name for pod in pods(storage)] == ["quick-"] * 2)
        await until(lambda: len(answers.rounds) == 2)
        answers.gate.set()
        await until(lambda: len(pods(storage)) == 4)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    asked = {question.about for round_ in answers.rounds for question in round_}
    slow = [pod for pod in pods(storage) if pod.metadata.generate_name == "slow-"]
    assert {pod.metadata.name for pod in slow} | {pod.metadata.uid for pod in slow} == asked


def pods(storage: SQLiteStorage) -> list[Pod]:
    return [record.object for record in storage.list(group_resource(Pod))]


def replica_set(name: str) -> ReplicaSet:
    document = {
        "metadata": {"name": name, "namespace": "red", "uid": name},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "image"}]},
            },
        },
    }
    return msgspec.convert(document, ReplicaSet)
