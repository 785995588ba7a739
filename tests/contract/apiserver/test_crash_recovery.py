"""A master killed while clients write, or while it starts: every acknowledged write is there after a restart.

`make soak` kills it 1,000 times; here a few times.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from api.client.client import Client, Conflict, NotFound, Unreachable
from api.client.kubeconfig import Kubeconfig
from api.core.node import Namespace
from tests.testbed.apiserver.process import ApiServer

KILLS = int(os.environ.get("PODLANE_SOAK_KILLS", "5"))
STARTS = max(3, KILLS // 20)
WRITERS, NAMES = 8, 5
MOST_WRITES = 60
"""Of one life of the master, before it is killed."""

COLLECTION, MINE = "/api/v1/namespaces/default/configmaps", {"labelSelector": "of=killed"}
COUNTER = "counter"
START_SECONDS = 0.5
"""About as long as a first start takes."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    api_server = ApiServer(tmp_path)
    api_server.start()
    yield api_server
    api_server.stop()


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class _ConfigMap(msgspec.Struct):
    metadata: _Meta
    data: dict[str, str] = {}


class _List(msgspec.Struct):
    metadata: _Meta
    items: list[_ConfigMap]


def _document(name: str, value: str, revision: str = "") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"of": "killed"}, "resourceVersion": revision},
        "data": {"value": value},
    }


async def _request(client: Client, method: str, name: str, document: Any = None) -> _ConfigMap:
    path = COLLECTION + (f"/{name}" if name else "")
    body = None if document is None else msgspec.json.encode(document)
    content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
    return msgspec.json.decode(await client.request(method, path, body, content_type), type=_ConfigMap)


@dataclass(slots=True)
class Writer:
    """A writer that knows the acknowledged value of each of its objects (None if deleted), and the one write without a
    response.
    """

    number: int
    known: dict[str, str | None] = field(default_factory=dict)
    unsure: tuple[str, str | None] | None = None
    writes: int = 0

    async def write(self, client: Client, count: Count) -> None:
        """Write until the master is killed."""
        try:
            while True:
                if random.random() < 0.2:
                    await count.up(client)
                else:
                    await self._change(client)
                    count.acknowledged += 1
        except Unreachable:
            return

    async def _change(self, client: Client) -> None:
        self.writes += 1
        name, value = f"w{self.number}-{random.randrange(NAMES)}", f"{self.number}.{self.writes}"
        method = "POST"
        if self.known.get(name) is not None:
            method = random.choice(("PUT", "PATCH", "DELETE"))
        wanted = None if method == "DELETE" else value
        self.unsure = (name, wanted)
        document = None if method == "DELETE" else _document(name, value)
        await _request(client, method, "" if method == "POST" else name, document)
        self.known[name] = wanted
        self.unsure = None

    def check(self, actual: dict[str, str]) -> None:
        """Compare with the values after a restart, which are the new acknowledged ones."""
        for name in {*self.known, *(() if self.unsure is None else (self.unsure[0],))}:
            there, wanted = actual.get(name), self.known.get(name)
            assert there == wanted or (name, there) == self.unsure, f"{name}: {there}, acknowledged was {wanted}"
            self.known[name] = there
        self.unsure = None


@dataclass(slots=True)
class Count:
    """A counter that all writers increment by compare-and-swap. No value is acknowledged twice."""

    acknowledged_values: set[int] = field(default_factory=set)
    tries: int = 0
    acknowledged: int = 0

    async def up(self, client: Client) -> None:
        """Increment the counter, unless another writer was faster."""
        try:
            old = await _request(client, "GET", COUNTER)
        except NotFound:
            return
        value = int(old.data["value"]) + 1
        self.tries += 1
        try:
            await _request(client, "PUT", COUNTER, _document(COUNTER, str(value), old.metadata.resource_version))
        except Conflict:
            return
        assert value not in self.acknowledged_values, f"two writers were told {value}"
        self.acknowledged_values.add(value)
        self.acknowledged += 1

    def check(self, actual: dict[str, str]) -> None:
        """Check that all acknowledged increments are counted, and no more than were tried."""
        assert max(self.acknowledged_values, default=0) <= int(actual[COUNTER]) <= self.tries
        assert len(self.acknowledged_values) <= int(actual[COUNTER])


async def _survivors(kubeconfig: Kubeconfig) -> tuple[dict[str, str], int]:
    """Return the values after a restart, and the revision."""
    async with Client(kubeconfig) as client:
        listed = msgspec.json.decode(await client.request("GET", COLLECTION, query=MINE), type=_List)
    assert len({config_map.metadata.uid for config_map in listed.items}) == len(listed.items)
    return {config_map.metadata.name: config_map.data["value"] for config_map in listed.items}, int(
        listed.metadata.resource_version
    )


async def test_killed_master_loses_no_acknowledged_write(server: ApiServer) -> None:
    kubeconfig = Kubeconfig.load(server.kubeconfig)
    writers, count, newest = [Writer(number) for number in range(WRITERS)], Count(), 0
    async with Client(kubeconfig) as client:
        await _request(client, "POST", "", _document(COUNTER, "0"))
    for _ in range(KILLS):
        enough = count.acknowledged + random.randint(1, MOST_WRITES)
        async with Client(kubeconfig) as client:
            writing = [asyncio.create_task(writer.write(client, count)) for writer in writers]
            while count.acknowledged < enough:
                await asyncio.sleep(0)
            server.stop(signal.SIGKILL)
            await asyncio.gather(*writing)
        await asyncio.to_thread(server.start)
        actual, revision = await _survivors(kubeconfig)
        for writer in writers:
            writer.check(actual)
        count.check(actual)
        assert newest < revision, "revisions only grow"
        newest = revision
    assert count.acknowledged >= KILLS
    assert count.acknowledged_values
    sys.stdout.write(
        f"{KILLS} kills, {count.acknowledged} acknowledged writes, {len(count.acknowledged_values)} of them by swap\n"
    )


@pytest.mark.parametrize("kills", range(1, STARTS + 1))
async def test_first_start_killed_at_any_moment_is_completed_by_the_next(tmp_path: Path, kills: int) -> None:
    """Its authority, its keys and its first objects are then made whole by the next start."""
    server = ApiServer(tmp_path)
    for _ in range(1 + kills % 3):
        server.launch()
        await asyncio.sleep(random.random() * START_SECONDS)
        server.stop(signal.SIGKILL)
    server.start()
    try:
        async with Client(Kubeconfig.load(server.kubeconfig)) as client:
            names = {namespace.metadata.name for namespace in (await client.list(Namespace)).items}
        assert {"default", "kube-node-lease"} <= names
    finally:
        assert server.stop() == 0
