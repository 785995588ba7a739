"""A master killed while it is written to: what it had acknowledged is there again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.client import Client, ClientError
from api.kubeconfig import Kubeconfig
from api.objects import Namespace, ObjectMeta
from tests.contract.apiserver import ApiServer

WRITERS, KILLS = 8, 5


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    one = ApiServer(tmp_path)
    one.start()
    yield one
    one.stop()


async def _write(kubeconfig: Kubeconfig, writer: int, acknowledged: dict[str, str]) -> None:
    async with Client(kubeconfig) as client:
        number = 0
        while True:
            name = f"w{writer}-{number}"
            number += 1
            try:
                made = await client.create(Namespace(metadata=ObjectMeta(name=name)))
            except ClientError:
                return
            acknowledged[name] = made.metadata.uid


async def test_no_acknowledged_write_is_lost(server: ApiServer) -> None:
    kubeconfig = Kubeconfig.load(server.kubeconfig)
    known: dict[str, str] = {}
    newest = 0
    for _ in range(KILLS):
        fresh: dict[str, str] = {}
        writers = [
            asyncio.create_task(_write(kubeconfig, len(known) * 10 + number, fresh)) for number in range(WRITERS)
        ]
        while len(fresh) < 20:
            await asyncio.sleep(0.001)
        server.stop(signal.SIGKILL)
        await asyncio.gather(*writers)
        known |= fresh
        server.start()
        async with Client(kubeconfig) as client:
            listed = await client.list(Namespace)
        found = {one.metadata.name: one.metadata.uid for one in listed.items}
        assert known.items() <= found.items()
        assert len(set(found.values())) == len(found)
        assert newest < int(listed.metadata.resource_version), "revisions only grow"
        newest = int(listed.metadata.resource_version)
    assert len(known) >= KILLS * 20
