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
from bench.measurement import Measurement, Progress
from bench.process_time import cpu_seconds
from tests.testbed.apiserver.process import ApiServer

FLAGS = ("--node-monitor-grace-seconds", "1000000")
"""Nodes in name only are not missed."""

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
Part = Callable[[ApiServer, Client, Progress], Awaitable[list[Measurement]]]


def measured(part: Part, progress: Progress) -> list[Measurement]:
    """Return the measurements of a part, on a new master."""

    async def run(server: ApiServer) -> list[Measurement]:
        async with Client(Kubeconfig.load(server.kubeconfig)) as client:
            return await part(server, client, progress)

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
    """Return the resident memory of the master in bytes."""
    return float(psutil.Process(server.pid).memory_info().rss)


async def busy(server: ApiServer, seconds: float) -> float:
    """Return the percentage of a core that the master uses without requests."""
    before = cpu_seconds(server.pid)
    await asyncio.sleep(seconds)
    return (cpu_seconds(server.pid) - before) / seconds * 100
