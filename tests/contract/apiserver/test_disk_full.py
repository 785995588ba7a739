"""A full disk: acknowledged writes stay, rejected ones change nothing, and free space alone resumes writing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from api.client.client import ApiError, Client
from api.client.kubeconfig import Kubeconfig
from api.core.node import Namespace
from api.meta.types import ObjectMeta
from lab.process import run
from master.resources.scheme import STORED_TYPES, group_resource
from master.storage.sqlite import SQLiteStorage
from master.storage.watch_cache import HistoryLimits
from reconcile.errors import NotReady
from tests.testbed.apiserver.changes import delete, put
from tests.testbed.apiserver.process import ApiServer

NAMESPACES = group_resource(Namespace)

SIZE = "3m"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory on a small filesystem."""
    directory = tmp_path / "disk"
    directory.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(directory))
    yield directory
    run("umount", str(directory))


def _fill(directory: Path) -> Path:
    """Create a file that takes the remaining space."""
    ballast = directory / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return ballast


def _namespace(name: str, size: int = 0) -> Namespace:
    return Namespace(metadata=ObjectMeta(name=name, annotations={"filler": "x" * size}))


async def _write_all(store: SQLiteStorage, acknowledged: list[str]) -> None:
    for number in range(10_000):
        await store.write(put(_namespace(f"a{number}", 2000), expect=0))
        acknowledged.append(f"a{number}")


async def test_store_on_a_full_disk_rejects_writes_and_keeps_acknowledged_ones(disk: Path) -> None:
    keep = HistoryLimits(events=20)
    store = await SQLiteStorage.open(disk / "store.db", STORED_TYPES, keep)
    acknowledged: list[str] = []
    ballast = _fill(disk)
    with pytest.raises(NotReady, match="nothing was changed"):
        await _write_all(store, acknowledged)
    revision = store.revision
    # Many at once, some of more than one change: all are refused, and none leaves anything behind.
    writes = [
        store.write(put(_namespace(f"b{number}", 5000)), put(_namespace(f"c{number}", 5000))) for number in range(20)
    ]
    answers = await asyncio.gather(*writes, return_exceptions=True)
    assert {type(answer) for answer in answers} == {NotReady}
    assert [record.key.name for record in store.list_uncommitted(NAMESPACES)] == sorted(acknowledged)
    assert store.revision == revision
    await store.close()
    ballast.unlink()
    store = await SQLiteStorage.open(disk / "store.db", STORED_TYPES, keep)
    assert [record.key.name for record in store.list(NAMESPACES)] == sorted(acknowledged)
    assert store.revision == revision
    await store.close()


async def test_store_resumes_when_space_is_free_again(disk: Path) -> None:
    """Full and not full, again and again, without being opened anew; forgetting makes room, too."""
    store = await SQLiteStorage.open(disk / "store.db", STORED_TYPES, HistoryLimits(events=20))
    there: dict[str, int] = {}
    refused = 0
    for round_ in range(5):
        ballast = _fill(disk)
        for number in range(60):
            namespace = _namespace(f"a{number % 7}", 3000 + 100 * round_)
            try:
                (stored,) = await store.write(put(namespace))
                there[namespace.metadata.name] = int(stored.metadata.resource_version)
            except NotReady:
                refused += 1
        ballast.unlink()
        (stored,) = await store.write(put(_namespace("a0")))
        there["a0"] = int(stored.metadata.resource_version)
        assert {record.key.name: record.revision for record in store.list(NAMESPACES)} == there
    assert refused > 0
    await store.write(*(delete(record.object) for record in store.list(NAMESPACES)))
    await store.close()


async def test_master_on_a_full_disk_serves_reads_and_rejects_writes(disk: Path) -> None:
    server = ApiServer(disk)
    server.start()
    kubeconfig = Kubeconfig.load(server.kubeconfig)
    async with Client(kubeconfig) as client:
        await _make(client, "before")
        ballast = _fill(disk)
        with pytest.raises(ApiError) as refused:
            await _make_many(client)
        assert (refused.value.status.code, refused.value.status.reason) == (503, "ServiceUnavailable")
        assert refused.value.status.details is not None
        assert refused.value.status.details.retry_after_seconds == 1
        await _fail_until_not_ready(client)
        there = await _names(client)
        assert "before" in there
        assert f"filler-{len(there) - 2}" not in there
        ballast.unlink()
        await _make(client, "after")
        assert await client.request("GET", "/readyz/storage") == b"ok"
        there = await _names(client)
    ballast = _fill(disk)
    server.stop(signal.SIGKILL)
    ballast.unlink()
    server.start()
    async with Client(Kubeconfig.load(server.kubeconfig)) as client:
        assert await _names(client) == there
    assert server.stop() == 0


async def _fail_until_not_ready(client: Client) -> None:
    """Return when /readyz reports a failed write. A small write of the master may succeed between the two requests."""
    for _ in range(100):
        with pytest.raises(ApiError):
            await _make_many(client)
        if "[-]storage failed: reason withheld" in await _error_of(client, "/readyz"):
            return
    pytest.fail("/readyz reports no failed write")


async def _error_of(client: Client, path: str) -> str:
    """Return the error of a GET, empty if it succeeds."""
    try:
        await client.request("GET", path)
    except ApiError as error:
        return str(error)
    return ""


async def _make(client: Client, name: str, size: int = 0) -> None:
    document = {"metadata": {"name": name}, "data": {"filler": "x" * size}}
    await client.request("POST", CONFIG_MAPS, msgspec.json.encode(document))


async def _make_many(client: Client) -> None:
    for number in range(1000):
        await _make(client, f"filler-{number}", 20_000)


async def _names(client: Client) -> list[str]:
    document = msgspec.json.decode(await client.request("GET", CONFIG_MAPS))
    return [obj["metadata"]["name"] for obj in document["items"]]
