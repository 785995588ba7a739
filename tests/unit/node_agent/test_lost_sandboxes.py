"""A sandbox that went while nobody could say so leaves nothing in the network; one that is just being made stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.network.attach import NODE_AGENT, AttachRequest
from node_agent.runtime.container_gc import SandboxGC
from node_agent.runtime.spec import sandbox_config
from reconcile.errors import NotReady
from tests.unit.node_agent.make import pod
from tests.unit.node_agent.test_pod_worker import World, world


async def attached_sandbox(here: World, attempt: int) -> str:
    identity = await here.docker.create(sandbox_config(pod(), "pause", attempt, here.host))
    request = AttachRequest(sandbox=identity, netns="/proc/1/ns/net", namespace="red", name="web", runtime=NODE_AGENT)
    await here.network.attach(request)
    return identity


async def test_only_what_docker_no_longer_has_is_detached(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here:
        lost, stays = await attached_sandbox(here, 0), await attached_sandbox(here, 1)
        await here.docker.remove(lost)
        await SandboxGC(here.docker, here.network).collect()
        assert here.switch.attached == {stays}


async def test_a_sandbox_that_is_made_meanwhile_stays(tmp_path: Path) -> None:
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


async def test_while_docker_is_away_nothing_is_detached(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here:
        identity = await attached_sandbox(here, 0)
        here.docker.trouble = NotReady("Docker does not answer")
        with pytest.raises(NotReady):
            await SandboxGC(here.docker, here.network).collect()
        assert here.switch.attached == {identity}
