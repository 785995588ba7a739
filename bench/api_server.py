"""The master alone: the cost of an idle master, and the delay of an event until all watches have it."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

import aiohttp
import msgspec

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from api.core.node import Node
from bench import api_server_lists, api_server_writes
from bench.api_server_process import CONFIG_MAPS, Say, busy, measured, resident
from bench.measurement import Measurement
from bench.raw_watch_clients import RawWatches
from tests.testbed.apiserver.process import ApiServer

WATCHERS = ((1000, "50 ms"), (5000, "250 ms"))
EVENTS = 15
FILLER = 500


def measure(say: Say) -> list[Measurement]:
    """Measure several new masters in turn."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return [
        *measured(_idle, say),
        *measured(api_server_writes.measure, say),
        *measured(_fan_out, say),
        *measured(api_server_lists.measure, say),
    ]


# --- idle -------------------------------------------------------------------------------------------------------------


async def _idle(server: ApiServer, client: Client, say: Say) -> list[Measurement]:
    say("idle")
    await client.list(Node)
    share = await busy(server)
    return [
        Measurement("master, resident, idle", "MB", (resident(server) / 1e6,), "60 MB"),
        Measurement("master, idle", "% of a core", (share,), "0.5 %"),
    ]


# --- watches ----------------------------------------------------------------------------------------------------------


async def _fan_out(server: ApiServer, client: Client, say: Say) -> list[Measurement]:
    figures = []
    kubeconfig = Kubeconfig.load(server.kubeconfig)
    context = kubeconfig.ssl_context()
    revision = (await client.list(Node)).metadata.resource_version
    path = f"{CONFIG_MAPS}?watch=1&timeoutSeconds=3600&resourceVersion={revision}"
    with _peer(server) as peer:
        for count, budget in WATCHERS:
            say(f"{count} watches, and as many of a bare server")
            before = resident(server)
            with RawWatches(server.url, context, path, count) as ours:
                grown = (resident(server) - before) / count / 1000
                samples = [
                    await _delivery_milliseconds(ours, _write(client, f"e{count}-{number}")) for number in range(EVENTS)
                ]
            with RawWatches(peer, context, "/watch", count) as raw_watches:
                async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as http:
                    floor = [await _delivery_milliseconds(raw_watches, _shout(http, peer)) for _ in range(EVENTS)]
            what, bare = f"one event to {count} watches, the last one", "aiohttp alone, TLS"
            figures.append(Measurement(what, "ms", tuple(samples), budget, bare, tuple(floor)))
            figures.append(Measurement(f"master, growth per watch, {count} watches", "KB", (grown,)))
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
