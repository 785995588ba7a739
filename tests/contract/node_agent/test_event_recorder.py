"""Events of the node agent, sent to a real master."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from api.client.bootstrap import node_kubeconfig
from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from api.core.config import ConfigMap
from api.core.events import Event
from api.core.node import Namespace
from api.core.pod import Container, Pod, PodSpec
from api.meta.types import ObjectMeta
from node_agent import event_recorder
from node_agent.event_recorder import EventRecorder
from tests.testbed.apiserver.process import ApiServer

SECONDS = 20.0
MAX_PENDING = 50
"""In place of 1,000, which takes 20 seconds on a busy machine."""
POD = Pod(
    metadata=ObjectMeta(name="web", namespace="red", uid="u-1"),
    spec=PodSpec(containers=(Container(name="main", image="i"),)),
)


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        self.now += timedelta(microseconds=1)
        return self.now


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    api_server = ApiServer(tmp_path)
    api_server.start()
    yield api_server
    api_server.stop()


@pytest.fixture
async def admin(server: ApiServer) -> AsyncIterator[Client]:
    async with Client(Kubeconfig.load(server.kubeconfig)) as client:
        await client.create(Namespace(metadata=ObjectMeta(name="red")))
        yield client


@pytest.fixture
async def node(server: ApiServer, admin: Client, tmp_path: Path) -> AsyncIterator[Client]:
    path = tmp_path / "node"
    path.write_text(await node_kubeconfig(admin, Kubeconfig.load(server.kubeconfig), "n1"))
    async with Client(Kubeconfig.load(path)) as client:
        yield client


@asynccontextmanager
async def running(recorder: EventRecorder) -> AsyncIterator[None]:
    task = asyncio.create_task(recorder.loop.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def events(admin: Client, holds: Callable[[list[Event]], bool], namespace: str = "red") -> list[Event]:
    """Wait until the events of a namespace are as expected, and return them, oldest first."""
    recorded: list[Event] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SECONDS):
            while not holds(recorded):
                await asyncio.sleep(0.02)
                recorded = sorted((await admin.list(Event, namespace)).items, key=lambda event: event.metadata.name)
    assert holds(recorded), [(event.reason, event.message, event.count) for event in recorded]
    return recorded


async def test_repeated_events_are_counted_in_one_event(admin: Client, node: Client) -> None:
    recorder = EventRecorder(node, "n1", Clock())
    recorder.pod_event(POD, "BackOff", "waits", "main")
    recorder.pod_event(POD, "BackOff", "waits", "main")
    async with running(recorder):
        (first,) = await events(admin, lambda recorded: [event.count for event in recorded] == [2])
        recorder.pod_event(POD, "BackOff", "waits", "main")
        recorder.pod_event(POD, "Started", "runs", "main")
        recorded = await events(admin, lambda recorded: [event.count for event in recorded] == [3, 1])
    assert recorded[0].metadata.uid == first.metadata.uid
    assert (first.type, first.source.host, first.involved_object.field_path) == (
        "Warning",
        "n1",
        "spec.containers{main}",
    )


async def test_deleted_event_is_created_again(admin: Client, node: Client) -> None:
    recorder = EventRecorder(node, "n1", Clock())
    async with running(recorder):
        recorder.pod_event(POD, "Killing", "stops", "main")
        (first,) = await events(admin, lambda recorded: len(recorded) == 1)
        await admin.delete(Event, first.metadata.name, "red")
        recorder.pod_event(POD, "Killing", "stops", "main")
        (second,) = await events(admin, lambda recorded: len(recorded) == 1)
    assert (second.count, second.metadata.uid != first.metadata.uid) == (2, True)


async def test_newest_events_are_sent_once_the_master_returns(
    server: ApiServer, admin: Client, node: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_recorder, "MAX_PENDING", MAX_PENDING)
    recorder = EventRecorder(node, "n1", Clock())
    server.stop()
    async with running(recorder):
        for number in range(MAX_PENDING + 5):
            pod = replace(POD, metadata=replace(POD.metadata, uid=f"u-{number}", name=f"p-{number}"))
            recorder.pod_event(pod, "Started", "runs", "main")
        assert recorder.dropped == 5
        server.start()
        recorded = await events(admin, lambda recorded: len(recorded) == MAX_PENDING)
    names = {event.involved_object.name for event in recorded}
    assert "p-4" not in names
    assert {"p-5", f"p-{MAX_PENDING + 4}"} <= names


async def test_rejected_event_delays_no_other(admin: Client, node: Client) -> None:
    recorder = EventRecorder(node, "n1", Clock())
    async with running(recorder):
        lost = replace(POD, metadata=replace(POD.metadata, namespace="nowhere", uid="u-2"))
        recorder.pod_event(lost, "Started", "runs", "main")
        recorder.pod_event(POD, "Started", "runs", "main")
        await events(admin, lambda recorded: [event.reason for event in recorded] == ["Started"])


async def test_refused_event_is_a_warning_unless_its_namespace_is_gone_or_ends(
    admin: Client, node: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger=event_recorder.__name__)
    finalized = ObjectMeta(name="keeper", namespace="ending", finalizers=("test/keeps",))
    await admin.create(Namespace(metadata=ObjectMeta(name="ending")))
    await admin.create(ConfigMap(metadata=finalized))
    await admin.delete(Namespace, "ending")
    recorder = EventRecorder(node, "n1", Clock())
    async with running(recorder):
        for namespace in ("ending", "nowhere"):
            lost = replace(POD, metadata=replace(POD.metadata, namespace=namespace, uid=namespace))
            recorder.pod_event(lost, "Started", "runs", "main")
        invalid = replace(POD, metadata=replace(POD.metadata, name="No Name", uid="u-3"))
        recorder.pod_event(invalid, "Failed", "runs", "main")
        recorder.pod_event(POD, "Started", "runs", "main")
        await events(admin, lambda recorded: [event.reason for event in recorded] == ["Started"])
    refused = [
        (record.levelname, record.__dict__["reason"]) for record in caplog.records if "refused" in record.message
    ]
    assert refused == [("DEBUG", "Started"), ("DEBUG", "Started"), ("WARNING", "Failed")]


async def test_events_of_one_object_are_rate_limited(admin: Client, node: Client) -> None:
    recorder = EventRecorder(node, "n1", Clock())
    async with running(recorder):
        for number in range(100):
            recorder.pod_event(POD, "Failed", f"for another reason {number}", "main")
        recorded = await events(admin, lambda recorded: sum(event.count for event in recorded) == 25)
    assert len(recorded) == 11
    assert recorded[-1].message == "(combined from similar events): for another reason 24"
