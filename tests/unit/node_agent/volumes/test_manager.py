"""Volumes of a pod against a Docker in memory: waiting, contents and removal."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from api.core.config import ConfigMap
from api.core.storage import (
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeSpec,
)
from api.core.volumes import HostPathVolumeSource
from api.meta.types import ObjectMeta, ObjectReference
from node_agent.host import pod_dir
from node_agent.volumes.manager import VolumeManager
from node_agent.volumes.paths import volume_dir
from tests.testbed.docker.fake import AgentKilled
from tests.testbed.node.events import FakeEventRecorder
from tests.unit.node_agent.examples import NOW, UID, make_pod
from tests.unit.node_agent.fake_host import FakeHost, fake_host

SETTINGS = ConfigMap(metadata=ObjectMeta(name="settings", namespace="red"), data={"a": "1"})
NEWER = replace(SETTINGS, data={"a": "2"})
FILES = make_pod(
    "[{name: main, image: toolbox, volumeMounts: [{name: v, mountPath: /v}]}]",
    "  terminationGracePeriodSeconds: 0\n"
    "  volumes: [{name: v, configMap: {name: settings}},\n"
    "    {name: w, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]",
)


def text(host: FakeHost) -> str:
    """Return the content that the container reads."""
    (bind, *_) = host.docker.spec_of(host.docker.find("main")[-1]).binds
    source, target, options = bind.split(":")
    assert (target, options) == ("/v", "ro")
    return Path(source, "a").read_text()


def has_files(written: Path) -> bool:
    return (written / "a").exists()


def mount_events(host: FakeHost) -> list[str]:
    return [message for reason, message, _ in host.recorded_events if reason == "FailedMount"]


async def test_pod_waits_for_missing_volume_objects_with_a_reason(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        await host.live(FILES, lambda: bool(mount_events(host)))
        message = 'MountVolume.SetUp failed for volume "v" : configmap "settings" not found'
        assert set(mount_events(host)) == {message}
        state = host.status.container_statuses[0].state.waiting
        assert state is not None
        assert (host.status.phase, state.reason, state.message) == ("Pending", "ContainerCreating", message)
        assert not host.docker.held, "not even a sandbox"
        host.objects.put(SETTINGS)
        await host.live(FILES, lambda: host.status.phase == "Running")
        assert text(host) == "1"


async def test_pod_with_init_containers_waits_for_all_volumes(tmp_path: Path) -> None:
    first = replace(FILES.spec.containers[0], name="first")
    staged = replace(FILES, spec=replace(FILES.spec, init_containers=(first,)))
    async with fake_host(tmp_path / "w") as host:
        await host.live(staged, lambda: bool(mount_events(host)))
        statuses = (*host.status.init_container_statuses, *host.status.container_statuses)
        assert [status.state.waiting and status.state.waiting.reason for status in statuses] == ["PodInitializing"] * 2


async def test_volume_setup_is_retried_with_back_off(tmp_path: Path) -> None:
    pod = make_pod(spec=f"  volumes: [{{name: v, hostPath: {{path: {tmp_path}/none, type: File}}}}]")
    delays, now, recorder = [], NOW, FakeEventRecorder()
    async with fake_host(tmp_path / "w") as host:
        volumes = VolumeManager(UID, host.references, host.tokens, host.host, recorder.for_pod(pod), lambda: None)
        for _ in range(11):
            lacking, retry_at = await volumes.set_up(pod, now)
            assert "hostPath type check failed" in lacking
            assert retry_at is not None
            assert await volumes.set_up(pod, retry_at - timedelta(milliseconds=1)) == (lacking, retry_at)
            delays.append((retry_at - now).total_seconds())
            now = retry_at
        (tmp_path / "none").touch()
        assert await volumes.set_up(pod, now) == ("", None)
    assert delays == [0.5, 1, 2, 4, 8, 16, 32, 64, 122, 122, 122]
    assert [reason for reason, _, _ in recorder.events] == ["FailedMount"] * 11


async def test_volume_files_follow_their_object_while_the_pod_runs(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        host.objects.put(SETTINGS)
        await host.live(FILES, lambda: host.status.phase == "Running")
        changing = asyncio.create_task(host.live(FILES, lambda: text(host) == "2"))
        host.objects.put(NEWER)
        await changing
        assert not mount_events(host)
        host.objects.delete(SETTINGS)
        await host.live(FILES, lambda: bool(mount_events(host)))
        assert text(host) == "2", "what runs keeps what it has"
        assert host.restarts() == [0]


async def test_unchanged_volumes_are_not_set_up_until_a_container_starts(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        host.objects.put(SETTINGS)
        volumes = VolumeManager(
            UID, host.references, host.tokens, host.host, host.recorder.for_pod(FILES), lambda: None
        )
        await volumes.prepare_for_start(FILES)
        assert await volumes.set_up(FILES, NOW) == ("", None)
        written = Path(volume_dir(pod_dir(host.host, UID), FILES.spec.volumes[0]))
        shutil.rmtree(written)
        assert await volumes.set_up(FILES, NOW) == ("", None)
        assert not has_files(written)
        await volumes.prepare_for_start(FILES)
        assert await volumes.set_up(FILES, NOW) == ("", None)
        assert has_files(written)
        marked = replace(FILES, metadata=replace(FILES.metadata, labels={"a": "b"}))
        shutil.rmtree(written)
        assert await volumes.set_up(marked, NOW) == ("", None)
        assert has_files(written), "the pod itself has changed"


async def test_claim_volume_mounts_its_persistent_volume(tmp_path: Path) -> None:
    claim = PersistentVolumeClaim(
        metadata=ObjectMeta(name="data", namespace="red", uid="u1"),
        spec=PersistentVolumeClaimSpec(volume_name="disk"),
        status=PersistentVolumeClaimStatus(phase="Bound"),
    )
    spec = PersistentVolumeSpec(claim_ref=ObjectReference(uid="u1"), host_path=HostPathVolumeSource(path=str(tmp_path)))
    pod = make_pod(
        "[{name: main, image: toolbox, volumeMounts: [{name: v, mountPath: /v}]}]",
        "  terminationGracePeriodSeconds: 0\n"
        "  volumes: [{name: v, persistentVolumeClaim: {claimName: data, readOnly: true}}]",
    )
    async with fake_host(tmp_path / "w") as host:
        host.objects.put(replace(claim, status=PersistentVolumeClaimStatus(phase="Pending")))
        await host.live(pod, lambda: bool(mount_events(host)))
        assert "is not bound to a volume: it is Pending" in mount_events(host)[0]
        host.objects.put(claim)
        host.objects.put(PersistentVolume(metadata=ObjectMeta(name="disk"), spec=spec))
        await host.live(pod, lambda: host.status.phase == "Running")
        assert host.docker.spec_of(host.docker.find("main")[0]).binds[0] == f"{tmp_path}:/v:ro"
        assert sorted(host.objects.watched) == [
            "/api/v1/namespaces/red/persistentvolumeclaims?metadata.name=data",
            "/api/v1/persistentvolumes?metadata.name=disk",
        ]
        await host.live(pod, lambda: host.terminated, leave=True)


async def test_missing_token_delays_the_pod_with_a_reason(tmp_path: Path) -> None:
    pod = make_pod(spec="  volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: token}}]}}]")
    async with fake_host(tmp_path / "w") as host:
        await host.live(pod, lambda: bool(mount_events(host)))
        (message, *_) = mount_events(host)
        assert message.startswith('MountVolume.SetUp failed for volume "v" : token of serviceaccount "default": ')
        assert not host.docker.find("main"), "nothing but the sandbox, which is made in the meantime"


async def _set_up_change_and_remove(host: FakeHost) -> None:
    async def settings(config_map: ConfigMap) -> None:
        host.objects.put(config_map)

    if not host.terminated:
        await host.once("made", lambda: settings(SETTINGS))
        await host.once("runs", lambda: host.live(FILES, lambda: host.status.phase == "Running"))
        await host.once("changed", lambda: settings(NEWER))
        await host.once("seen", lambda: host.live(FILES, lambda: text(host) == "2"))
        await host.live(FILES, lambda: host.terminated, leave=True)


async def test_agent_killed_after_any_call_leaves_no_volume(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "whole") as host:
        await _set_up_change_and_remove(host)
        expected, calls = host.remaining(), host.docker.calls
    assert expected["directories"] == []
    assert calls > 5
    for number in range(1, calls + 1):
        async with fake_host(tmp_path / str(number)) as host:
            host.docker.die_after = number
            with contextlib.suppress(AgentKilled):
                await _set_up_change_and_remove(host)
            host.docker.die_after = None
            await _set_up_change_and_remove(host)
            assert host.remaining() == expected, f"killed after call {number} of {calls}"
