"""Many clients write and watch while connections break, history is compacted and the master is killed.

`make soak` runs it over 100,000 events; here it is kept short.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from api.core.node import Namespace
from api.meta.types import ObjectMeta
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.watch_checker import RecordedHistory, Selection, find_violations
from tests.testbed.apiserver.watch_clients import BALLAST, BALLAST_SIZE, NAMESPACES, Marks, Watcher, Writer

EVENTS = int(os.environ.get("PODLANE_SOAK_EVENTS", "1500"))
EVENTS_PER_ROUND = max(250, EVENTS // 100)
WRITERS = 8
SELECTIONS = (Selection(), Selection(color="red"), Selection("one"), Selection("two", "blue")) * 2

DEADLINE_SECONDS = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    api_server = ApiServer(tmp_path)
    api_server.start()
    yield api_server
    api_server.stop()


class Run:
    """A run of writers and watchers, with disturbances."""

    def __init__(self, server: ApiServer, client: Client, seed: int) -> None:
        self._server = server
        self._client = client
        kubeconfig, self._dice = Kubeconfig.load(server.kubeconfig), random.Random(seed)
        self._witness = Watcher(kubeconfig, Selection(), random.Random(seed), steady=True)
        others = [
            Watcher(kubeconfig, selection, random.Random(seed + number), steady=False)
            for number, selection in enumerate(SELECTIONS, 1)
        ]
        self.watchers = [self._witness, *others]
        self.writers = [Writer(client, f"w{number}", random.Random(seed - number)) for number in range(WRITERS)]
        self._marks = Marks()
        self._ballast = 0
        self._quiet: list[tuple[int, int]] = []
        self.kills = 0

    @property
    def acknowledged(self) -> int:
        return sum(len(writer.acknowledged) for writer in self.writers)

    async def run(self) -> RecordedHistory:
        """Rounds of writing, each with a disturbance in it or after it."""
        await asyncio.gather(*(self._client.create(Namespace(metadata=ObjectMeta(name=name))) for name in NAMESPACES))
        async with asyncio.TaskGroup() as group:
            for watcher in self.watchers:
                group.create_task(watcher.follow(self._marks))
            while not self._witness.snapshots:
                await asyncio.sleep(0.01)
            number = 0
            while self.acknowledged < EVENTS:
                await self._write(killed=number % 2 == 1)
                await self._forget() if number % 4 == 0 else None
                number += 1
            self._marks.last = await self._revision()
        return RecordedHistory(
            self._witness.snapshots[0],
            [session for watcher in self.watchers for session in watcher.sessions],
            [snapshot for watcher in self.watchers for snapshot in watcher.snapshots],
            [write for writer in self.writers for write in writer.acknowledged],
            self._quiet,
        )

    async def _write(self, *, killed: bool) -> None:
        goal = self.acknowledged + EVENTS_PER_ROUND
        async with asyncio.TaskGroup() as group:
            for writer in self.writers:
                group.create_task(writer.write(lambda: self.acknowledged >= goal))
            if killed:
                await asyncio.sleep(self._dice.random() * 0.2)
                await asyncio.to_thread(self._server.stop, signal.SIGKILL)
                await asyncio.to_thread(self._server.start)
                self.kills += 1

    async def _forget(self) -> None:
        """Push everything out of the history that the witness has seen."""
        now = await self._seen_by_the_witness()
        self._ballast += 1
        self._marks.forgotten = math.inf
        path = f"/api/v1/namespaces/{NAMESPACES[0]}/configmaps"
        filler = "A" * BALLAST_SIZE
        for number in range(BALLAST):
            meta = {"name": f"b{self._ballast}-{number}"}
            await self._client.request("POST", path, msgspec.json.encode({"metadata": meta, "data": {"f": filler}}))
        await self._client.request("DELETE", path)
        # What it has not come past by then may be forgotten for it too; and nobody else tells what follows.
        after = await self._seen_by_the_witness()
        self._marks.forgotten = after
        self._quiet.append((now, after))
        for watcher in self.watchers[1:]:
            watcher.look_back = True

    async def _seen_by_the_witness(self) -> int:
        """Wait until the witness has seen the newest revision, and return it."""
        now = await self._revision()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while self._witness.reached < now:
                await asyncio.sleep(0.01)
        return now

    async def _revision(self) -> int:
        answer = await self._client.list(Namespace)
        return int(answer.metadata.resource_version)


async def test_every_watch_delivers_every_change_once_and_in_order(server: ApiServer) -> None:
    async with Client(Kubeconfig.load(server.kubeconfig)) as client:
        run = Run(server, client, seed=random.randrange(1 << 30))
        evidence = await run.run()
    assert find_violations(evidence) == []
    assert not [watcher.wrongly_expired for watcher in run.watchers if watcher.wrongly_expired]
    events = sum(len(session.seen) for session in evidence.sessions)
    expired = sum(watcher.expired for watcher in run.watchers)
    assert run.acknowledged >= EVENTS
    assert events > EVENTS
    assert run.kills > 0
    assert expired > 0
    sys.stdout.write(
        f"{run.acknowledged} acknowledged writes, {events} entries of {len(evidence.sessions)} watches,"
        f" {len(evidence.snapshots)} lists, {expired} times expired, {run.kills} kills\n"
    )
