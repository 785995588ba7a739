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
from tests.unit.node_agent.examples import NOW, UID, make_container, make_pod, make_sandbox
from tests.unit.node_agent.fake_host import FakeHost, fake_host

WEB = make_pod()
DEAD = [make_container(WEB, state="exited", restarts=number, ended=90 - number) for number in range(4)]
DEFAULT = ContainerPolicy()


def removed_ids(
    containers: list[RuntimeContainer], policy: ContainerPolicy = DEFAULT, pods: tuple[str, ...] = (UID,)
) -> list[str]:
    return [container.id for container in containers_to_remove(containers, policy, NOW, pods)]


def test_newest_dead_container_is_kept() -> None:
    assert removed_ids([make_sandbox(), make_container(WEB, restarts=4), *DEAD]) == ["main-2", "main-1", "main-0"]
    assert removed_ids([make_sandbox(), *DEAD]) == ["main-2", "main-1", "main-0"]
    assert removed_ids([make_sandbox(), *DEAD], ContainerPolicy(per_container=3)) == ["main-0"]


def test_recently_ended_container_is_kept() -> None:
    assert removed_ids([make_sandbox(), *DEAD], ContainerPolicy(min_age=timedelta(seconds=89))) == ["main-1", "main-0"]


def test_unstarted_and_running_containers_are_kept() -> None:
    never_started = make_container(WEB, state="created", restarts=9)
    assert (
        removed_ids([make_sandbox(), never_started, make_container(WEB, restarts=8), make_container(WEB, restarts=7)])
        == []
    )


def test_containers_of_pods_without_a_worker_are_left_to_the_sweep() -> None:
    assert removed_ids([make_sandbox(), *DEAD], pods=()) == []


def test_older_sandbox_without_containers_is_removed() -> None:
    older = make_sandbox(0, "exited", "0ld")
    newest = make_sandbox(1, "exited")
    inside = make_container(WEB, state="exited", inside="0ld", restarts=1)
    assert removed_ids([newest, older]) == ["0ld"]
    assert removed_ids([newest, older, inside]) == []
    assert removed_ids([newest, older, inside, make_container(WEB, state="exited", restarts=2)]) == [inside.id, "0ld"]
    assert removed_ids([newest, replace(older, state="running")]) == []


async def attached_sandbox(host: FakeHost, attempt: int) -> str:
    identity = await host.docker.create(sandbox_config(make_pod(), "pause", attempt, host.host))
    request = AttachRequest(sandbox=identity, netns="/proc/1/ns/net", namespace="red", name="web", runtime=NODE_AGENT)
    await host.network.attach(request)
    return identity


async def test_only_sandboxes_missing_in_docker_are_detached(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        lost_sandbox, remaining_sandbox = await attached_sandbox(host, 0), await attached_sandbox(host, 1)
        await host.docker.remove(lost_sandbox)
        await SandboxGC(host.docker, host.network).collect()
        assert host.switch.attached == {remaining_sandbox}


async def test_sandbox_created_meanwhile_is_not_detached(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        lost_sandbox = await attached_sandbox(host, 0)
        await host.docker.remove(lost_sandbox)
        created: list[str] = []

        async def make_another() -> None:
            identity = await host.docker.create(sandbox_config(make_pod(), "pause", 1, host.host))
            created.append(identity)
            host.switch.attached.add(identity)

        host.switch.while_listing = make_another
        await SandboxGC(host.docker, host.network).collect()
        assert host.switch.attached == set(created)


async def test_nothing_is_detached_while_docker_is_unreachable(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        identity = await attached_sandbox(host, 0)
        host.docker.trouble = NotReady("Docker does not answer")
        with pytest.raises(NotReady):
            await SandboxGC(host.docker, host.network).collect()
        assert host.switch.attached == {identity}
