"""The controller of autoscalers on a storage of its own, with a clock and usage that tests set."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from api.core.events import Event
from api.core.node import Namespace
from api.core.pod import Pod
from api.meta.selectors import LabelSelector
from api.meta.types import ObjectMeta
from master.config import AutoscalingConfig
from master.controllers import events
from master.controllers.actions import Action, Create, Failed, Update
from master.controllers.autoscaling import horizontal
from master.controllers.autoscaling.horizontal import (
    EVENT_BURST,
    EventTokens,
    HorizontalPodAutoscalers,
    Selectors,
    autoscalers_await_time,
)
from master.controllers.context import Lister
from master.controllers.runtime import ControllerRuntime
from master.resources.autoscaling import (
    CrossVersionObjectReference,
    HorizontalPodAutoscaler,
    MetricSpec,
    MetricTarget,
    ResourceMetricSource,
)
from master.resources.configuration import ServiceAccount
from master.resources.deployments import Deployment
from master.resources.metrics import PodMetrics
from master.resources.scheme import STORED, STORED_TYPES, group_resource
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import delete, put
from tests.unit.master.controller_context import controller_context
from tests.unit.master.controllers.autoscaling.examples import NOW, autoscaler, deployment, measured, pod, pods

PERIOD = 15.0


class World:
    """A cluster with pods of the project red, whose usage tests set; and its controller of autoscalers."""

    def __init__(self, store: SQLiteStorage) -> None:
        self.store = store
        self.now = NOW
        self.monotonic = 1000.0
        self.usage: dict[str, PodMetrics] = {}
        self.asked: list[str] = []
        self.context = dataclasses.replace(
            controller_context(store),
            clock=lambda: self.now,
            monotonic=lambda: self.monotonic,
            pod_metrics=self,
            autoscaling=AutoscalingConfig(sync_period=PERIOD),
        )
        self.lister = Lister(self.context)
        self.restart()

    def restart(self) -> None:
        """Begin with a controller without memory."""
        self.controller = HorizontalPodAutoscalers(self.context.autoscaling)

    async def pod_metrics(self, of: Iterable[Pod]) -> list[PodMetrics]:
        names = [each.metadata.name for each in of]
        self.asked += names
        return [self.usage[name] for name in names if name in self.usage]

    async def put(self, *objects: Any) -> None:
        await self.store.write(*map(put, objects))

    def get(self, kind: type, name: str = "web") -> Any:
        return self.lister.get(kind, name, "red")

    @property
    def replicas(self) -> int:
        return int(self.get(Deployment).spec.replicas)

    def events(self) -> dict[str, int]:
        """Return how often each event happened, by reason."""
        return {event.reason: event.count for event in self.lister.list(Event)}

    async def one_pass(self, seconds: float = 0.0) -> list[Action]:
        """Let time pass, and run one pass."""
        self.now += datetime.timedelta(seconds=seconds)
        self.monotonic += seconds
        await self.controller.prepare(self.lister)
        actions = list(self.controller.reconcile(self.lister))
        changes = []
        for action in actions:
            if isinstance(action, Update):
                changes.append(put(action.object, int(action.before.metadata.resource_version)))
            elif isinstance(action, Create) and isinstance(action.object, Event):
                before = self.get(Event, action.object.metadata.name)
                changes.append(put(action.object if before is None else events.repeated(before, action.object)))
        await self.store.write(*changes)
        return actions

    async def evaluate(self) -> list[Action]:
        """Run passes until each autoscaler was evaluated once more."""
        actions = await self.one_pass(PERIOD)
        while self.controller.has_pending():
            actions += await self.one_pass()
        return actions


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    store = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    yield World(store)
    await store.close()


def reason(scaler: HorizontalPodAutoscaler, condition: str) -> str:
    return next((each.reason for each in scaler.status.conditions if each.type == condition), "")


# --- passes -----------------------------------------------------------------------------------------------------------


async def test_autoscaler_is_evaluated_once_in_a_period(world: World) -> None:
    await world.put(autoscaler(), deployment(2), *pods(2))
    world.usage = measured(900, 900)
    assert await world.one_pass() == []
    assert await world.one_pass(PERIOD - 1) == []
    assert world.asked == []
    assert len(await world.one_pass(1)) == 3  # the workload, the status and an event
    assert (world.replicas, world.get(Deployment).metadata.generation) == (4, 2)
    assert world.get(HorizontalPodAutoscaler).status.desired_replicas == 4
    assert await world.one_pass(PERIOD - 1) == []
    assert world.asked == ["p0", "p1"]
    await world.one_pass(1)
    assert world.asked == ["p0", "p1"] * 2


async def test_status_that_is_the_same_is_not_written_again(world: World) -> None:
    await world.put(autoscaler(), deployment(2), *pods(2))
    world.usage = measured(500, 500)
    await world.evaluate()
    assert len(await world.evaluate()) == 1  # the first one; each pass that finds an autoscaler begins its period
    assert await world.evaluate() == []


async def test_repeated_events_are_counted_and_limited(world: World) -> None:
    await world.put(autoscaler())
    await world.evaluate()
    for _ in range(40):
        await world.evaluate()
    assert world.events() == {"FailedGetScale": 26}  # 25 at once, and one in the 585 s in which it was evaluated


async def test_events_are_limited_by_tokens_that_come_back() -> None:
    tokens: EventTokens | None = EventTokens(at=0.0)
    for _ in range(EVENT_BURST):
        assert tokens is not None
        tokens = tokens.take(0.0)
    assert tokens is not None
    assert tokens.take(299.0) is None
    assert tokens.take(300.0) is not None
    assert tokens.take(-1000.0) is None


async def test_master_that_starts_again_removes_no_pod_at_once(world: World) -> None:
    await world.put(autoscaler(), deployment(4), *pods(4))
    world.usage = measured(100, 100, 100, 100)
    for _ in range(3):
        await world.evaluate()
    assert world.replicas == 4
    world.restart()
    await world.one_pass()
    for _ in range(20):  # 300 s
        await world.evaluate()
        assert world.replicas == 4
    await world.evaluate()
    await world.evaluate()
    assert world.replicas == 1


async def test_clock_that_steps_back_changes_nothing(world: World) -> None:
    await world.put(autoscaler(), deployment(2), *pods(2))
    world.usage = measured(500, 500)
    await world.evaluate()
    await world.evaluate()
    before = world.get(HorizontalPodAutoscaler)
    world.now -= datetime.timedelta(days=2)
    await world.evaluate()
    assert world.replicas == 2
    assert world.get(HorizontalPodAutoscaler).status == before.status


async def test_replaced_autoscaler_begins_anew(world: World) -> None:
    await world.put(autoscaler(), deployment(4), *pods(4))
    world.usage = measured(900, 900, 900, 900)
    await world.evaluate()
    await world.evaluate()
    assert world.replicas == 8
    old = world.get(HorizontalPodAutoscaler)
    await world.store.write(delete(old))
    await world.put(replace(autoscaler(), metadata=replace(old.metadata, uid="new")))
    world.usage = measured(*[100] * 4)
    await world.evaluate()
    assert await world.one_pass(PERIOD - 1) == []


async def test_controller_waits_for_time_only_if_there_is_an_autoscaler(world: World) -> None:
    assert not autoscalers_await_time(world.lister)
    await world.put(autoscaler())
    assert autoscalers_await_time(world.lister)


# --- targets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api_version", "kind", "error"),
    [
        ("apps/v1", "Deployment", 'deployments.apps "web" not found'),
        ("apps/v1beta1", "Deployment", 'deployments.apps "web" not found'),
        ("v1", "Deployment", 'no matches for kind "Deployment" in group ""'),
        ("", "Deployment", 'no matches for kind "Deployment" in group ""'),
        ("a/b/c", "Deployment", "unexpected GroupVersion string: a/b/c"),
        ("v1", "Pod", "the server could not find the requested resource"),
        ("v1", "Node", "the server could not find the requested resource"),
        ("example.com/v1", "Thing", 'no matches for kind "Thing" in group "example.com"'),
    ],
)
async def test_target_without_a_scale_is_reported(world: World, api_version: str, kind: str, error: str) -> None:
    reference = CrossVersionObjectReference(api_version=api_version, kind=kind, name="web")
    scaler = autoscaler()
    await world.put(replace(scaler, spec=replace(scaler.spec, scale_target_ref=reference)), pod("web"))
    await world.one_pass()
    await world.evaluate()
    (condition,) = world.get(HorizontalPodAutoscaler).status.conditions
    assert (condition.reason, condition.message) == (
        "FailedGetScale",
        f"the HPA controller was unable to get the target's current scale: {error}",
    )


@pytest.mark.parametrize("resource", [each for each in STORED if each.scale is not None], ids=lambda each: each.plural)
async def test_every_kind_with_a_scale_can_be_a_target(world: World, resource: Any) -> None:
    selector: Any = {"app": "web"}
    obj = resource.type(metadata=ObjectMeta(name="web", namespace="red", uid="uid-web", generation=1))
    if not isinstance(obj.spec.selector, dict) and resource.kind != "ReplicationController":
        selector = LabelSelector(match_labels=selector)
    await world.put(replace(obj, spec=replace(obj.spec, replicas=2, selector=selector)), *pods(2))
    scaler = autoscaler()
    reference = CrossVersionObjectReference(
        api_version=f"{resource.group}/v1" if resource.group else "v1", kind=resource.kind, name="web"
    )
    await world.put(replace(scaler, spec=replace(scaler.spec, scale_target_ref=reference)))
    world.usage = measured(900, 900)
    await world.one_pass()
    await world.evaluate()
    assert world.get(resource.type).spec.replicas == 4


async def test_two_autoscalers_of_one_workload_do_not_scale(world: World) -> None:
    await world.put(autoscaler(), autoscaler(name="other"), deployment(2), *pods(2))
    world.usage = measured(900, 900)
    await world.one_pass()
    await world.evaluate()
    assert world.replicas == 2
    assert {reason(world.get(HorizontalPodAutoscaler, name), "ScalingActive") for name in ("web", "other")} == {
        "AmbiguousSelector"
    }
    await world.store.write(delete(world.get(HorizontalPodAutoscaler, "other")))
    await world.evaluate()
    assert world.replicas == 4


async def test_two_autoscalers_that_correct_one_workload_do_so_one_after_the_other(world: World) -> None:
    """Neither asks for metrics, so nobody looks at selectors. Two writes of one object in a pass never succeed."""
    await world.put(autoscaler(minimum=5), autoscaler(name="other", maximum=2), deployment(3), *pods(3))
    await world.one_pass()
    for _ in range(4):
        actions = await world.evaluate()
        scaled = [each for each in actions if isinstance(each, Update) and isinstance(each.object, Deployment)]
        assert len(scaled) == 1
        await world.one_pass(1)


def test_selectors_that_select_the_same_pod_are_found_whatever_they_are() -> None:
    selectors = Selectors()
    web, db = pod("web", labels={"app": "web", "tier": "front"}), pod("db", labels={"app": "db"})
    selectors.put("red", "a", "app=web")
    assert selectors.selecting("red", "app=web", [web]) == ("a",)
    selectors.put("red", "b", "tier notin (back)")
    assert selectors.selecting("red", "app=web", [web]) == ("a", "b")
    selectors.put("red", "b", "tier=back")
    selectors.put("red", "c", "app=db")
    selectors.put("blue", "d", "app=web")
    assert selectors.selecting("red", "app=web", [web]) == ("a",)
    assert selectors.selecting("red", "app=db", [db]) == ("c",)
    assert selectors.selecting("red", "app=web", []) == ()
    selectors.put("red", "e", "app=web")
    assert selectors.selecting("red", "app=web", [web]) == ("a", "e")
    selectors.keep([("red", "a")])
    assert selectors.selecting("red", "app=web", [web]) == ("a",)


# --- hostile objects --------------------------------------------------------------------------------------------------


async def test_thousand_autoscalers_take_many_short_passes(world: World) -> None:
    await world.put(*(autoscaler(name=f"s{number}", maximum=10**9) for number in range(1000)), deployment(2), *pods(2))
    await world.put(autoscaler(name="mine", target="mine"), deployment(1, "mine", {"app": "mine"}))
    await world.put(pod("p7", labels={"app": "mine"}))
    world.usage = {
        **measured(0, 0),
        "p7": replace(measured(900)["p0"], metadata=ObjectMeta(name="p7", namespace="red")),
    }
    await world.one_pass()
    await world.one_pass(PERIOD)
    passes = 1
    while world.controller.has_pending():
        await world.one_pass()
        passes += 1
    assert passes >= 1001 * horizontal.AUTOSCALER_WORK // horizontal.MAX_WORK
    assert world.get(Deployment, "mine").spec.replicas == 2
    assert world.replicas == 2
    assert reason(world.get(HorizontalPodAutoscaler, "s999"), "ScalingActive") == "AmbiguousSelector"


async def test_autoscaler_that_raises_costs_the_others_nothing(world: World) -> None:
    """The runtime gets the error in each pass until it is gone, so that it logs it once."""
    target = MetricTarget(type="AverageValue", average_value="nonsense")
    metric = MetricSpec(type="Resource", resource=ResourceMetricSource(name="cpu", target=target))
    await world.put(autoscaler(metric, name="bad", target="bad"), deployment(1, "bad", {"app": "bad"}))
    await world.put(autoscaler(), deployment(2), *pods(2), pod("p9", labels={"app": "bad"}))
    world.usage = {
        **measured(900, 900),
        "p9": replace(measured(1)["p0"], metadata=ObjectMeta(name="p9", namespace="red")),
    }
    await world.one_pass()
    for seconds in (PERIOD, 1.0, PERIOD):
        failed = [action for action in await world.one_pass(seconds) if isinstance(action, Failed)]
        assert [action.object.metadata.name for action in failed] == ["bad"]
    assert world.replicas > 2
    await world.put(autoscaler(name="bad", target="bad"))
    assert not [action for action in await world.evaluate() if isinstance(action, Failed)]


# --- runtime ----------------------------------------------------------------------------------------------------------


async def test_runtime_scales_a_workload_by_its_usage(world: World) -> None:
    """All controllers run. Only the clock of the periods belongs to the test."""
    world.context = dataclasses.replace(world.context, clock=lambda: datetime.datetime.now(datetime.UTC))
    red = Namespace(metadata=ObjectMeta(name="red", uid="uid-red"))
    account = ServiceAccount(metadata=ObjectMeta(name="default", namespace="red", uid="uid-default"))
    await world.put(red, account, autoscaler(), deployment(2), *pods(2))
    world.usage = measured(900, 900)
    runtime = ControllerRuntime(world.context)
    running = asyncio.create_task(runtime.run())
    changed = asyncio.Event()
    end = world.store.watch(group_resource(HorizontalPodAutoscaler), lambda event: changed.set())
    try:
        async with asyncio.timeout(20):
            await runtime.started.wait()
            while not changed.is_set():
                world.monotonic += PERIOD
                runtime.wake(horizontal.CONTROLLER_NAME)
                await asyncio.sleep(0.02)
    finally:
        end()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert world.replicas == 4
    assert world.events()["SuccessfulRescale"] == 1
