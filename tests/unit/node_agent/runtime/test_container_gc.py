"""Garbage collection of dead containers and sandboxes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from api.network.attach import NODE_AGENT, AttachRequest
from node_agent.runtime.container import RuntimeContainer
from node_agent.runtime.container_gc import ContainerPolicy, SandboxGC, containers_to_remove
from node_agent.runtime.spec import sandbox_config
from reconcile.errors import NotReady
from tests.unit.node_agent.examples import NOW, UID, container, pod, sandbox
from tests.unit.node_agent.world import World, world

WEB = pod()
DEAD = [container(WEB, state="exited", restarts=number, ended=90 - number) for number in range(4)]
DEFAULT = ContainerPolicy()


def going(
    found: list[RuntimeContainer], policy: ContainerPolicy = DEFAULT, pods: tuple[str, ...] = (UID,)
) -> list[str]:
    return [one.id for one in containers_to_remove(found, policy, NOW, pods)]


def test_newest_dead_container_is_kept() -> None:
    assert going([sandbox(), container(WEB, restarts=4), *DEAD]) == ["main-2", "main-1", "main-0"]
    assert going([sandbox(), *DEAD]) == ["main-2", "main-1", "main-0"]
    assert going([sandbox(), *DEAD], ContainerPolicy(per_container=3)) == ["main-0"]


def test_recently_ended_container_is_kept() -> None:
    assert going([sandbox(), *DEAD], ContainerPolicy(min_age=timedelta(seconds=89))) == ["main-1", "main-0"]


def test_unstarted_and_running_containers_are_kept() -> None:
    unborn = container(WEB, state="created", restarts=9)
    assert going([sandbox(), unborn, container(WEB, restarts=8), container(WEB, restarts=7)]) == []


def test_containers_of_pods_without_a_worker_are_left_to_the_sweep() -> None:
    assert going([sandbox(), *DEAD], pods=()) == []


def test_older_sandbox_without_containers_is_removed() -> None:
    older = sandbox(0, "exited", "0ld")
    newest = sandbox(1, "exited")
    inside = container(WEB, state="exited", inside="0ld", restarts=1)
    assert going([newest, older]) == ["0ld"]
    assert going([newest, older, inside]) == []
    assert going([newest, older, inside, container(WEB, state="exited", restarts=2)]) == [inside.id, "0ld"]
    assert going([newest, replace(older, state="running")]) == []


async def attached_sandbox(here: World, attempt: int) -> str:
    identity = await here.docker.create(sandbox_config(pod(), "pause", attempt, here.host))
    request = AttachRequest(sandbox=identity, netns="/proc/1/ns/net", namespace="red", name="web", runtime=NODE_AGENT)
    await here.network.attach(request)
    return identity


async def test_only_sandboxes_missing_in_docker_are_detached(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here:
        lost, stays = await attached_sandbox(here, 0), await attached_sandbox(here, 1)
        await here.docker.remove(lost)
        await SandboxGC(here.docker, here.network).collect()
        assert here.switch.attached == {stays}


async def test_sandbox_created_meanwhile_is_not_detached(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here:
        lost = await attached_sandbox(here, 0)
        await here.docker.remove(lost)
        made: list[str] = []

        async def make_another() -> None:
            identity = await here.docker.create(sandbox_config(pod(), "pause", 1, here.host))
            made.append(identity)
            here.switch.attached.add(identity)

        here.switch.while_listing = make_another
        await SandboxGC(here.docker, here.network).collect()
        assert here.switch.attached == set(made)


async def test_nothing_is_detached_while_docker_is_unreachable(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here:
        identity = await attached_sandbox(here, 0)
        here.docker.trouble = NotReady("Docker does not answer")
        with pytest.raises(NotReady):
            await SandboxGC(here.docker, here.network).collect()
        assert here.switch.attached == {identity}
