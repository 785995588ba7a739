"""Streaming lists (`sendInitialEvents`), with which informers of Kubernetes 1.35 and later start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from api.client.kubeconfig import Kubeconfig
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.tls_connector import tls_connector

SECRETS = "/api/v1/namespaces/default/secrets"
OURS = {"labelSelector": "of=list"}
WATCH_LIST = {"watch": "1", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
BOOKMARKS = {"allowWatchBookmarks": "true"}
SHORT = {"timeoutSeconds": "1"}
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
END = {"k8s.io/initial-events-end": "true"}
FUTURE = 1_000_000

Http = aiohttp.ClientSession


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    api_server = ApiServer(Path(tmp_path_factory.mktemp("watch-list")))
    api_server.start()
    yield api_server
    api_server.stop()


@pytest.fixture
async def http(server: ApiServer) -> AsyncIterator[Http]:
    """Yield a session, with two objects of the test and one other."""
    context = Kubeconfig.load(server.kubeconfig).ssl_context()
    async with aiohttp.ClientSession(server.url, connector=tls_connector(context)) as http:
        for name in ("b", "other", "a"):
            await _make(http, name, "none" if name == "other" else "list")
        yield http
        await http.delete(SECRETS)


async def _make(http: Http, name: str, of: str = "list") -> int:
    async with http.post(SECRETS, json={"metadata": {"name": name, "labels": {"of": of}}}) as answer:
        assert answer.status == 201, await answer.text()
        return int((await answer.json())["metadata"]["resourceVersion"])


async def _revision(http: Http) -> int:
    async with http.get(SECRETS, params=OURS) as answer:
        return int((await answer.json())["metadata"]["resourceVersion"])


async def _lines(http: Http, query: dict[str, str], accept: str = "application/json") -> AsyncGenerator[Any, None]:
    async with http.get(SECRETS, params=OURS | query, headers={"Accept": accept}) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            yield msgspec.json.decode(line)


async def _first(http: Http, query: dict[str, str], accept: str = "application/json") -> list[Any]:
    """Return the first three lines of a watch."""
    lines = _lines(http, query, accept)
    actual = [await anext(lines) for _ in range(3)]
    await lines.aclose()
    return actual


def _types_and_names(lines: list[Any]) -> list[tuple[str, str]]:
    return [(line["type"], line["object"]["metadata"].get("name", "")) for line in lines]


@pytest.mark.parametrize("revision", ["", "0", "1", "now"])
async def test_watch_list_sends_initial_objects_and_a_bookmark_at_their_end(http: Http, revision: str) -> None:
    """The revision is a lower bound for the response, which is always the newest state."""
    now = await _revision(http)
    requested = str(now) if revision == "now" else revision
    lines = await _first(http, WATCH_LIST | BOOKMARKS | ({"resourceVersion": requested} if requested else {}))
    assert _types_and_names(lines) == [("ADDED", "a"), ("ADDED", "b"), ("BOOKMARK", "")]
    assert lines[2]["object"] == {
        "kind": "Secret",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": str(now), "annotations": END},
    }


async def test_watch_list_sends_a_bookmark_at_its_timeout(http: Http) -> None:
    lines = [line async for line in _lines(http, WATCH_LIST | BOOKMARKS | SHORT)]
    assert _types_and_names(lines[2:]) == [("BOOKMARK", ""), ("BOOKMARK", "")]
    assert lines[3]["object"]["metadata"] == {"resourceVersion": str(await _revision(http))}


async def test_changes_after_the_watch_list_arrive_once(http: Http) -> None:
    lines = _lines(http, WATCH_LIST | BOOKMARKS)
    first = [await anext(lines) for _ in range(3)]
    end = int(first[2]["object"]["metadata"]["resourceVersion"])
    revision = await _make(http, "c")
    after = await anext(lines)
    assert _types_and_names([after]) == [("ADDED", "c")]
    assert int(after["object"]["metadata"]["resourceVersion"]) == revision > end
    await http.delete(f"{SECRETS}/a")
    assert _types_and_names([await anext(lines)]) == [("DELETED", "a")]
    await lines.aclose()


async def test_writes_during_a_watch_list_are_neither_lost_nor_repeated(http: Http) -> None:
    """Many writes happen around the start. The initial state and the following events contain all of them."""

    async def write() -> None:
        for number in range(60):
            await _make(http, f"m{number:02}")

    async def follow() -> list[Any]:
        lines = _lines(http, WATCH_LIST | BOOKMARKS)
        reported: list[Any] = []
        while not {("ADDED", "m59"), ("BOOKMARK", "")} <= set(_types_and_names(reported)):
            reported.append(await anext(lines))
        await lines.aclose()
        return reported

    writing = asyncio.create_task(write())
    seen = await asyncio.gather(*(follow() for _ in range(5)))
    await writing
    for events in seen:
        names = [name for _, name in _types_and_names(events) if name]
        assert sorted(names) == ["a", "b", *(f"m{number:02}" for number in range(60))]
        (end,) = [index for index, line in enumerate(events) if line["type"] == "BOOKMARK"]
        revisions = [int(line["object"]["metadata"]["resourceVersion"]) for line in events]
        assert max(revisions[:end], default=0) <= revisions[end]
        assert revisions[end:] == sorted(revisions[end:])


@pytest.mark.parametrize(
    ("accept", "kind"), [(TABLE, "Table"), (METADATA, "PartialObjectMetadata")], ids=["table", "metadata"]
)
async def test_watch_list_end_bookmark_is_sent_in_tables_metadata_and_protobuf(
    http: Http, accept: str, kind: str
) -> None:
    lines = await _first(http, WATCH_LIST | BOOKMARKS, accept)
    assert [line["type"] for line in lines] == ["ADDED", "ADDED", "BOOKMARK"]
    assert {line["object"]["kind"] for line in lines} == {kind}
    end = lines[2]["object"]
    if kind == "Table":
        (row,) = end["rows"]
        assert len(row["cells"]) == len(lines[0]["object"]["columnDefinitions"])
        assert row["object"]["kind"] == "PartialObjectMetadata"
        end = row["object"]
    assert end["metadata"]["annotations"] == END


async def test_watch_at_a_future_revision_is_rejected_with_retry_after(http: Http) -> None:
    for query in (WATCH_LIST | BOOKMARKS, {}):
        async with http.get(SECRETS, params=query | {"resourceVersion": str(FUTURE)}) as answer:
            status = await answer.json()
            assert (answer.status, answer.headers["Retry-After"]) == (504, "1")
        assert status["reason"] == "Timeout"
        assert status["message"].startswith(f"Timeout: Too large resource version: {FUTURE}, current: ")
        assert [cause["reason"] for cause in status["details"]["causes"]] == ["ResourceVersionTooLarge"]


@pytest.mark.parametrize(
    "query",
    [
        {"watch": "1", "sendInitialEvents": "true"},
        {"watch": "1", "sendInitialEvents": "true", "resourceVersionMatch": "Exact", "resourceVersion": "1"},
        {"watch": "1", "resourceVersionMatch": "NotOlderThan"},
    ],
)
async def test_invalid_watch_list_options_are_rejected(http: Http, query: dict[str, str]) -> None:
    async with http.get(SECRETS, params=query) as answer:
        assert answer.status == 422
        assert (await answer.json())["reason"] == "Invalid"


async def test_watch_without_initial_events_sends_only_later_changes(http: Http) -> None:
    query = WATCH_LIST | BOOKMARKS | SHORT | {"sendInitialEvents": "false"}
    assert _types_and_names([line async for line in _lines(http, query)]) == [("BOOKMARK", "")]


async def test_watch_without_a_revision_sends_existing_objects_and_no_end_bookmark(http: Http) -> None:
    plain = [line async for line in _lines(http, {"watch": "1"} | SHORT)]
    assert _types_and_names(plain) == [("ADDED", "a"), ("ADDED", "b")]
