"""Lists that are too large to be sent as a whole."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from api.client.kubeconfig import Kubeconfig
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.tls_connector import tls_connector

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
FILLER_BYTES = 400_000
"""More than the buffers of a connection hold, twelve times."""

NAMES = [f"large-{number:02}" for number in range(12)]
OURS = {"labelSelector": "of=large"}
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"

Http = aiohttp.ClientSession


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    api_server = ApiServer(Path(tmp_path_factory.mktemp("large-lists")))
    api_server.start()
    yield api_server
    api_server.stop()


@pytest.fixture
def tls(server: ApiServer) -> ssl.SSLContext:
    return Kubeconfig.load(server.kubeconfig).ssl_context()


@pytest.fixture
async def http(server: ApiServer, tls: ssl.SSLContext) -> AsyncIterator[Http]:
    """Yield a session, with the objects."""
    async with aiohttp.ClientSession(server.url, connector=tls_connector(tls)) as http:
        for name in NAMES:
            metadata = {"name": name, "labels": {"of": "large"}, "annotations": {"long": "a" * 10_000}}
            body = {"metadata": metadata, "data": {"filler": "x" * FILLER_BYTES}}
            async with http.post(CONFIG_MAPS, json=body) as answer:
                assert answer.status == 201, await answer.text()
        yield http
        async with http.delete(CONFIG_MAPS, params=OURS) as answer:
            await answer.read()


async def _get(http: Http, path: str, query: dict[str, str], accept: str = "application/json") -> Any:
    async with http.get(path, params=query, headers={"Accept": accept}) as answer:
        assert answer.status == 200
        body = await answer.read()
        assert answer.headers["Content-Length"] == str(len(body))
        return msgspec.json.decode(body)


async def test_large_list_has_every_object_in_every_form(http: Http) -> None:
    """The objects are those that a GET of each returns."""
    objects = [await _get(http, f"{CONFIG_MAPS}/{name}", {}) for name in NAMES]
    listed = await _get(http, CONFIG_MAPS, OURS)
    assert listed["kind"] == "ConfigMapList"
    assert [item | {"kind": "ConfigMap", "apiVersion": "v1"} for item in listed["items"]] == objects
    metadata = await _get(http, CONFIG_MAPS, OURS, METADATA)
    assert [item["metadata"] for item in metadata["items"]] == [item["metadata"] for item in objects]
    table = await _get(http, CONFIG_MAPS, OURS | {"includeObject": "Object"}, TABLE)
    assert table["columnDefinitions"][0]["name"] == "Name"
    assert [row["cells"][0] for row in table["rows"]] == NAMES
    assert [row["object"]["data"] for row in table["rows"]] == [item["data"] for item in objects]
    assert listed["metadata"] == metadata["metadata"] == table["metadata"]


async def test_head_of_a_large_list_has_no_body(http: Http) -> None:
    for _ in range(2):  # The second request uses the connection of the first one.
        async with http.head(CONFIG_MAPS, params=OURS) as answer:
            assert answer.status == 200
            assert int(answer.headers["Content-Length"]) > len(NAMES) * FILLER_BYTES
            assert await answer.read() == b""


async def test_large_list_over_http_1_0(http: Http, server: ApiServer, tls: ssl.SSLContext) -> None:
    host, _, port = server.url.removeprefix("https://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    writer.write(f"GET {CONFIG_MAPS}?labelSelector=of%3Dlarge HTTP/1.0\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert b" 200 " in head
    assert msgspec.json.decode(body) == await _get(http, CONFIG_MAPS, OURS)


async def test_list_that_a_client_reads_slowly_shows_one_revision(http: Http) -> None:
    """Objects change and go after the head of the response has arrived. The list shows none of this."""
    before = await _get(http, CONFIG_MAPS, OURS)
    async with http.get(CONFIG_MAPS, params=OURS) as slow:
        patch = msgspec.json.encode({"data": {"filler": "changed"}})
        headers = {"Content-Type": "application/merge-patch+json"}
        async with http.patch(f"{CONFIG_MAPS}/{NAMES[-1]}", data=patch, headers=headers) as answer:
            assert answer.status == 200
        async with http.delete(f"{CONFIG_MAPS}/{NAMES[-2]}") as answer:
            assert answer.status == 200
        assert msgspec.json.decode(await slow.read()) == before
    after = await _get(http, CONFIG_MAPS, OURS)
    assert [item["metadata"]["name"] for item in after["items"]] == [*NAMES[:-2], NAMES[-1]]
