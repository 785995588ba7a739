"""Stored objects that make the code of a controller raise: the other objects are reconciled, and the master starts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from api.core.events import Event
from api.core.node import Namespace, Node, NodeAddress
from api.core.pod import Container, Pod, PodSpec, ResourceRequirements
from api.core.services import Service, ServicePort, ServiceSpec
from api.core.storage import PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec
from api.meta.selectors import LabelSelector, LabelSelectorRequirement
from api.meta.types import Condition, Object, ObjectMeta
from api.network.types import HostSubnet
from master.allocators import ALLOCATOR_CURSORS, AllocatorCursor
from master.controllers import object_errors
from master.controllers.actions import Failed, isolate_errors
from master.controllers.object_errors import ObjectError
from master.controllers.runtime import ControllerRuntime
from master.resources.deployments import ReplicaSet, ReplicaSetSpec
from master.resources.pod_template import PodTemplateSpec
from master.resources.quotas import LimitRange, LimitRangeItem, LimitRangeSpec
from master.resources.rbac import AggregationRule, ClusterRole
from master.resources.scheme import BY_KIND, STORED_TYPES, group_resource
from master.storage.interface import Key, Put, Transaction
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import put
from tests.unit.master.controller_context import controller_context

SECONDS = 20.0
PORT = ServicePort(port=80, protocol="TCP", target_port=80)
UNKNOWN_OPERATOR = LabelSelector(match_expressions=(LabelSelectorRequirement(key="app", operator="Resembles"),))
WEB = LabelSelector(match_labels={"app": "web"})


def meta(name: str, namespace: str = "", **more: Any) -> ObjectMeta:
    times = {"creation_timestamp": "2026-01-01T00:00:00Z", "generation": 1}
    return ObjectMeta(**{"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}", **times, **more})


def replica_set(name: str, namespace: str, selector: LabelSelector = WEB) -> ReplicaSet:
    template = PodTemplateSpec(
        metadata=ObjectMeta(labels={"app": "web"}), spec=PodSpec(containers=(Container(name="c", image="i"),))
    )
    return ReplicaSet(
        metadata=meta(name, namespace), spec=ReplicaSetSpec(replicas=1, selector=selector, template=template)
    )


def node(name: str, address: str) -> Node:
    created = Node(metadata=meta(name))
    status = replace(
        created.status,
        addresses=(NodeAddress(type="InternalIP", address=address),),
        conditions=(Condition(type="Ready", status="True"),),
        allocatable={"cpu": "4", "memory": "4Gi", "pods": "10"},
    )
    return replace(created, status=status)


def pod(name: str, cpu: str, node_name: str = "") -> Pod:
    container = Container(name="c", image="i", resources=ResourceRequirements(requests={"cpu": cpu}))
    return Pod(metadata=meta(name, "red"), spec=PodSpec(containers=(container,), node_name=node_name))


def volume(name: str, size: str) -> PersistentVolume:
    return PersistentVolume(
        metadata=meta(name), spec=PersistentVolumeSpec(capacity={"storage": size}, access_modes=("ReadWriteOnce",))
    )


def claim(name: str) -> PersistentVolumeClaim:
    created = PersistentVolumeClaim(metadata=meta(name, "red"))
    requests = ResourceRequirements(requests={"storage": "1Gi"})
    return replace(created, spec=replace(created.spec, access_modes=("ReadWriteOnce",), resources=requests))


@asynccontextmanager
async def opened_storage(path: Path) -> AsyncIterator[SQLiteStorage]:
    storage = await SQLiteStorage.open(path / "store.db", {**STORED_TYPES, ALLOCATOR_CURSORS: AllocatorCursor})
    try:
        yield storage
    finally:
        await storage.close()


@asynccontextmanager
async def running_controllers(storage: SQLiteStorage) -> AsyncIterator[ControllerRuntime]:
    runtime = ControllerRuntime(controller_context(storage))
    running = asyncio.create_task(runtime.run())
    try:
        async with asyncio.timeout(SECONDS):
            await runtime.started.wait()
        yield runtime
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


def stored(storage: SQLiteStorage, kind: type[Object]) -> dict[str, Any]:
    return {record.key.name: record.object for record in storage.list(group_resource(kind))}


def failures(storage: SQLiteStorage) -> list[Event]:
    """Return the events about objects that cannot be reconciled."""
    return [event for event in stored(storage, Event).values() if event.reason == "ReconcileFailed"]


NAMESPACES = tuple(Namespace(metadata=meta(name)) for name in ("red", "blue"))


async def test_a_poisoned_replica_set_does_not_keep_others_from_getting_pods(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = replica_set("bad", "red", UNKNOWN_OPERATOR)
    async with opened_storage(tmp_path) as storage:
        await storage.write(*map(put, (*NAMESPACES, bad, replica_set("good", "red"))))
        async with running_controllers(storage):
            await until(lambda: len(stored(storage, Pod)) == 1)
            (created,) = stored(storage, Pod).values()
            assert created.metadata.owner_references[0].name == "good"
            (record,) = [entry for entry in caplog.records if getattr(entry, "object", "") == "ReplicaSet red/bad"]
            assert (record.levelno, record.exc_info is not None) == (logging.ERROR, True)
            await until(lambda: bool(failures(storage)))
            caplog.set_level(logging.INFO)
            await storage.write(put(replica_set("bad", "red")))
            await until(lambda: "object reconciled again" in caplog.text)
            await until(lambda: len(stored(storage, Pod)) == 2)
            (event,) = failures(storage)
            assert (event.involved_object.kind, event.involved_object.name) == ("ReplicaSet", "bad")
            assert event.reporting_component == "replicaset-controller"
            assert "Resembles" not in event.message, "the error may name objects of others"


async def test_a_pod_that_admission_cannot_check_does_not_keep_others_from_being_created(tmp_path: Path) -> None:
    limit = LimitRangeItem(type="Container", default_request={"cpu": "nonsense"}, default={"cpu": "nonsense"})
    limits = LimitRange(metadata=meta("limits", "red"), spec=LimitRangeSpec(limits=(limit,)))
    async with opened_storage(tmp_path) as storage:
        await storage.write(*map(put, (*NAMESPACES, limits, replica_set("a", "red"), replica_set("b", "blue"))))
        async with running_controllers(storage):
            await until(lambda: bool(stored(storage, Pod)))
            assert {created.metadata.namespace for created in stored(storage, Pod).values()} == {"blue"}


async def test_nodes_get_subnets_although_a_stored_subnet_cannot_be_read(tmp_path: Path) -> None:
    bad = HostSubnet(metadata=meta("n1"), host="n1", host_ip="10.0.0.1", subnet="10.128.0.0/not-a-length")
    async with opened_storage(tmp_path) as storage:
        await storage.write(*map(put, (bad, node("n1", "10.0.0.1"), node("n2", "10.0.0.2"))))
        async with running_controllers(storage):
            await until(lambda: "n2" in stored(storage, HostSubnet))
    async with opened_storage(tmp_path) as storage, running_controllers(storage):  # after a restart
        await storage.write(put(node("n3", "10.0.0.3")))
        await until(lambda: "n3" in stored(storage, HostSubnet))


async def test_services_get_addresses_although_a_stored_address_cannot_be_read(tmp_path: Path) -> None:
    def service(name: str, **spec: Any) -> Service:
        spec = {"ports": (PORT,), "type": "ClusterIP", **spec}
        return Service(metadata=ObjectMeta(name=name, namespace="red"), spec=ServiceSpec(**spec))

    async with opened_storage(tmp_path) as storage:
        await storage.write(*map(put, (*NAMESPACES, service("bad", cluster_ip="nonsense", cluster_ips=("nonsense",)))))
        async with running_controllers(storage):
            creation = controller_context(storage).creation
            created = creation.create(BY_KIND["Service"], service("good"), Transaction(storage), is_trusted=True)
        assert created.spec.cluster_ip.startswith("172.30.")


async def test_default_roles_are_aggregated_although_a_stored_role_cannot_be_read(tmp_path: Path) -> None:
    rule = AggregationRule(cluster_role_selectors=(UNKNOWN_OPERATOR,))
    bad = ClusterRole(metadata=meta("bad"), aggregation_rule=rule)
    async with opened_storage(tmp_path) as storage:
        await storage.write(put(bad))
        async with running_controllers(storage):
            assert stored(storage, ClusterRole)["view"].rules


async def test_pods_are_scheduled_although_a_placed_pod_and_a_waiting_pod_cannot_be_read(tmp_path: Path) -> None:
    pods = (pod("placed", "nonsense", "n1"), pod("bad", "nonsense"), pod("good", "1"))
    async with opened_storage(tmp_path) as storage:
        await storage.write(*map(put, (*NAMESPACES, node("n1", "10.0.0.1"), *pods)))
        async with running_controllers(storage):
            await until(lambda: stored(storage, Pod)["good"].spec.node_name == "n1")
            assert not stored(storage, Pod)["bad"].spec.node_name


async def test_claims_are_bound_although_the_size_of_a_volume_cannot_be_read(tmp_path: Path) -> None:
    async with opened_storage(tmp_path) as storage:
        await storage.write(*map(put, (*NAMESPACES, volume("bad", "nonsense"), volume("good", "2Gi"), claim("data"))))
        async with running_controllers(storage):
            await until(lambda: stored(storage, PersistentVolumeClaim)["data"].spec.volume_name == "good")


class OlderClusterRole(Object, frozen=True):
    """A ClusterRole of an imagined earlier version, in which the rules were a text."""

    API_VERSION = ClusterRole.API_VERSION
    KIND = ClusterRole.KIND
    rules: str = ""


async def test_controllers_start_although_a_stored_role_cannot_be_decoded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened_storage(tmp_path) as storage:
        old = OlderClusterRole(metadata=meta("old"), rules="all")
        await storage.write(Put(Key.of(group_resource(ClusterRole), old), old))
    async with opened_storage(tmp_path) as storage, running_controllers(storage):
        assert "clusterroles.rbac.authorization.k8s.io old cannot be decoded: Expected `array`" in caplog.text
        await until(lambda: caplog.text.count("pass failed") > 1)
        failing = [entry.component for entry in caplog.records if hasattr(entry, "component")]
        assert len(failing) == len(set(failing)), "each controller logs the traceback once"


def test_an_error_of_one_object_replaces_all_its_results_only() -> None:
    def results(obj: Object) -> list[str]:
        if obj.metadata.name == "b":
            raise ValueError("poisoned")
        return [obj.metadata.name] * 2

    first, second, failed, *others = isolate_errors([Namespace(metadata=meta(name)) for name in "abc"], results)
    assert (first, second, others) == ("a", "a", ["c", "c"])
    assert isinstance(failed, Failed)
    assert (failed.object.metadata.name, str(failed.error)) == ("b", "poisoned")


def test_the_back_off_of_a_failing_object_doubles_with_each_retry_only() -> None:
    errors = {"Pod red/a": ValueError("poisoned")}
    first = object_errors.after_pass({}, errors, 100.0)
    assert first == {"Pod red/a": ObjectError("ValueError: poisoned", 1, 101.0)}
    assert object_errors.after_pass(first, errors, 100.5) == first
    second = object_errors.after_pass(first, errors, 101.0)
    assert second == {"Pod red/a": ObjectError("ValueError: poisoned", 2, 103.0)}
    other = object_errors.after_pass(second, {"Pod red/a": KeyError("b")}, 101.5)
    assert other["Pod red/a"].failures == 1
    assert object_errors.after_pass(second, {}, 102.0) == {}
