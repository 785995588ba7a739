"""Durable writes of the master, compared with the disk and with etcd."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import aiohttp
import msgspec

from api.client.client import Client
from bench.api_server_process import CONFIG_MAPS
from bench.measurement import Measurement, Progress
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.wait import wait_until


@dataclass(frozen=True, slots=True)
class Size:
    """How often, how long, and with how many in flight objects are created."""

    seconds: float
    rounds: int
    in_flight: int


async def measure(size: Size, server: ApiServer, client: Client, progress: Progress) -> list[Measurement]:
    """Measure creations, in sequence and many in flight, compared with the disk and with etcd."""
    figures = []
    with _etcd() as etcd:
        for in_flight in (1, size.in_flight):
            ours, floor, theirs = [], [], []
            for number in range(size.rounds):
                progress(f"writes, {in_flight} in flight, {number + 1} of {size.rounds}")
                ours.append(await rate(size.seconds, in_flight, _creating(client, f"{in_flight}-{number}")))
                floor.append(await asyncio.to_thread(_sync_rate, server.root, size.seconds / 2))
                if etcd is not None:
                    async with aiohttp.ClientSession() as http:
                        theirs.append(await rate(size.seconds, in_flight, _putting(http, etcd)))
            what = f"durable creates of 1 KB, {in_flight} in flight"
            peer = "etcd, its HTTP gateway" if theirs else ""
            figures.append(
                Measurement(what, "/s", tuple(ours), None, "fdatasync of 4 KB", tuple(floor), peer, tuple(theirs))
            )
    return figures


async def rate(seconds: float, in_flight: int, write: Callable[[int], Awaitable[None]]) -> float:
    """Writes a second."""
    done, begin = 0, time.monotonic()

    async def go_on() -> None:
        nonlocal done
        while time.monotonic() - begin < seconds:
            done += 1
            await write(done)

    await asyncio.gather(*(go_on() for _ in range(in_flight)))
    return done / (time.monotonic() - begin)


def _creating(client: Client, prefix: str) -> Callable[[int], Awaitable[None]]:
    async def create(number: int) -> None:
        document = {"metadata": {"name": f"w{prefix}-{number}"}, "data": {"filler": "x" * 1000}}
        await client.request("POST", CONFIG_MAPS, msgspec.json.encode(document))

    return create


def _putting(http: aiohttp.ClientSession, etcd: str) -> Callable[[int], Awaitable[None]]:
    value = base64.b64encode(b"x" * 1000).decode()

    async def put(number: int) -> None:
        key = base64.b64encode(f"/registry/{number}".encode()).decode()
        async with http.post(f"{etcd}/v3/kv/put", json={"key": key, "value": value}) as answer:
            answer.raise_for_status()
            await answer.read()

    return put


def _sync_rate(root: Path, seconds: float) -> float:
    with (root / "floor").open("wb", buffering=0) as file:
        done, begin = 0, time.monotonic()
        while time.monotonic() - begin < seconds:
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            done += 1
        return done / (time.monotonic() - begin)


@contextmanager
def _etcd() -> Iterator[str | None]:
    """Debian's etcd, alone, if there is one: the address of its HTTP gateway."""
    if shutil.which("etcd") is None:
        yield None
        return
    root = tempfile.mkdtemp(prefix="podlane-bench-etcd-", dir="/var/tmp")
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    command = ["etcd", "--data-dir", root, "--listen-client-urls", client, "--advertise-client-urls", client]
    command += [
        "--listen-peer-urls",
        peer,
        "--initial-advertise-peer-urls",
        peer,
        "--initial-cluster",
        f"default={peer}",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _healthy(client), "etcd")
            yield client
        finally:
            process.kill()
    shutil.rmtree(root)


def _healthy(client: str) -> bool:
    try:
        with urlopen(f"{client}/health") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Return free ports of loopback."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports
