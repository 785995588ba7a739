"""Token volumes of running pods: a file is written once, and again after each renewal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from api.core.config import ConfigMap
from api.meta.types import ObjectMeta
from node_agent.host import HostInfo, pod_dir
from node_agent.object_cache import ROOT_CA, ObjectCache
from node_agent.volumes import mounts
from node_agent.volumes.manager import VolumeManager
from node_agent.volumes.paths import volume_dir
from tests.testbed.node.events import FakeEventRecorder
from tests.unit.node_agent.examples import NOW, UID, make_pod
from tests.unit.node_agent.object_server import ObjectServer
from tests.unit.node_agent.token_issuer import TokenIssuer

POD = make_pod(
    spec="  volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: token}},\n"
    f"    {{configMap: {{name: {ROOT_CA}}}}}]}}}}]"
)
ROOT = ConfigMap(metadata=ObjectMeta(name=ROOT_CA, namespace="red"), data={"ca.crt": "first"})


@pytest.fixture(autouse=True)
def nothing_stays_mounted(tmp_path: Path) -> Iterator[None]:
    yield
    mounts.unmount_all(tmp_path)


@asynccontextmanager
async def _tasks() -> AsyncIterator[Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]]:
    tasks = list[asyncio.Task[None]]()

    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(work))
        return tasks[-1]

    yield spawn
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_token_file_is_rewritten_only_when_the_token_is_renewed(tmp_path: Path) -> None:
    host, issuer, server = HostInfo(str(tmp_path / "pods"), 8 << 30, -1000), TokenIssuer(), ObjectServer()
    directory, fake_event_recorder = Path(volume_dir(pod_dir(host, UID), POD.spec.volumes[0])), FakeEventRecorder()
    server.put(ROOT)

    def held() -> tuple[str, str, str]:
        return (
            (directory / "token").read_text(),
            (directory / "ca.crt").read_text(),
            (directory / "..data").readlink().name,
        )

    async with issuer.tokens() as tokens, server.client() as client, _tasks() as spawn:
        references = ObjectCache(client, spawn, lambda _: None)
        volumes = VolumeManager(UID, references, tokens, host, fake_event_recorder.for_pod(POD), lambda: None)
        await volumes.prepare_for_start(POD)
        assert await volumes.set_up(POD, NOW, defer_tokens=True) == ("", None)
        assert not issuer.requests, "a token is all that is lacking"
        assert await volumes.set_up(POD, NOW) == ("", None)
        first = held()
        assert first[:2] == ("token-1", "first")

        issuer.now += timedelta(minutes=47)
        await volumes.prepare_for_start(POD)
        await volumes.set_up(POD, NOW)
        assert held() == first

        issuer.now += timedelta(minutes=2)
        await volumes.set_up(POD, NOW)
        assert held()[:2] == ("token-2", "first")
        await volumes.tear_down()
        assert not (Path(pod_dir(host, UID)) / "volumes").exists()
        assert not fake_event_recorder.events
