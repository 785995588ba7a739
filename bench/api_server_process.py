"""A master without nodes, and its use of the machine."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from bench.measurement import Measurement
from tests.testbed.apiserver.process import ApiServer

IDLE_SECONDS = 10.0
FLAGS = ("--node-monitor-grace-seconds", "1000000")
"""Nodes in name only are not missed."""

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
Say = Callable[[str], None]
Part = Callable[[ApiServer, Client, Say], Awaitable[list[Measurement]]]


def measured(part: Part, say: Say) -> list[Measurement]:
    """Return the measurements of a part, on a new master."""

    async def run(server: ApiServer) -> list[Measurement]:
        async with Client(Kubeconfig.load(server.kubeconfig)) as client:
            return await part(server, client, say)

    with _server() as server:
        return asyncio.run(run(server))


@contextmanager
def _server() -> Iterator[ApiServer]:
    root = Path(tempfile.mkdtemp(prefix="podlane-bench-", dir="/var/tmp"))
    server = ApiServer(root, *FLAGS)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(root)


def resident(server: ApiServer) -> float:
    """Bytes."""
    return float(psutil.Process(server.pid).memory_info().rss)


async def busy(server: ApiServer) -> float:
    """Return the percentage of a core that the master uses without requests."""
    process = psutil.Process(server.pid)
    before = process.cpu_times()
    await asyncio.sleep(IDLE_SECONDS)
    after = process.cpu_times()
    return float(after.user + after.system - before.user - before.system) / IDLE_SECONDS * 100
