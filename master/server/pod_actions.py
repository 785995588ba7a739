"""What is asked of a pod beside its own fields: binding and eviction."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import msgspec

from api.core.node import Binding
from api.core.pod import Pod
from master.admission import evictions
from master.kinds.pod import POD
from master.kinds.pod_disruption_budget import PodDisruptionBudget
from master.store.records import Key, Put, Record, Remove
from master.store.store import Store
from master.wire import answers, request
from master.wire.ask import Answer, Ask
from master.writing import writes


class PodActions:
    """Raises `answers.Failure`, and NotReady when the store refuses."""

    def __init__(self, store: Store, clock: Callable[[], datetime.datetime]) -> None:
        self._store = store
        self._clock = clock

    async def bind(self, ask: Ask) -> Answer:
        """POST pods/NAME/binding, and POST bindings, where only the body names the pod."""
        try:
            binding = msgspec.convert(ask.document, Binding)
        except msgspec.ValidationError as error:
            raise answers.bad_request(f"the body is not a Binding: {error}") from error
        old = self._old(ask.where.namespace, ask.where.name or binding.metadata.name)
        pod = writes.bound(POD, old.object, binding, self._clock())
        if not request.dry_run(ask.query):
            await self._store.write(Put(pod, expect=old.revision))
        return Answer(201, answers.encode(answers.success(code=201)))

    async def evict(self, ask: Ask) -> Answer:
        """POST pods/NAME/eviction. The budget is drawn on in the write that ends the pod."""
        now, old = self._clock(), self._old(ask.where.namespace, ask.where.name)
        options = evictions.read(ask.where.name, ask.document).delete_options or writes.DeleteOptions()
        pod: Pod = old.object
        writes.check_preconditions(POD, pod, options)
        budgets = (r.object for r in self._store.scan_latest(PodDisruptionBudget.KIND, pod.metadata.namespace))
        budget = evictions.drawn_on(pod, budgets, now)
        left = self._ended(evictions.marked(pod, now), options, now)
        if not (request.dry_run(ask.query) or options.dry_run):
            spent = [] if budget is None else [Put(budget, expect=int(budget.metadata.resource_version))]
            end = Remove(pod, expect=old.revision) if left is None else Put(left, expect=old.revision)
            await self._store.write(end, *spent)
        return Answer(201, answers.encode(answers.success(code=201)))

    def _ended(self, pod: Pod, options: writes.DeleteOptions, now: datetime.datetime) -> Any:
        node = self._store.latest(Key("Node", "", pod.spec.node_name)) if pod.spec.node_name else None
        return writes.deleted(POD, pod, options, now, None if node is None else node.object)

    def _old(self, namespace: str, name: str) -> Record:
        record = self._store.latest(Key(Pod.KIND, namespace, name))
        if record is None:
            raise answers.not_found(POD, name)
        return record
