"""Sets up, updates and tears down the volumes of a pod."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from api.core.pod import Pod, PodSpec
from api.core.references import pod_refs, volume_refs
from api.core.volumes import Volume
from api.meta.types import ObjectMeta
from node_agent.event_recorder import PodEvents
from node_agent.host import HostInfo, pod_dir
from node_agent.object_cache import NotSynced, ObjectCache
from node_agent.runtime import pod_dir as directories
from node_agent.volumes import setup
from node_agent.volumes.paths import claim_paths, claimed_volumes, resolve_claim, tmpfs_size
from node_agent.volumes.payload import PayloadSources, fs_group, is_projected, payload_files, projected_tokens
from node_agent.volumes.tokens import TokenCache
from reconcile.backoff import Backoff
from reconcile.errors import DriverError

SETUP_BACKOFF = Backoff(0.5, 122.0)
"""Seconds between attempts to set up a volume (kubelet: goroutinemap/exponentialbackoff)."""

_MOUNTERS = ThreadPoolExecutor(16, thread_name_prefix="mount")
"""Threads of their own: a file server that is away must not hold up what has nothing to do with it."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """How often in a row a volume could not be set up, when the next attempt is due, and what was said."""

    count: int
    due: datetime
    words: str


@dataclass(frozen=True, slots=True)
class _VolumeInputs:
    """What a volume is made of: while all of it stays, there is nothing to be done for what has been set up.

    `volume` has the storage of its claim for its source, which is mounted with `options`.
    """

    volume: Volume
    options: tuple[str, ...]
    metadata: ObjectMeta
    spec: PodSpec
    material: PayloadSources


class VolumeManager:
    """Volumes of one pod. The host shows what is set up, so that nothing is lost when the agent restarts."""

    def __init__(
        self, uid: str, references: ObjectCache, tokens: TokenCache, host: HostInfo, events: PodEvents
    ) -> None:
        self._uid = uid
        self._references = references
        self._tokens = tokens
        self._host = host
        self._events = events
        self._directory = pod_dir(host, uid)
        self._failures: dict[str, _Failure] = {}
        self._made: dict[str, _VolumeInputs] = {}

    async def look_anew(self, pod: Pod) -> None:
        """Something of the pod is to start: whatever was made before, the next `set_up` looks at it on the host."""
        self._made.clear()
        await asyncio.to_thread(directories.make_pod_dir, self._host, self._uid)
        self._need(pod)
        await self._references.hear(pod_refs(pod))

    async def set_up(self, pod: Pod, now: datetime, but_tokens: bool = False) -> tuple[str, datetime | None]:
        """Make every volume that can be made; one that cannot be brought up to date stays as it was.

        One that has been made is touched only when what it is made of has changed. `but_tokens`: leave those for later
        that, as far as is known, lack nothing but tokens.

        Returns what containers still wait for, empty if nothing, and when to try again if nothing happens before.
        """
        self._need(pod)
        volumes = [one for one in pod.spec.volumes if not (but_tokens and self._lacks_only_tokens(one, pod))]
        lacking = [words for volume in volumes if (words := await self._attempt(volume, pod, now))]
        due = min((failure.due for failure in self._failures.values()), default=None)
        return (lacking[0] if lacking else ""), due

    def _need(self, pod: Pod) -> None:
        named = pod_refs(pod)
        self._references.need(self._uid, named | frozenset(claimed_volumes(self._references.known(named))))

    def _lacks_only_tokens(self, volume: Volume, pod: Pod) -> bool:
        """Whether all is known that the volume holds besides tokens, and it has not failed before."""
        tokens = projected_tokens(volume)
        if not tokens or volume.name in self._failures:
            return False
        try:
            found = self._references.found(volume_refs(volume, pod.metadata.namespace))
            payload_files(volume, pod, PayloadSources(found, self._host.allocatable, dict.fromkeys(tokens, "")))
        except DriverError:
            return False
        return True

    async def _attempt(self, volume: Volume, pod: Pod, now: datetime) -> str:
        """Why containers cannot start without this volume; empty when they can."""
        earlier = self._failures.get(volume.name)
        if earlier is not None and now < earlier.due and not is_projected(volume):
            return earlier.words
        try:
            await self._set_up(volume, pod)
        except NotSynced as error:
            words = str(error)
        except DriverError as error:
            words = f'MountVolume.SetUp failed for volume "{volume.name}" : {error}'
            self._count(volume, words, now)
        else:
            self._failures.pop(volume.name, None)
            return ""
        return "" if self._is_there(volume) else words

    async def forget(self) -> None:
        """The pod is gone: nothing of it is left on the host. Raises NotReady while something in it is in use."""
        self._let_go()
        await asyncio.get_running_loop().run_in_executor(_MOUNTERS, setup.remove_directory, Path(self._directory))

    async def take_down(self) -> None:
        """No container of the pod will run again: what it wrote into its volumes goes, and tokens leave the memory.

        Raises NotReady.
        """
        self._let_go()
        await asyncio.get_running_loop().run_in_executor(_MOUNTERS, setup.tear_down_volumes, Path(self._directory))

    def _let_go(self) -> None:
        """The pod needs no objects any more."""
        self._made.clear()
        self._references.need(self._uid, ())
        self._tokens.forget(self._uid)

    def with_storage(self, pod: Pod) -> Pod:
        """The pod with the storage of its claims for their sources, as it was set up."""
        volumes = tuple(
            self._made[volume.name].volume if volume.name in self._made else volume for volume in pod.spec.volumes
        )
        return replace(pod, spec=replace(pod.spec, volumes=volumes))

    async def _set_up(self, wished: Volume, pod: Pod) -> None:
        volume, options = self._with_storage(wished, pod.metadata.namespace)
        inputs = _VolumeInputs(volume, options, pod.metadata, pod.spec, await self._material(volume, pod))
        if self._made.get(volume.name) == inputs:
            return
        self._made.pop(volume.name, None)
        made = payload_files(volume, pod, inputs.material) if is_projected(volume) else None
        wish = setup.VolumeSetup(fs_group(pod), made, tmpfs_size(volume, pod, self._host.memory), options)
        threads = None if volume.nfs is None else _MOUNTERS
        set_up = partial(setup.set_up_volume, volume, self._directory, wish)
        await asyncio.get_running_loop().run_in_executor(threads, set_up)
        self._made[volume.name] = inputs

    def _with_storage(self, volume: Volume, namespace: str) -> tuple[Volume, tuple[str, ...]]:
        if volume.persistent_volume_claim is None:
            return volume, ()
        claims = self._references.found(volume_refs(volume, namespace))
        return resolve_claim(volume, namespace, {**claims, **self._references.found(claimed_volumes(claims))})

    async def _material(self, volume: Volume, pod: Pod) -> PayloadSources:
        # Tokens first: while they are on their way, the master tells of the objects.
        tokens = {token: await self._tokens.get(pod, token) for token in projected_tokens(volume)}
        named = volume_refs(volume, pod.metadata.namespace) if is_projected(volume) else ()
        return PayloadSources(self._references.found(named), self._host.allocatable, tokens)

    def _is_there(self, volume: Volume) -> bool:
        return is_projected(volume) and setup.is_set_up(volume, self._directory)

    def _count(self, volume: Volume, words: str, now: datetime) -> None:
        """Tell of a failure when an attempt was due; those that events brought about in between are not told."""
        earlier = self._failures.get(volume.name)
        if earlier is not None and now < earlier.due:
            return
        count = earlier.count + 1 if earlier is not None else 1
        delay = timedelta(seconds=SETUP_BACKOFF.delay(count))
        self._failures[volume.name] = _Failure(count, now + delay, words)
        self._events.record("FailedMount", words)


def mounted_claims(objects: ObjectCache, host: HostInfo, pod: Pod) -> dict[str, str]:
    """Return the directories of a pod's volumes that are persistent volume claims, by volume name.

    Claims that the API server has not reported yet are missing.
    """
    claims = objects.known(pod_refs(pod))
    volumes = objects.known(claimed_volumes(claims))
    return claim_paths(pod, {**claims, **volumes}, pod_dir(host, pod.metadata.uid))
