"""The controller of HorizontalPodAutoscalers.

An autoscaler is evaluated once in a period. Before a pass, `prepare` chooses those that are due, as many as belong in
one pass, and reads their metrics. The pass itself decides on the newest objects. After a start, and for a new
autoscaler, the first period begins, as in Kubernetes.
"""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import msgspec

from api.core.events import object_reference
from api.core.pod import Pod
from api.meta.selectors import BadSelector, Requirement, Selector, parse_label_selector
from master import errors
from master.config import AutoscalingConfig
from master.controllers import events
from master.controllers.actions import Action, Create, Failed, Update, WriteAction, isolate_errors
from master.controllers.autoscaling import decisions
from master.controllers.autoscaling.decisions import Clocks, Measurements, NoTarget, Report, Target
from master.controllers.autoscaling.metric_queries import Answer, MetricQuery
from master.controllers.autoscaling.metrics_client import ask
from master.controllers.autoscaling.replica_calculator import MetricError
from master.controllers.autoscaling.scaling_rules import History
from master.controllers.context import Lister
from master.resources.autoscaling import HorizontalPodAutoscaler
from master.resources.metrics import PodMetrics
from master.resources.resource import AnyResource
from master.resources.scheme import find_kind

CONTROLLER_NAME = "horizontal-pod-autoscaler-controller"
COMPONENT = "horizontal-pod-autoscaler"
"""The source of events, as in Kubernetes."""

CHECK_SECONDS = 1.0
"""Resync while there are autoscalers: how exactly their periods are kept."""

MAX_WORK, AUTOSCALER_WORK = 10_000, 100
"""Pods and metrics that one pass evaluates, and what each autoscaler counts in addition: some 30 ms."""

PODS_PER_WORK = 10
"""Pods of a namespace whose label is looked at for the work of one that is evaluated."""

MAX_COMPARISONS = 20_000
"""Comparisons of labels with the selectors of other autoscalers, for one autoscaler."""

PAUSE_FACTOR = 4
"""While more autoscalers are due, the next pass waits this many times as long as the last one took."""

EVENT_BURST, EVENT_REFILL_SECONDS = 25, 300.0
"""Events of one autoscaler at once, and seconds after which there is another one: client-go's spam filter."""


# --- target -----------------------------------------------------------------------------------------------------------


def find_target(autoscaler: HorizontalPodAutoscaler, lister: Lister) -> tuple[AnyResource, Any] | NoTarget:
    """Return the workload that an autoscaler scales, with its resource."""
    reference = autoscaler.spec.scale_target_ref
    if reference.api_version.count("/") > 1:
        return NoTarget(f"unexpected GroupVersion string: {reference.api_version}")
    group = reference.api_version.rpartition("/")[0]
    resource = find_kind(group, reference.kind)
    if resource is None:
        return NoTarget(f'no matches for kind "{reference.kind}" in group "{group}"')
    if resource.scale is None or not resource.namespaced:
        return NoTarget("the server could not find the requested resource")
    obj = lister.get(resource.type, reference.name, autoscaler.metadata.namespace)
    if obj is None:
        return NoTarget(errors.not_found(resource, reference.name).status.message)
    return resource, obj


class PodIndex:
    """The pods of namespaces by label key and value, and by selector, read when they are needed.

    `work` is the number of pods that were read.
    """

    def __init__(self, lister: Lister) -> None:
        self._lister = lister
        self._by_key: dict[tuple[str, str], dict[str, list[Pod]]] = {}
        self._selected: dict[tuple[str, str], tuple[Pod, ...]] = {}
        self.work = 0

    def select(self, namespace: str, text: str) -> tuple[Pod, ...]:
        """Return the pods that a selector selects. Raises BadSelector."""
        key = (namespace, text)
        if key not in self._selected:
            selector = _parsed(text)
            candidates = self._candidates(namespace, _required_pair(selector))
            self._selected[key] = tuple(pod for pod in candidates if selector.matches(pod.metadata.labels))
            self.work += len(candidates)
        return self._selected[key]

    def _candidates(self, namespace: str, pair: tuple[str, str] | None) -> Sequence[Pod]:
        if pair is None:
            return self._lister.list(Pod, namespace)
        key, value = pair
        if (namespace, key) not in self._by_key:
            by_value = self._by_key[namespace, key] = defaultdict(list)
            pods = self._lister.list(Pod, namespace)
            self.work += len(pods) // PODS_PER_WORK
            for pod in pods:
                if key in pod.metadata.labels:
                    by_value[pod.metadata.labels[key]].append(pod)
        return self._by_key[namespace, key].get(value, ())


def _required_pair(selector: Selector) -> tuple[str, str] | None:
    """Return a label that every selected object has; None if the selector requires none."""
    pairs = (_pair(requirement) for requirement in selector.requirements)
    return next((pair for pair in pairs if pair is not None), None)


def _pair(requirement: Requirement) -> tuple[str, str] | None:
    if requirement.operator != "in" or len(requirement.values) != 1:
        return None
    return requirement.key, next(iter(requirement.values))


class Selectors:
    """The selectors of the targets of autoscalers, as of their last evaluation."""

    def __init__(self) -> None:
        self._selectors: dict[tuple[str, str], str] = {}
        """By namespace and name of the autoscaler."""
        self._names: dict[tuple[str, str], set[str]] = {}
        """The names of autoscalers, by namespace and selector."""
        self._by_pair: dict[tuple[str, tuple[str, str] | None], set[str]] = {}
        """Selectors, by namespace and a label that they require, or None."""

    def put(self, namespace: str, name: str, selector: str) -> None:
        """Set the selector of an autoscaler, which must be valid; empty if it has none."""
        before = self._selectors.get((namespace, name), "")
        if selector == before:
            return
        if before:
            del self._selectors[namespace, name]
            pair = (namespace, _required_pair(_parsed(before)))
            if _discard(self._names, (namespace, before), name):
                _discard(self._by_pair, pair, before)
        if selector:
            self._selectors[namespace, name] = selector
            self._names.setdefault((namespace, selector), set()).add(name)
            self._by_pair.setdefault((namespace, _required_pair(_parsed(selector))), set()).add(selector)

    def keep(self, autoscalers: Iterable[tuple[str, str]]) -> None:
        """Forget the selectors of all other autoscalers."""
        for namespace, name in self._selectors.keys() - set(autoscalers):
            self.put(namespace, name, "")

    def selecting(self, namespace: str, selector: str, pods: Sequence[Pod]) -> tuple[str, ...]:
        """Return the autoscalers whose selectors select one of the pods of a selector.

        After MAX_COMPARISONS the autoscalers of all selectors that were not compared are among them: whether their pods
        are other ones is not known then, and nothing is scaled.
        """
        names = set(self._names.get((namespace, selector), ())) if pods else set()
        if len(names) > 1:
            return tuple(sorted(names))
        labels = {frozenset(pod.metadata.labels.items()): pod.metadata.labels for pod in pods}
        pairs = {None, *(pair for each in labels for pair in each)} if labels else set()
        others = {text for pair in pairs for text in self._by_pair.get((namespace, pair), ())} - {selector}
        comparisons = 0
        for text in others:
            comparisons += len(labels)
            if comparisons > MAX_COMPARISONS or any(_parsed(text).matches(each) for each in labels.values()):
                names |= self._names[namespace, text]
        return tuple(sorted(names))


K = TypeVar("K")


def _discard(sets: dict[K, set[str]], key: K, item: str) -> bool:
    """Discard an item of one of several sets. Return whether the set was its last item's, and is gone."""
    sets[key].discard(item)
    if sets[key]:
        return False
    del sets[key]
    return True


@functools.lru_cache(maxsize=2048)
def _parsed(text: str) -> Selector:
    """Return a selector. Raises BadSelector."""
    return parse_label_selector(text)


# --- state between passes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EventTokens:
    """How many events an autoscaler may still report, as of a time (seconds of a monotonic clock)."""

    left: float = EVENT_BURST
    at: float = 0.0

    def take(self, monotonic: float) -> EventTokens | None:
        """Return the tokens after an event; None if there may be none."""
        left = min(float(EVENT_BURST), self.left + max(0.0, monotonic - self.at) / EVENT_REFILL_SECONDS)
        return EventTokens(left - 1, monotonic) if left >= 1 else None


@dataclass(frozen=True, slots=True)
class State:
    """What is kept of an autoscaler between passes. `due` is the time of its next evaluation."""

    due: float
    history: History = field(default_factory=History)
    tokens: EventTokens = field(default_factory=EventTokens)


NO_PODS = Target(0, 0, "")


@dataclass(frozen=True, slots=True)
class Chosen:
    """An autoscaler that the next pass evaluates: its target, what to ask about its metrics, and the answers."""

    autoscaler: HorizontalPodAutoscaler
    target: Target = NO_PODS
    queries: tuple[MetricQuery, ...] = ()
    measured: Measurements = field(default_factory=Measurements)


class HorizontalPodAutoscalers:
    """The controller of HorizontalPodAutoscalers. It keeps their histories between passes."""

    def __init__(self, config: AutoscalingConfig) -> None:
        self._config = config
        self._states: dict[str, State] = {}
        """By uid."""
        self._selectors = Selectors()
        self._chosen: tuple[Chosen, ...] = ()
        self._failures: dict[str, Failed] = {}
        """Unexpected errors of the last evaluations, by uid. The runtime gets them in each pass while they last."""
        self._has_more = False
        self._pass_seconds = 0.0

    def has_pending(self) -> bool:
        """Return whether more autoscalers are due than one pass evaluates."""
        return self._has_more

    async def prepare(self, lister: Lister) -> None:
        """Choose the autoscalers that are due, and read their metrics."""
        if self._has_more:
            await asyncio.sleep(self._pass_seconds * PAUSE_FACTOR)
        self._chosen = ()
        begin = lister.context.monotonic()
        due = self._due(lister)
        chosen = self._choose(due, lister)
        self._has_more = len(chosen) < len(due)
        self._pass_seconds = lister.context.monotonic() - begin
        pods = {pod.metadata.uid: pod for each in chosen if _reads_usage(each) for pod in each.target.pods}
        measured = await lister.context.pod_metrics.pod_metrics(pods.values()) if pods else ()
        usage = {(metrics.metadata.namespace, metrics.metadata.name): metrics for metrics in measured}
        queries = tuple(query for each in chosen for query in each.queries)
        answers = await ask(queries, lister.context.extension_apis, lister.now) if queries else {}
        self._chosen = tuple(replace(each, measured=_measurements(each, usage, answers)) for each in chosen)

    def _due(self, lister: Lister) -> list[HorizontalPodAutoscaler]:
        """Return the autoscalers that are due, the longest waiting first. The state of deleted ones is dropped."""
        autoscalers = {obj.metadata.uid: obj for obj in lister.list(HorizontalPodAutoscaler)}
        monotonic = lister.context.monotonic()
        first = State(monotonic + self._config.sync_period)
        self._states = {uid: self._states.get(uid, first) for uid in autoscalers}
        self._failures = {uid: failed for uid, failed in self._failures.items() if uid in autoscalers}
        self._selectors.keep((obj.metadata.namespace, obj.metadata.name) for obj in autoscalers.values())
        due = [uid for uid, state in self._states.items() if state.due <= monotonic]
        return [autoscalers[uid] for uid in sorted(due, key=lambda uid: self._states[uid].due)]

    def _choose(self, due: Iterable[HorizontalPodAutoscaler], lister: Lister) -> list[Chosen]:
        """Return the first autoscalers, as many as belong in one pass."""
        index, work = PodIndex(lister), 0
        chosen: list[Chosen] = []
        for autoscaler in due:
            if work + index.work >= MAX_WORK:
                break
            # An autoscaler that raises here raises in the pass, too, which reports it.
            read = tuple(isolate_errors((autoscaler,), partial(_read, index=index, lister=lister)))
            choice = read[0] if isinstance(read[0], Chosen) else Chosen(autoscaler)
            meta, target = autoscaler.metadata, choice.target
            self._selectors.put(meta.namespace, meta.name, "" if target.selector_error else target.selector)
            work += AUTOSCALER_WORK + len(target.pods)
            chosen.append(choice)
        return [self._with_autoscalers(each) for each in chosen]

    def _with_autoscalers(self, chosen: Chosen) -> Chosen:
        """Return a choice with the autoscalers that select its pods. If there are several, nothing is asked."""
        target = chosen.target
        if not target.pods:
            return chosen
        selecting = self._selectors.selecting(chosen.autoscaler.metadata.namespace, target.selector, target.pods)
        queries = chosen.queries if len(selecting) == 1 else ()
        return replace(chosen, target=replace(target, autoscalers=selecting), queries=queries)

    def reconcile(self, lister: Lister) -> Iterator[Action]:
        """Yield the writes of the prepared autoscalers."""
        begin = lister.context.monotonic()
        prepared, self._chosen = self._chosen, ()
        scaled = set[str]()
        for chosen in prepared:
            meta = chosen.autoscaler.metadata
            newest = lister.get(HorizontalPodAutoscaler, meta.name, meta.namespace)
            if newest is None or newest.metadata.uid != meta.uid:
                continue
            self._failures.pop(meta.uid, None)
            for action in isolate_errors((newest,), partial(self._sync, chosen=chosen, scaled=scaled, lister=lister)):
                if isinstance(action, Failed):
                    self._failures[meta.uid] = action
                    state = self._states[meta.uid]
                    self._states[meta.uid] = replace(state, due=self._next(state, lister.context.monotonic()))
                else:
                    yield action
        yield from self._failures.values()
        self._pass_seconds += lister.context.monotonic() - begin

    def _next(self, state: State, monotonic: float) -> float:
        """Return the time of the next evaluation: a period after the last one should have been."""
        period = self._config.sync_period
        return state.due + period if state.due + period > monotonic else monotonic + period

    def _sync(
        self, autoscaler: HorizontalPodAutoscaler, chosen: Chosen, scaled: set[str], lister: Lister
    ) -> Iterator[WriteAction]:
        """Yield the writes of one autoscaler. `scaled` are the uids of the workloads that this pass has scaled.

        The scale is the newest. If it selects other pods than those that were measured, the autoscaler stays due.
        """
        meta, clocks = autoscaler.metadata, Clocks(lister.now, lister.context.monotonic())
        found = find_target(autoscaler, lister)
        target: Target | NoTarget
        if isinstance(found, NoTarget):
            target = found
        else:
            target = with_newest_scale(chosen.target, *found)
            if (target.selector, bool(target.replicas)) != (chosen.target.selector, bool(chosen.target.replicas)):
                return
        state = self._states[meta.uid]
        decision = decisions.decide(autoscaler, target, chosen.measured, state.history, self._config, clocks)
        if decision.replicas is not None and not isinstance(found, NoTarget):
            resource, obj = found
            if obj.metadata.uid in scaled:
                return  # Another autoscaler was first. This one stays due, and decides on what the other one wrote.
            scaled.add(obj.metadata.uid)
            yield Update(with_replicas(resource, obj, decision.replicas), obj)
        tokens = state.tokens
        for report in decision.reports:
            after = tokens.take(clocks.monotonic)
            if after is not None:
                tokens = after
                yield event(autoscaler, report, lister)
        self._states[meta.uid] = State(self._next(state, clocks.monotonic), decision.history, tokens)
        if decision.status != autoscaler.status:
            yield Update(msgspec.structs.replace(autoscaler, status=decision.status), autoscaler)


def _read(autoscaler: HorizontalPodAutoscaler, index: PodIndex, lister: Lister) -> Iterator[Chosen]:
    """Yield an autoscaler with the pods of its target and its queries."""
    found = find_target(autoscaler, lister)
    if isinstance(found, NoTarget):
        yield Chosen(autoscaler)
        return
    target = with_newest_scale(NO_PODS, *found)
    if not target.selector or not target.replicas:
        yield Chosen(autoscaler, target)
        return
    try:
        pods = index.select(autoscaler.metadata.namespace, target.selector)
    except BadSelector as error:
        yield Chosen(autoscaler, replace(target, selector_error=str(error)))
        return
    yield Chosen(autoscaler, replace(target, pods=pods), decisions.queries_of(autoscaler, target.selector))


def _measurements(
    chosen: Chosen, usage: Mapping[tuple[str, str], PodMetrics], answers: Mapping[MetricQuery, Answer]
) -> Measurements:
    """Return what was measured for one autoscaler."""
    namespace = chosen.autoscaler.metadata.namespace
    names = (pod.metadata.name for pod in chosen.target.pods) if _reads_usage(chosen) else ()
    return Measurements(
        {name: usage[namespace, name] for name in names if (namespace, name) in usage},
        {query: answers[query] for query in chosen.queries},
    )


def with_newest_scale(target: Target, resource: AnyResource, obj: Any) -> Target:
    """Return a target with the scale of its workload."""
    scale = resource.scale
    assert scale is not None
    return replace(
        target, replicas=scale.replicas(obj), status_replicas=scale.status_replicas(obj), selector=scale.selector(obj)
    )


def with_replicas(resource: AnyResource, obj: Any, replicas: int) -> Any:
    """Return a workload with another number of pods, and the next generation if its kind has generations."""
    assert resource.scale is not None
    scaled = resource.scale.with_replicas(obj, replicas)
    generation = obj.metadata.generation + (resource.spec is not None)
    return msgspec.structs.replace(scaled, metadata=msgspec.structs.replace(scaled.metadata, generation=generation))


def event(autoscaler: HorizontalPodAutoscaler, report: Report, lister: Lister) -> Create:
    """Return the event of an autoscaler."""
    subject = object_reference(autoscaler)
    return Create(events.countable_event(subject, report.type, report.reason, report.message, COMPONENT, lister.now))


def _reads_usage(chosen: Chosen) -> bool:
    """Return whether an autoscaler needs the usage of its pods, and may read it."""
    metrics = chosen.autoscaler.spec.metrics
    if len(chosen.target.autoscalers) != 1 or not any(each.resource or each.container_resource for each in metrics):
        return False
    try:
        decisions.check_readings(chosen.autoscaler, chosen.target.pods)
    except MetricError:
        return False  # The pass reports it.
    return True


def autoscalers_await_time(lister: Lister) -> bool:
    """Return whether there is an autoscaler."""
    return bool(lister.list(HorizontalPodAutoscaler))
