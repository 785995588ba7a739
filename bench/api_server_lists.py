"""Lists of many pods in every format, and the cost of each pod."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import aiohttp
import msgspec

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from bench.api_server_process import busy, resident
from bench.measurement import Budget, Measurement, Progress
from bench.ping_process import pinging
from tests.testbed.apiserver.process import ApiServer

MAKERS = 50
QUIET_SECONDS = 0.3
ALL_PODS = "/api/v1/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
ONE_NODE = {"fieldSelector": "spec.nodeName=node-1"}
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


@dataclass(frozen=True, slots=True)
class Size:
    """How many pods on how many nodes (at least two) are listed, in pages of which size, and how often."""

    pods: int
    nodes: int
    page: int
    rounds: int


async def measure(
    size: Size, idle_seconds: float, server: ApiServer, client: Client, progress: Progress
) -> list[Measurement]:
    """Create pods, list them in every way, and measure what they cost."""
    progress(f"makes {size.pods} pods")
    before, begin = resident(server), time.monotonic()
    await _make_pods(size, client)
    made = size.pods / (time.monotonic() - begin)
    tls = Kubeconfig.load(server.kubeconfig).ssl_context()
    async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(ssl=tls)) as http:
        progress("idle")
        figures = [
            Measurement("pods created, 50 in flight", "/s", (made,)),
            Measurement("master, growth per pod", "KB", ((resident(server) - before) / size.pods / 1000,)),
            Measurement("a pod as JSON", "KB", (len(await _read(http)) / size.pods / 1000,)),
            Measurement(f"master, idle, {size.pods} pods", "% of a core", (await busy(server, idle_seconds),)),
        ]
        progress("lists")
        floor = await _times(size.rounds, lambda: _read(http))
        figures.append(Measurement(f"list of {size.pods} pods, JSON", "ms", floor))
        for what, way in _ways(size, http).items():
            figures.append(Measurement(what, "ms", await _times(size.rounds, way), None, "the list, JSON", floor))
        progress("other requests during lists")
        figures += await _pauses(size, http, server)
    return figures


async def _pauses(size: Size, http: aiohttp.ClientSession, server: ApiServer) -> list[Measurement]:
    """Measure how long another client waits for a response while a list is made and sent."""
    figures = []
    with pinging(server.kubeconfig) as ping:

        async def longest(accept: str | None) -> float:
            await asyncio.to_thread(ping.longest_milliseconds)
            await (asyncio.sleep(QUIET_SECONDS) if accept is None else _read(http, accept))
            return await asyncio.to_thread(ping.longest_milliseconds)

        for what, accept in (("JSON", ""), ("Table", TABLE), ("metadata", METADATA)):
            samples, floor = [], []
            for _ in range(size.rounds):
                samples.append(await longest(accept))
                floor.append(await longest(None))
            name = f"longest response to others during a list of {size.pods} pods, {what}"
            figures.append(Measurement(name, "ms", tuple(samples), Budget(20), "without a list", tuple(floor)))
    return figures


def _ways(size: Size, http: aiohttp.ClientSession) -> dict[str, Callable[[], Awaitable[object]]]:
    return {
        f"list of {size.pods} pods, Table": lambda: _read(http, TABLE),
        f"list of {size.pods} pods, metadata": lambda: _read(http, METADATA),
        f"list of {size.pods} pods in pages of {size.page}, JSON": lambda: _paged(http, size.page, ""),
        f"list of {size.pods} pods in pages of {size.page}, Table": lambda: _paged(http, size.page, TABLE),
        f"list of the {size.pods // size.nodes} pods of a node": lambda: _read(http, "", ONE_NODE),
        f"list of {size.pods} pods, then a watch": lambda: _list_and_watch(http),
        f"WatchList of {size.pods} pods": lambda: _watch(http, WATCH_LIST, b"initial-events-end"),
    }


async def _times(rounds: int, way: Callable[[], Awaitable[object]]) -> tuple[float, ...]:
    """Milliseconds, several times."""
    samples = []
    for _ in range(rounds):
        begin = time.monotonic()
        await way()
        samples.append((time.monotonic() - begin) * 1000)
    return tuple(samples)


async def _read(http: aiohttp.ClientSession, accept: str = "", query: Mapping[str, str] = {}) -> bytes:
    headers = {"Accept": accept} if accept else {}
    async with http.get(ALL_PODS, params=query, headers=headers) as answer:
        answer.raise_for_status()
        return await answer.read()


async def _paged(http: aiohttp.ClientSession, page_size: int, accept: str) -> None:
    query = {"limit": str(page_size)}
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


async def _make_pods(size: Size, client: Client) -> None:
    for number in range(size.nodes):
        await client.request("POST", "/api/v1/nodes", msgspec.json.encode({"metadata": {"name": f"node-{number}"}}))
    numbers = iter(range(size.pods))

    async def make() -> None:
        for number in numbers:
            spec = POD | {"nodeName": f"node-{number % size.nodes}"}
            labels = {"app": f"app-{number % 50}", "tier": "web"}
            document = {"metadata": {"name": f"pod-{number:05}", "labels": labels}, "spec": spec}
            await client.request("POST", "/api/v1/namespaces/default/pods", msgspec.json.encode(document))

    await asyncio.gather(*(make() for _ in range(MAKERS)))
