"""The master alone: the cost of an idle master, and the delay of an event until all watches have it."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import aiohttp
import msgspec

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from api.core.node import Node
from bench import api_server_lists, api_server_writes
from bench.api_server_process import CONFIG_MAPS, busy, measured, resident
from bench.measurement import Budget, Measure, Measurement, Progress
from bench.raw_watch_clients import RawWatches
from tests.testbed.apiserver.process import ApiServer

FAN_OUT_BUDGETS = {1000: Budget(20), 5000: Budget(60)}
FILLER = 500


@dataclass(frozen=True, slots=True)
class Size:
    """How long the master is idle; how many events how many watchers get; and the sizes of writes and lists."""

    idle_seconds: float
    watchers: tuple[int, ...]
    events: int
    writes: api_server_writes.Size
    lists: api_server_lists.Size


FULL = Size(
    idle_seconds=10,
    watchers=tuple(FAN_OUT_BUDGETS),
    events=15,
    writes=api_server_writes.Size(seconds=2, rounds=5, in_flight=50),
    lists=api_server_lists.Size(pods=10_000, nodes=100, page=500, rounds=7),
)
SMALLEST = Size(
    idle_seconds=0.1,
    watchers=(2,),
    events=1,
    writes=api_server_writes.Size(seconds=0.02, rounds=1, in_flight=2),
    lists=api_server_lists.Size(pods=4, nodes=2, page=3, rounds=1),
)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Measure several new masters in turn."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return [
        *measured(partial(_idle, size.idle_seconds), progress),
        *measured(partial(api_server_writes.measure, size.writes), progress),
        *measured(partial(_fan_out, size), progress),
        *measured(partial(api_server_lists.measure, size.lists, size.idle_seconds), progress),
    ]


MEASURE = Measure("the master alone: idle, durable writes, watches, lists", measure, FULL, SMALLEST)


# --- idle -------------------------------------------------------------------------------------------------------------


async def _idle(seconds: float, server: ApiServer, client: Client, progress: Progress) -> list[Measurement]:
    progress("idle")
    await client.list(Node)
    share = await busy(server, seconds)
    return [
        Measurement("master, resident, idle", "MB", (resident(server) / 1e6,), Budget(60)),
        Measurement("master, idle", "% of a core", (share,), Budget(0.2)),
    ]


# --- watches ----------------------------------------------------------------------------------------------------------


async def _fan_out(size: Size, server: ApiServer, client: Client, progress: Progress) -> list[Measurement]:
    figures = []
    kubeconfig = Kubeconfig.load(server.kubeconfig)
    context = kubeconfig.ssl_context()
    revision = (await client.list(Node)).metadata.resource_version
    path = f"{CONFIG_MAPS}?watch=1&timeoutSeconds=3600&resourceVersion={revision}"
    with _peer(server) as peer:
        for count in size.watchers:
            progress(f"{count} watches, and as many of a bare server")
            before = resident(server)
            with RawWatches(server.url, context, path, count) as ours:
                grown = (resident(server) - before) / count / 1000
                samples = [
                    await _delivery_milliseconds(ours, _write(client, f"e{count}-{number}"))
                    for number in range(size.events)
                ]
            with RawWatches(peer, context, "/watch", count) as raw_watches:
                async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as http:
                    floor = [await _delivery_milliseconds(raw_watches, _shout(http, peer)) for _ in range(size.events)]
            what, bare = f"one event to {count} watches, the last one", "aiohttp alone, TLS"
            figures.append(Measurement(what, "ms", tuple(samples), FAN_OUT_BUDGETS.get(count), bare, tuple(floor)))
            figures.append(Measurement(f"master, growth per watch, {count} watches", "KB", (grown,), Budget(20)))
    return figures


async def _delivery_milliseconds(watches: RawWatches, event: Awaitable[None]) -> float:
    """Milliseconds from the request until the last watch has the event."""
    begin = time.monotonic()
    telling = asyncio.create_task(asyncio.to_thread(watches.last_after, begin))
    await event
    return await telling * 1000


async def _write(client: Client, name: str) -> None:
    document = {"metadata": {"name": name}, "data": {"filler": "x" * FILLER}}
    await client.request("POST", CONFIG_MAPS, msgspec.json.encode(document))


async def _shout(http: aiohttp.ClientSession, peer: str) -> None:
    async with http.post(f"{peer}/event", data=b"x" * (FILLER + 500)) as answer:
        answer.raise_for_status()


@contextmanager
def _peer(server: ApiServer) -> Iterator[str]:
    certificate = server.root / "state" / "pki" / "server.pem"
    command = [sys.executable, "-m", "bench.baseline_watch_server", str(certificate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"https://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()
