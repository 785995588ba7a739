"""An informer and a server that compacts its history, disconnects and returns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest
from aiohttp import web
from msgspec.structs import replace

from api.client import informer
from api.client.client import AlreadyExists, Client, Conflict, NotFound, Unreachable
from api.client.informer import Informer
from api.client.kubeconfig import BadKubeconfig, Kubeconfig
from api.core.node import Namespace, Node
from api.meta.types import ObjectMeta

LIST = "/api/v1/namespaces"


def namespace(name: str, version: int, **labels: str) -> dict[str, object]:
    meta = {"name": name, "resourceVersion": str(version), "labels": labels}
    return {"kind": "Namespace", "apiVersion": "v1", "metadata": meta}


class Script:
    """A server with scripted responses: lists, and lines for each watch."""

    def __init__(self) -> None:
        self.lists: list[dict[str, object]] = []
        self.watches: list[list[dict[str, object]]] = []
        self.requests: list[str] = []
        self.drops_watches = False
        self.refusals = 0
        self.done = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if "fieldSelector" in request.query:
            self.requests.append("select")
            status = {"kind": "Status", "code": 400, "message": "field label not supported"}
            return web.json_response(status, status=400)
        if self.refusals:
            self.refusals -= 1
            return web.json_response({"kind": "Status", "code": 403, "message": "not yours"}, status=403)
        if "watch" in request.query and self.drops_watches:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if "watch" not in request.query:
            self.requests.append("list")
            return web.json_response(self.lists.pop(0))
        self.requests.append(f"watch {request.query['resourceVersion']}")
        stream = web.StreamResponse()
        await stream.prepare(request)
        if not self.watches:
            self.done.set()
            await asyncio.Event().wait()
        for event in self.watches.pop(0):
            await stream.write(web.json_response(event).body + b"\n")  # type: ignore[operator]
        return stream


@pytest.fixture
async def script(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Script, Client]]:
    script = Script()
    app = web.Application()
    app.router.add_get(LIST, script.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    monkeypatch.setattr(Kubeconfig, "ssl_context", lambda self: False)
    async with Client(Kubeconfig(f"http://127.0.0.1:{port}", b"")) as client:
        yield script, client
    await runner.cleanup()


async def follow(
    script: Script, client: Client, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> tuple[Informer[Namespace], list[set[str]]]:
    states: list[set[str]] = []
    on_change: Callable[[], None] = lambda: states.append({name for _, name in mirror.items})  # noqa: E731
    mirror = Informer(client, Namespace, on_change=on_change, sleep=sleep)
    task = asyncio.create_task(mirror.run())
    async with asyncio.timeout(10):
        await script.done.wait()
    task.cancel()
    return mirror, states


async def test_informer_lists_once_and_resumes_its_watch(script: tuple[Script, Client]) -> None:
    server, client = script
    server.lists = [
        {
            "kind": "NamespaceList",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": "5"},
            "items": [namespace("a", 1)],
        }
    ]
    server.watches = [
        [{"type": "ADDED", "object": namespace("b", 6)}, {"type": "BOOKMARK", "object": namespace("", 9)}],
        [{"type": "DELETED", "object": namespace("a", 10)}],
    ]
    mirror, states = await follow(server, client)
    assert server.requests == ["list", "watch 5", "watch 9", "watch 10"]
    assert states == [{"a"}, {"a", "b"}, {"b"}]
    assert mirror.synced


async def test_informer_keeps_what_transform_returns(script: tuple[Script, Client]) -> None:
    server, client = script
    listed: dict[str, object] = {
        "kind": "L",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": "5"},
        "items": [namespace("a", 1, x="1")],
    }
    server.lists = [listed]
    server.watches = [[{"type": "ADDED", "object": namespace("b", 6, x="1")}]]

    def without_labels(obj: Namespace) -> Namespace:
        return replace(obj, metadata=replace(obj.metadata, labels={}))

    mirror = Informer(client, Namespace, transform=without_labels)
    task = asyncio.create_task(mirror.run())
    async with asyncio.timeout(10):
        await server.done.wait()
    task.cancel()
    assert {name: obj.metadata.labels for (_, name), obj in mirror.items.items()} == {"a": {}, "b": {}}


async def test_informer_accepts_a_list_without_items(script: tuple[Script, Client]) -> None:
    server, client = script
    server.lists = [{"kind": "L", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": None}]
    mirror, states = await follow(server, client)
    assert server.requests == ["list", "watch 5"]
    assert mirror.synced
    assert states == [set()]


async def test_informer_lists_again_when_its_revision_expired(script: tuple[Script, Client]) -> None:
    server, client = script
    server.lists = [
        {
            "kind": "L",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": "5"},
            "items": [namespace("a", 1), namespace("b", 2)],
        },
        {"kind": "L", "apiVersion": "v1", "metadata": {"resourceVersion": "50"}, "items": [namespace("b", 2)]},
    ]
    expired = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": "Expired",
        "code": 410,
    }
    server.watches = [[{"type": "ERROR", "object": expired}]]
    mirror, states = await follow(server, client)
    assert server.requests == ["list", "watch 5", "list", "watch 50"]
    assert states[-1] == {"b"}
    assert {name for _, name in mirror.items} == {"b"}


async def test_informer_keeps_its_objects_while_the_server_is_unreachable(script: tuple[Script, Client]) -> None:
    server, client = script
    server.lists = [
        {"kind": "L", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": [namespace("a", 1)]}
    ]
    mirror, _ = await follow(server, client)
    assert {name for _, name in mirror.items} == {"a"}


async def test_absence_of_the_server_is_logged_once_for_all_informers_and_waits_grow(
    script: tuple[Script, Client], caplog: pytest.LogCaptureFixture
) -> None:
    """Each informer has listed its objects, so that it continues with a watch."""
    caplog.set_level(logging.INFO, logger=informer.__name__)
    server, client = script
    listed: dict[str, object] = {"kind": "L", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": []}
    server.lists = [dict(listed) for _ in range(3)]
    server.drops_watches = True
    waits: list[list[float]] = [[], [], []]

    async def sleep(seconds: float, mine: list[float]) -> None:
        mine.append(seconds)
        server.drops_watches = any(len(others) < 4 for others in waits)
        await asyncio.sleep(0)

    mirrors = [Informer(client, Namespace, sleep=partial(sleep, mine=mine)) for mine in waits]
    tasks = [asyncio.create_task(mirror.run()) for mirror in mirrors]
    async with asyncio.timeout(10):
        while server.drops_watches or not all(mirror.connected for mirror in mirrors):
            await asyncio.sleep(0.001)
    for task in tasks:
        task.cancel()
    assert [mine[:4] for mine in waits] == [[0.2, 0.4, 0.8, 1.6]] * 3
    messages = [record.message for record in caplog.records]
    assert messages.count("watching the API server") == 3
    assert messages.count("the API server does not answer") == 1
    assert messages[-1] == "the API server answers again"


async def test_refused_watch_is_not_logged_as_an_absence_of_the_server(
    script: tuple[Script, Client], caplog: pytest.LogCaptureFixture
) -> None:
    server, client = script
    server.refusals = 3
    server.lists = [{"kind": "L", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": []}]
    mirror, _ = await follow(server, client, sleep=lambda _: asyncio.sleep(0))
    assert mirror.synced
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert warning.message == "the API server refused a watch"
    assert warning.__dict__["error"] == "not yours"


async def test_informer_filters_locally_when_the_server_rejects_its_field_selector(
    script: tuple[Script, Client],
) -> None:
    server, client = script
    items = [namespace("mine", 1), namespace("theirs", 2)]
    server.lists = [{"kind": "L", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": items}]
    server.watches = [
        [{"type": "ADDED", "object": namespace(name, 6)} for name in ("mine-too", "theirs-too")],
        [{"type": "MODIFIED", "object": namespace("mine-too", 7, state="given away")}],
    ]
    mirror = Informer(
        client,
        Namespace,
        field_selector="spec.nodeName=mine",
        accepts=lambda candidate: candidate.metadata.name.startswith("mine") and not candidate.metadata.labels,
    )
    task = asyncio.create_task(mirror.run())
    async with asyncio.timeout(10):
        await server.done.wait()
    task.cancel()
    assert server.requests[:2] == ["select", "list"]
    assert {name for _, name in mirror.items} == {"mine"}


async def test_informer_without_local_filtering_never_syncs_when_its_selector_is_rejected(
    script: tuple[Script, Client],
) -> None:
    server, client = script
    mirror = Informer(client, Namespace, field_selector="spec.nodeName=mine")
    task = asyncio.create_task(mirror.run())
    async with asyncio.timeout(10):
        while server.requests.count("select") < 2:
            await asyncio.sleep(0)
    task.cancel()
    assert set(server.requests) == {"select"}
    assert not mirror.synced


async def test_client_errors_have_their_own_types(script: tuple[Script, Client]) -> None:
    _, client = script
    with pytest.raises(NotFound):
        await client.get(Namespace, "nobody")
    away = Client(Kubeconfig("http://127.0.0.1:9", b""))
    async with away:
        with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:9 does not answer"):
            await away.create(Namespace(metadata=ObjectMeta(name="a")))
    assert not issubclass(AlreadyExists, Conflict)


def test_invalid_kubeconfig_names_the_error(tmp_path: object) -> None:
    with pytest.raises(BadKubeconfig, match="No such file"):
        Kubeconfig.load("/nowhere/at/all")


async def test_informer_of_an_unknown_kind_is_empty(script: tuple[Script, Client]) -> None:
    _, client = script
    changed = asyncio.Event()
    mirror = Informer(client, Node, on_change=changed.set, optional=True)
    needed = Informer(client, Node)
    tasks = [asyncio.create_task(informer.run()) for informer in (mirror, needed)]
    async with asyncio.timeout(10):
        await changed.wait()
        while not needed.last_error:
            await asyncio.sleep(0.001)
    for task in tasks:
        task.cancel()
    assert (mirror.synced, dict(mirror.items), needed.synced) == (True, {}, False)
