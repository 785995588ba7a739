"""Sets up, updates and tears down the volumes of a pod."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from api.core.node import Node
from api.core.pod import Pod, PodSpec
from api.core.references import pod_refs, volume_refs
from api.core.volumes import Volume
from api.meta.types import ObjectMeta
from node_agent.event_recorder import PodEvents
from node_agent.host import HostInfo, pod_dir
from node_agent.object_cache import NotSynced, ObjectCache
from node_agent.runtime.pod_files import make_pod_dir
from node_agent.volumes.paths import claim_paths, claimed_volumes, is_read_only, local_path, resolve_claim, tmpfs_size
from node_agent.volumes.payload import (
    PayloadSources,
    fs_group,
    has_payload,
    payload_files,
    projected_tokens,
    trusts_volume_root,
)
from node_agent.volumes.setup import VolumeSetup, is_set_up, remove_directory, set_up_volume, tear_down_volumes
from node_agent.volumes.tokens import TokenCache
from reconcile.backoff import Backoff
from reconcile.errors import DriverError

SETUP_BACKOFF = Backoff(0.5, 122.0)
"""Seconds between attempts to set up a volume (kubelet: goroutinemap/exponentialbackoff)."""

_MOUNT_THREADS = ThreadPoolExecutor(16, thread_name_prefix="mount")
"""Threads for mounts only, so that an unreachable file server does not block other work."""


_OWNERSHIP_THREADS = ThreadPoolExecutor(4, thread_name_prefix="ownership")
"""Threads for local volumes, whose files get the group of a pod: a project with many files delays no other mounts."""


class SetupResult(NamedTuple):
    """The result of setting up a pod's volumes.

    `message` states why containers cannot start yet, and is empty if they can. `retry_at` is the time of the next
    attempt without another change, None if none is needed.
    """

    message: str
    retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Failure:
    """The last failure to set up a volume. `count` is the number of failures in a row."""

    count: int
    retry_at: datetime
    message: str


@dataclass(frozen=True, slots=True)
class _VolumeInputs:
    """Everything that a volume is set up from. A volume that is set up is not touched while its inputs stay the same.

    `volume` has the source of its claim's PersistentVolume, with these mount options.
    """

    volume: Volume
    mount_options: tuple[str, ...]
    metadata: ObjectMeta
    spec: PodSpec
    sources: PayloadSources


class VolumeManager:
    """The volumes of one pod. Their state is on the host only, so that nothing is lost when the agent restarts."""

    def __init__(
        self,
        uid: str,
        objects: ObjectCache,
        tokens: TokenCache,
        host: HostInfo,
        events: PodEvents,
        node: Callable[[], Node | None],
    ) -> None:
        self._uid = uid
        self._objects = objects
        self._tokens = tokens
        self._host = host
        self._events = events
        self._node = node
        self._directory = pod_dir(host, uid)
        self._failures: dict[str, _Failure] = {}
        """Last failure by volume name."""
        self._set_up_inputs: dict[str, _VolumeInputs] = {}
        """Inputs of the volumes that are set up, by volume name."""

    async def prepare_for_start(self, pod: Pod) -> None:
        """Prepare the volumes, because a container of the pod is about to start. Raises NotReady.

        Create the pod's directory, and wait at most FIRST_SYNC_SECONDS for the objects that the pod refers to. The next
        `set_up` checks all volumes on the host.
        """
        self._set_up_inputs.clear()
        await asyncio.to_thread(make_pod_dir, self._host, self._uid)
        self._request_objects(pod)
        await self._objects.wait_until_synced(pod_refs(pod))

    async def set_up(self, pod: Pod, now: datetime, defer_tokens: bool = False) -> SetupResult:
        """Set up or update every volume that can be. A volume that cannot be updated stays as it is.

        `defer_tokens` skips volumes that need tokens and for which everything else is known.
        """
        self._request_objects(pod)
        messages = []
        for volume in pod.spec.volumes:
            if defer_tokens and self._lacks_only_tokens(volume, pod):
                continue
            message = await self._try_set_up(volume, pod, now)
            if message:
                messages.append(message)
        retry_at = min((failure.retry_at for failure in self._failures.values()), default=None)
        return SetupResult(messages[0] if messages else "", retry_at)

    async def tear_down(self) -> None:
        """Remove the volumes with their content, because no container of the pod will run again. Raises NotReady."""
        self._release_objects()
        await asyncio.get_running_loop().run_in_executor(_MOUNT_THREADS, tear_down_volumes, Path(self._directory))

    async def remove(self) -> None:
        """Remove the pod's directory from the host. Raises NotReady while a mount in it is in use."""
        self._release_objects()
        await asyncio.get_running_loop().run_in_executor(_MOUNT_THREADS, remove_directory, Path(self._directory))

    def with_claims_resolved(self, pod: Pod) -> Pod:
        """Return the pod with the sources of its claims' PersistentVolumes, as they were set up."""
        volumes = tuple(
            self._set_up_inputs[volume.name].volume if volume.name in self._set_up_inputs else volume
            for volume in pod.spec.volumes
        )
        return replace(pod, spec=replace(pod.spec, volumes=volumes))

    def _request_objects(self, pod: Pod) -> None:
        """Request the objects that the pod refers to, and the PersistentVolumes of its claims."""
        references = pod_refs(pod)
        volumes = frozenset(claimed_volumes(self._objects.get_synced(references)))
        self._objects.set_needed(self._uid, references | volumes)

    def _release_objects(self) -> None:
        self._set_up_inputs.clear()
        self._objects.set_needed(self._uid, ())
        self._tokens.forget(self._uid)

    def _lacks_only_tokens(self, volume: Volume, pod: Pod) -> bool:
        """Return whether a volume needs tokens, has not failed before, and everything else in it is known."""
        tokens = projected_tokens(volume)
        if not tokens or volume.name in self._failures:
            return False
        try:
            objects = self._objects.get(volume_refs(volume, pod.metadata.namespace))
            payload_files(volume, pod, PayloadSources(objects, self._host.allocatable, dict.fromkeys(tokens, "")))
        except DriverError:
            return False
        return True

    async def _try_set_up(self, volume: Volume, pod: Pod, now: datetime) -> str:
        """Set up a volume unless it is in back-off. Return why containers cannot start, or an empty string.

        A volume of files has no back-off, because its objects are in memory. Only its events wait.
        """
        previous = self._failures.get(volume.name)
        if previous is not None and now < previous.retry_at and not has_payload(volume):
            return previous.message
        try:
            await self._set_up_volume(volume, pod)
        except NotSynced as error:
            message = str(error)
        except DriverError as error:
            message = f'MountVolume.SetUp failed for volume "{volume.name}" : {error}'
            self._record_failure(volume, message, now)
        else:
            self._failures.pop(volume.name, None)
            return ""
        return "" if self._has_files(volume) else message

    async def _set_up_volume(self, pod_volume: Volume, pod: Pod) -> None:
        volume, mount_options = self._resolve_claim(pod_volume, pod.metadata.namespace)
        sources = await self._payload_sources(volume, pod)
        inputs = _VolumeInputs(volume, mount_options, pod.metadata, pod.spec, sources)
        if self._set_up_inputs.get(volume.name) == inputs:
            return
        self._set_up_inputs.pop(volume.name, None)
        files = payload_files(volume, pod, sources) if has_payload(volume) else None
        details = VolumeSetup(
            None if local_path(volume) and is_read_only(volume) else fs_group(pod),
            files,
            tmpfs_size(volume, pod, self._host.memory),
            mount_options,
            trusts_volume_root(pod),
        )
        threads = _OWNERSHIP_THREADS if local_path(volume) else None if volume.nfs is None else _MOUNT_THREADS
        set_up = partial(set_up_volume, volume, self._directory, details)
        await asyncio.get_running_loop().run_in_executor(threads, set_up)
        self._set_up_inputs[volume.name] = inputs

    def _resolve_claim(self, volume: Volume, namespace: str) -> tuple[Volume, tuple[str, ...]]:
        """Return the volume with the source of its claim's PersistentVolume, and the mount options."""
        if volume.persistent_volume_claim is None:
            return volume, ()
        claims = self._objects.get(volume_refs(volume, namespace))
        return resolve_claim(volume, namespace, {**claims, **self._objects.get(claimed_volumes(claims))}, self._node())

    async def _payload_sources(self, volume: Volume, pod: Pod) -> PayloadSources:
        # Tokens first, because the objects arrive from the API server during the requests for tokens.
        tokens = {token: await self._tokens.get(pod, token) for token in projected_tokens(volume)}
        references = volume_refs(volume, pod.metadata.namespace) if has_payload(volume) else ()
        return PayloadSources(self._objects.get(references), self._host.allocatable, tokens)

    def _has_files(self, volume: Volume) -> bool:
        """Return whether a volume of files was set up before, so that containers can start with its old files."""
        return has_payload(volume) and is_set_up(volume, self._directory)

    def _record_failure(self, volume: Volume, message: str, now: datetime) -> None:
        """Count a failure and record an event, unless the attempt came before the end of the back-off."""
        previous = self._failures.get(volume.name)
        if previous is not None and now < previous.retry_at:
            return
        count = previous.count + 1 if previous is not None else 1
        delay = timedelta(seconds=SETUP_BACKOFF.delay(count))
        self._failures[volume.name] = _Failure(count, now + delay, message)
        self._events.record("FailedMount", message)


def mounted_claims(objects: ObjectCache, host: HostInfo, node: Callable[[], Node | None], pod: Pod) -> dict[str, str]:
    """Return the directories of a pod's volumes that are persistent volume claims, by volume name.

    Claims that the API server has not reported yet are missing.
    """
    claims = objects.get_synced(pod_refs(pod))
    volumes = objects.get_synced(claimed_volumes(claims))
    return claim_paths(pod, {**claims, **volumes}, pod_dir(host, pod.metadata.uid), node())
