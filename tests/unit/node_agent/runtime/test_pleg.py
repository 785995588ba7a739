"""The requests to Docker about a pod, and the use of the cached containers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from node_agent.runtime.container import ATTEMPT, POD_UID, ContainerEvent, RuntimeContainer
from node_agent.runtime.pleg import PodCache
from node_agent.runtime.spec import ContainerConfig
from reconcile.errors import NotReady
from tests.testbed.docker.fake import FakeDocker
from tests.unit.node_agent.examples import UID, make_pod
from tests.unit.node_agent.fake_host import fake_host
from tests.unit.node_agent.one_node import until_true


async def container(docker: FakeDocker) -> str:
    identity = await docker.create(ContainerConfig("box", "pause", {POD_UID: UID, ATTEMPT: "0"}))
    await docker.start(identity)
    return identity


async def test_docker_is_queried_once_until_an_event() -> None:
    docker = FakeDocker("pause")
    cache = PodCache(docker)
    identity = await container(docker)
    before = docker.calls
    first, second = await cache.get(UID), await cache.get(UID)
    assert first is second
    assert docker.calls == before + 1
    docker.end(identity, 3)
    cache.invalidate(UID)
    [sandbox] = (await cache.get(UID)).all
    assert sandbox.exit_code == 3


async def test_failed_docker_query_is_repeated() -> None:
    docker = FakeDocker("pause")
    cache = PodCache(docker)
    await container(docker)
    docker.trouble = NotReady("away")
    with pytest.raises(NotReady):
        await cache.get(UID)
    docker.trouble = None
    assert (await cache.get(UID)).all


class SlowDocker(FakeDocker):
    """A Docker that has read the containers of a pod when `read` is set, and returns them when `returns` is set."""

    def __init__(self, *images: str) -> None:
        super().__init__(*images)
        self.read, self.returns = asyncio.Event(), asyncio.Event()

    async def list_pod_containers(self, uid: str) -> list[RuntimeContainer]:
        answer = await super().list_pod_containers(uid)
        self.read.set()
        await self.returns.wait()
        return answer


async def test_event_during_a_docker_query_is_not_missed() -> None:
    docker = SlowDocker("pause")
    cache = PodCache(docker)
    identity = await container(docker)
    reading = asyncio.create_task(cache.get(UID))
    await docker.read.wait()
    docker.end(identity, 3)
    cache.invalidate(UID)
    docker.returns.set()
    [old] = (await reading).all
    [new] = (await cache.get(UID)).all
    assert (old.running, new.running) == (True, False)


async def test_event_about_a_state_that_was_read_already_causes_no_request() -> None:
    docker = FakeDocker("pause")
    cache = PodCache(docker)
    identity = await container(docker)
    await cache.get(UID)
    before = docker.calls
    cache.apply_event(ContainerEvent("start", identity, UID))
    assert (await cache.get(UID)).all[0].running
    assert docker.calls == before
    docker.end(identity, 3)
    cache.apply_event(ContainerEvent("die", identity, UID))
    assert (await cache.get(UID)).all[0].exited
    assert docker.calls == before + 1
    cache.apply_event(ContainerEvent("die", identity, UID))
    await cache.get(UID)
    assert docker.calls == before + 1
    for action in ("start", "oom", "destroy"):
        cache.apply_event(ContainerEvent(action, identity, UID))
        await cache.get(UID)
    assert docker.calls == before + 4
    await docker.remove(identity)
    cache.apply_event(ContainerEvent("destroy", identity, UID))
    assert not (await cache.get(UID)).all
    before = docker.calls
    cache.apply_event(ContainerEvent("destroy", identity, UID))
    cache.apply_event(ContainerEvent("destroy", identity, "another pod"))
    await cache.get(UID)
    assert docker.calls == before


async def test_event_during_a_docker_query_is_compared_with_its_result() -> None:
    docker = SlowDocker("pause")
    cache = PodCache(docker)
    identity = await container(docker)
    before = docker.calls
    reading = asyncio.create_task(cache.get(UID))
    await docker.read.wait()
    cache.apply_event(ContainerEvent("start", identity, UID))
    docker.returns.set()
    assert (await reading).all[0].running
    await cache.get(UID)
    assert docker.calls == before + 1, "the start was known"
    docker.end(identity, 3)
    cache.apply_event(ContainerEvent("die", identity, UID))
    docker.read.clear()
    docker.returns.clear()
    reading = asyncio.create_task(cache.get(UID))
    await docker.read.wait()
    await docker.start(identity)
    cache.apply_event(ContainerEvent("start", identity, UID))
    docker.returns.set()
    assert not (await reading).all[0].running
    assert (await cache.get(UID)).all[0].running


async def test_relist_reports_changes_without_events() -> None:
    docker = FakeDocker("pause")
    cache = PodCache(docker)
    identity = await container(docker)
    assert not cache.differs(UID, {}), "nothing was read yet: the next get reads all there is"
    await cache.get(UID)
    assert not cache.differs(UID, {identity: "running"})
    assert cache.differs(UID, {identity: "exited"})
    assert cache.differs(UID, {})
    cache.invalidate(UID)
    assert not cache.differs(UID, {})


async def test_relist_finds_a_change_without_an_event(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "host") as host:
        worker = host.worker(make_pod())
        pleg = host.pleg(worker)
        tasks = [
            asyncio.create_task(pleg.watch_events()),
            asyncio.create_task(worker.run()),
        ]
        try:
            await until_true(lambda: host.docker.running("main"))
            await until_true(lambda: host.cache.differs(UID, {}))
            container = host.docker.running("main")
            assert container is not None
            host.docker.quiet = True
            host.docker.end(container.id, 1)
            host.docker.quiet = False
            await pleg.relist()
            await until_true(lambda: host.restarts() == [1])
            await until_true(lambda: [status.restart_count for status in host.status.container_statuses] == [1])
        finally:
            for task in tasks:
                task.cancel()


async def test_container_started_after_a_pull_is_seen_without_an_event(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        host.docker.images.remove("toolbox")
        host.docker.pulls["toolbox"] = None
        host.docker.quiet = True
        await host.live(make_pod(), lambda: host.status.phase == "Running")
