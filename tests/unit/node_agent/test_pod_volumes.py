"""A pod and its volumes against a Docker in memory: what it waits for, what it sees, what is left."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from msgspec.structs import replace

from api.configuration import ConfigMap
from api.objects import ObjectMeta
from tests.fakes import AgentKilled
from tests.unit.node_agent.make import pod
from tests.unit.node_agent.test_pod_worker import World, world

SETTINGS = ConfigMap(metadata=ObjectMeta(name="settings", namespace="red"), data={"a": "1"})
NEWER = replace(SETTINGS, data={"a": "2"})
FILES = pod(
    "[{name: main, image: toolbox, volumeMounts: [{name: v, mountPath: /v}]}]",
    "  terminationGracePeriodSeconds: 0\n"
    "  volumes: [{name: v, configMap: {name: settings}},\n"
    "    {name: w, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]",
)


def text(here: World) -> str:
    """What the container reads."""
    (bind, *_) = here.docker.spec_of(here.docker.find("main")[-1]).binds
    source, target, options = bind.split(":")
    assert (target, options) == ("/v", "ro")
    return Path(source, "a").read_text()


def mount_events(here: World) -> list[str]:
    return [message for reason, message, _ in here.told if reason == "FailedMount"]


async def test_a_pod_waits_for_what_it_refers_to_and_tells_why(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here:
        await here.live(FILES, lambda: bool(mount_events(here)))
        words = 'MountVolume.SetUp failed for volume "v" : configmap "settings" not found'
        assert set(mount_events(here)) == {words}
        waiting = here.status.container_statuses[0].state.waiting
        assert waiting is not None
        assert (here.status.phase, waiting.reason, waiting.message) == ("Pending", "ContainerCreating", words)
        assert not here.docker.held, "not even a sandbox"
        here.objects.put(SETTINGS)
        await here.live(FILES, lambda: here.status.phase == "Running")
        assert text(here) == "1"


async def test_files_follow_their_object_while_the_pod_runs(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here:
        here.objects.put(SETTINGS)
        await here.live(FILES, lambda: here.status.phase == "Running")
        changing = asyncio.create_task(here.live(FILES, lambda: text(here) == "2"))
        here.objects.put(NEWER)
        await changing
        assert not mount_events(here)
        here.objects.drop(SETTINGS)
        await here.live(FILES, lambda: bool(mount_events(here)))
        assert text(here) == "2", "what runs keeps what it has"
        assert here.restarts() == [0]


async def _comes_changes_and_goes(here: World) -> None:
    async def settings(item: ConfigMap) -> None:
        here.objects.put(item)

    if not here.gone:
        await here.once("made", lambda: settings(SETTINGS))
        await here.once("runs", lambda: here.live(FILES, lambda: here.status.phase == "Running"))
        await here.once("changed", lambda: settings(NEWER))
        await here.once("seen", lambda: here.live(FILES, lambda: text(here) == "2"))
        await here.live(FILES, lambda: here.gone, leave=True)


async def test_an_agent_killed_anywhere_leaves_no_volume(tmp_path: Path) -> None:
    async with world(tmp_path / "whole") as here:
        await _comes_changes_and_goes(here)
        whole, calls = here.left(), here.docker.calls
    assert whole["directories"] == []
    assert calls > 5
    for number in range(1, calls + 1):
        async with world(tmp_path / str(number)) as here:
            here.docker.die_after = number
            with contextlib.suppress(AgentKilled):
                await _comes_changes_and_goes(here)
            here.docker.die_after = None
            await _comes_changes_and_goes(here)
            assert here.left() == whole, f"killed after call {number} of {calls}"
