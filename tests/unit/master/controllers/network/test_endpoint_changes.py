"""Endpoints after each change equal those of a full recomputation."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from api.core.endpoints import SERVICE_LABEL
from api.core.pod import Pod, PodStatus
from api.core.services import Service
from api.meta.types import Condition, Object
from api.validation.registry import decode, default
from master.controllers.actions import Create, ForceDelete
from master.controllers.network import endpoints
from master.controllers.network.endpoints import ENDPOINT_KINDS, EndpointQueue
from master.resources.scheme import BY_KIND, group_resource
from master.storage.interface import Key, Record, WatchEvent, with_revision
from tests.testbed.apiserver.changes import key_of
from tests.unit.master.action_lines import NOW
from tests.unit.master.examples import meta, pod


class ObjectStore:
    """A store of a few objects that sends change events, read through the interface of controllers."""

    now = NOW

    def __init__(self) -> None:
        self.objects: dict[Key, Any] = {}
        self.work = EndpointQueue()
        self.looked_for = 0
        self._number = 0

    def list_kind(self, kind: str) -> list[Any]:
        return [obj for obj in self.objects.values() if kind == obj.KIND]

    def get(self, kind: type[Object], name: str, namespace: str) -> Any:
        self.looked_for += 1
        return self.objects.get(Key(group_resource(kind), namespace, name))

    def put(self, obj: Object) -> None:
        self._number += 1
        if not obj.metadata.name:
            name = f"{obj.metadata.generate_name}{self._number:05d}"
            obj = replace(obj, metadata=replace(obj.metadata, name=name))
        obj = with_revision(default(obj, BY_KIND[obj.KIND].rules), self._number)
        self._notify("MODIFIED", obj)
        self.objects[key_of(obj)] = obj

    def drop(self, obj: Object) -> None:
        self._notify("DELETED", obj)
        del self.objects[key_of(obj)]

    def _notify(self, event: str, obj: Object) -> None:
        if obj.KIND in ENDPOINT_KINDS:
            key = key_of(obj)
            self.work.observe(WatchEvent(event, Record(key, self._number, b"", type(obj), obj), None))

    def settle(self) -> None:
        for _ in range(5):
            written = list(self.work.reconcile(self))  # type: ignore[arg-type]
            if not written:
                break
            for write in written:
                self.drop(write.object) if isinstance(write, ForceDelete) else self.put(write.object)  # type: ignore[union-attr]
        services, pods, known, slices = map(self.list_kind, ENDPOINT_KINDS)
        assert list(endpoints.reconcile(services, pods, known, slices, NOW)) == [], "a look at everything finds more"


def service(name: str, **selector: str) -> Service:
    result, problems, _ = decode(
        Service, {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], "selector": selector}}
    )
    assert result is not None, problems
    return replace(result, metadata=meta(name, namespace="red"))


def backend(number: int, ready: bool = True, **labels: str) -> Pod:
    made = pod(f"p{number}", node="node-1")
    condition = Condition(type="Ready", status=str(ready))
    status = PodStatus(phase="Running", pod_ip=f"10.128.0.{number}", conditions=(condition,))
    return replace(made, metadata=replace(made.metadata, labels=labels), status=status)


def ready_of(store: ObjectStore, name: str) -> set[str]:
    return {
        endpoint.addresses[0]
        for endpoint_slice in store.list_kind("EndpointSlice")
        if endpoint_slice.metadata.labels[SERVICE_LABEL] == name
        for endpoint in endpoint_slice.endpoints
        if endpoint.conditions.ready
    }


def test_endpoints_controller_processes_existing_objects_first() -> None:
    store = ObjectStore()
    store.put(service("web", app="web"))
    store.put(backend(1, app="web"))
    store.settle()
    assert ready_of(store, "web") == {"10.128.0.1"}


def test_pod_change_recomputes_only_its_services() -> None:
    store = ObjectStore()
    for number in range(50):
        store.put(service(f"s{number}", app=f"s{number}"))
        store.put(backend(number + 1, app=f"s{number}"))
    store.settle()
    store.looked_for = 0
    store.put(backend(7, ready=False, app="s6"))
    store.settle()
    assert ready_of(store, "s6") == set()
    assert store.looked_for < 20


def test_rejected_endpoints_write_is_retried() -> None:
    store = ObjectStore()
    store.put(service("web", app="web"))
    for _ in range(2):
        first, second = store.work.reconcile(store)  # type: ignore[arg-type]
        assert isinstance(first, Create)
        assert isinstance(second, Create)
    store.settle()


@pytest.mark.parametrize("seed", range(20))
def test_incremental_endpoints_equal_a_full_recompute(seed: int) -> None:
    chance, store = random.Random(seed), ObjectStore()
    for _ in range(60):
        name, value = f"s{chance.randrange(4)}", chance.choice("abc")
        there = [obj for kind in ENDPOINT_KINDS for obj in store.list_kind(kind)]
        what = chance.randrange(6)
        if what == 0:
            store.put(service(name, app=value))
        elif what == 1:
            store.put(service(name))
        elif what == 2 and there:
            store.drop(chance.choice(there))
        elif what == 3 and (slices := store.list_kind("EndpointSlice")):
            endpoint_slice = chance.choice(slices)
            store.put(
                replace(
                    endpoint_slice,
                    endpoints=(),
                    metadata=replace(endpoint_slice.metadata, labels={SERVICE_LABEL: name}),
                )
            )
        else:
            store.put(backend(chance.randrange(1, 9), chance.random() < 0.7, app=value, tier=chance.choice("xy")))
        if chance.random() < 0.5:
            store.settle()
    store.settle()
