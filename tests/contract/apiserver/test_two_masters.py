"""Two masters with one stateDir: one of them serves, and no two namespaces ever get the same IDs."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from api.client.client import Client, Unreachable
from api.client.kubeconfig import Kubeconfig
from api.core.node import Namespace
from master.storage.revision_log import RevisionLog
from tests.testbed.apiserver.process import ApiServer

PREFIX = "openshift.io/sa.scc."
WRITERS = 8
MAX_NAMESPACES = 200
BEFORE_THE_KILL = 40
"""Namespaces that are created before the master is killed."""

IN_USE = "is in use by another process; one master at a time is accepted for a stateDir"


def second_master(root: Path) -> ApiServer:
    """Return another master with the stateDir of the one in `root`, and a port and a kubeconfig of its own."""
    (root / "second").mkdir(exist_ok=True)
    return ApiServer(root / "second", "--state-dir", str(root / "state"))


@pytest.fixture
def first(tmp_path: Path) -> Iterator[ApiServer]:
    server = ApiServer(tmp_path)
    server.start()
    yield server
    server.stop(signal.SIGKILL)


async def create(client: Client, name: str) -> None:
    body = msgspec.json.encode({"metadata": {"name": name}})
    await client.request("POST", "/api/v1/namespaces", body)


async def create_until(client: Client, names: Iterator[int], ended: Callable[[int], Awaitable[bool]]) -> int:
    """Create namespaces in parallel until `ended(number)` or until the master is gone. Return their number."""
    created = 0

    async def write() -> None:
        nonlocal created
        while not await ended(created):
            try:
                await create(client, f"n{next(names)}")
            except Unreachable:
                return
            created += 1

    await asyncio.gather(*(write() for _ in range(WRITERS)))
    return created


async def namespaces(client: Client) -> list[Namespace]:
    return list((await client.list(Namespace)).items)


def check_ids(found: list[Namespace]) -> None:
    """Check that user IDs, groups and SELinux levels belong to one namespace each."""
    for key in ("uid-range", "supplemental-groups", "mcs"):
        values = [namespace.metadata.annotations[PREFIX + key] for namespace in found]
        assert len(set(values)) == len(values) > WRITERS, key


async def test_second_master_does_not_start_and_the_next_one_gives_no_ids_twice(
    first: ApiServer, tmp_path: Path
) -> None:
    second, names = second_master(tmp_path), itertools.count()

    async def exited(number: int) -> bool:
        return loser.done() or number >= MAX_NAMESPACES

    async with Client(Kubeconfig.load(first.kubeconfig)) as client:
        second.launch()
        loser = asyncio.create_task(asyncio.to_thread(second.wait))
        assert await create_until(client, names, exited) > WRITERS
        assert await loser == 1
        assert IN_USE in second.log()
        assert not second.kubeconfig.exists()

        async def killed(number: int) -> bool:
            if number == BEFORE_THE_KILL:
                first.stop(signal.SIGKILL)
            return False

        assert await create_until(client, names, killed) >= BEFORE_THE_KILL
    second.start()
    try:
        async with Client(Kubeconfig.load(second.kubeconfig)) as client:
            before = await namespaces(client)
            check_ids(before)
            for namespace in before[:WRITERS]:
                if namespace.metadata.name.startswith("n"):
                    await client.request("DELETE", f"/api/v1/namespaces/{namespace.metadata.name}")

            async def enough(number: int) -> bool:
                return number >= BEFORE_THE_KILL

            await create_until(client, names, enough)
            after = await namespaces(client)
            check_ids(after)
            taken = {namespace.metadata.annotations[PREFIX + "uid-range"] for namespace in before}
            known = {namespace.metadata.uid for namespace in before}
            new = [namespace for namespace in after if namespace.metadata.uid not in known]
            assert len(new) >= BEFORE_THE_KILL
            assert not [each for each in new if each.metadata.annotations[PREFIX + "uid-range"] in taken]
    finally:
        second.stop(signal.SIGKILL)


def test_master_that_does_not_get_the_store_makes_no_keys(tmp_path: Path) -> None:
    """Of two masters that start at once in an empty stateDir, only the one with the store makes an authority."""
    server, state = ApiServer(tmp_path), tmp_path / "state"
    other = RevisionLog(state / "store.db")
    try:
        server.launch()
        assert server.wait() == 1
        assert IN_USE in server.log()
        assert [path.name for path in state.iterdir() if not path.name.startswith("store.db")] == []
    finally:
        other.close()
    server.start()
    try:
        assert (state / "pki" / "ca.key").exists()
    finally:
        server.stop(signal.SIGKILL)
