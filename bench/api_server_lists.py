"""Lists of many pods in every format, and the cost of each pod."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
import msgspec

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from bench.api_server_process import Say, busy, resident
from bench.measurement import Measurement
from tests.testbed.apiserver.process import ApiServer

PODS, NODES, PAGE = 10_000, 100, 500
MAKERS = 50
LISTS = 7
ALL_PODS = "/api/v1/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
ONE_NODE = {"fieldSelector": "spec.nodeName=node-7"}
WATCH_LIST = {
    "watch": "1",
    "allowWatchBookmarks": "true",
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
    "timeoutSeconds": "3600",
}
POD = {
    "containers": [
        {
            "name": "web",
            "image": "registry.example/team/web:1.2.3",
            "command": ["/bin/web", "--listen", ":8080"],
            "ports": [{"name": "http", "containerPort": 8080}],
            "env": [{"name": f"VARIABLE_{number}", "value": f"value-{number}"} for number in range(8)],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
            "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}},
        }
    ]
}


async def measure(server: ApiServer, client: Client, say: Say) -> list[Measurement]:
    """Many pods: made, listed in every way, and their cost."""
    say(f"makes {PODS} pods")
    before, begin = resident(server), time.monotonic()
    await _make_pods(client)
    made = PODS / (time.monotonic() - begin)
    tls = Kubeconfig.load(server.kubeconfig).ssl_context()
    async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(ssl=tls)) as http:
        say("idle")
        figures = [
            Measurement("pods created, 50 in flight", "/s", (made,)),
            Measurement("master, growth per pod", "KB", ((resident(server) - before) / PODS / 1000,)),
            Measurement("a pod as JSON", "KB", (len(await _read(http)) / PODS / 1000,)),
            Measurement(f"master, idle, {PODS} pods", "% of a core", (await busy(server),)),
        ]
        say("lists")
        floor = await _times(lambda: _read(http))
        figures.append(Measurement(f"list of {PODS} pods, JSON", "ms", floor))
        for what, way in _ways(http).items():
            figures.append(Measurement(what, "ms", await _times(way), "", "the list, JSON", floor))
    return figures


def _ways(http: aiohttp.ClientSession) -> dict[str, Callable[[], Awaitable[object]]]:
    return {
        f"list of {PODS} pods, Table": lambda: _read(http, TABLE),
        f"list of {PODS} pods, metadata": lambda: _read(http, METADATA),
        f"list of {PODS} pods in pages of {PAGE}, JSON": lambda: _paged(http, ""),
        f"list of {PODS} pods in pages of {PAGE}, Table": lambda: _paged(http, TABLE),
        f"list of the {PODS // NODES} pods of a node": lambda: _read(http, "", ONE_NODE),
        f"list of {PODS} pods, then a watch": lambda: _list_and_watch(http),
        f"WatchList of {PODS} pods": lambda: _watch(http, WATCH_LIST, b"initial-events-end"),
    }


async def _times(way: Callable[[], Awaitable[object]]) -> tuple[float, ...]:
    """Milliseconds, several times."""
    samples = []
    for _ in range(LISTS):
        begin = time.monotonic()
        await way()
        samples.append((time.monotonic() - begin) * 1000)
    return tuple(samples)


async def _read(http: aiohttp.ClientSession, accept: str = "", query: Mapping[str, str] = {}) -> bytes:
    headers = {"Accept": accept} if accept else {}
    async with http.get(ALL_PODS, params=query, headers=headers) as answer:
        answer.raise_for_status()
        return await answer.read()


async def _paged(http: aiohttp.ClientSession, accept: str) -> None:
    query = {"limit": str(PAGE)}
    while True:
        page = msgspec.json.decode(await _read(http, accept, query), type=_Page)
        if not page.metadata.continue_:
            return
        query["continue"] = page.metadata.continue_


class _Meta(msgspec.Struct):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _Meta


async def _list_and_watch(http: aiohttp.ClientSession) -> None:
    """List the pods, and watch until the head of the response has arrived."""
    page = msgspec.json.decode(await _read(http), type=_Page)
    await _watch(http, {"watch": "1", "resourceVersion": page.metadata.resource_version}, b"")


async def _watch(http: aiohttp.ClientSession, query: Mapping[str, str], until: bytes) -> None:
    async with http.get(ALL_PODS, params=query) as answer:
        answer.raise_for_status()
        last = b""
        while until not in last:
            last = last[-len(until) :] + await answer.content.readany()
        answer.close()


async def _make_pods(client: Client) -> None:
    for number in range(NODES):
        await client.request("POST", "/api/v1/nodes", msgspec.json.encode({"metadata": {"name": f"node-{number}"}}))
    numbers = iter(range(PODS))

    async def make() -> None:
        for number in numbers:
            spec = POD | {"nodeName": f"node-{number % NODES}"}
            labels = {"app": f"app-{number % 50}", "tier": "web"}
            document = {"metadata": {"name": f"pod-{number:05}", "labels": labels}, "spec": spec}
            await client.request("POST", "/api/v1/namespaces/default/pods", msgspec.json.encode(document))

    await asyncio.gather(*(make() for _ in range(MAKERS)))
