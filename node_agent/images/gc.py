"""Removes unused images when the disk is full or the images are old."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from node_agent.config import Settings
from node_agent.docker import client
from node_agent.docker.client import DockerClient, StoredImage
from node_agent.network.plugin import PodNetwork
from node_agent.runtime import container_gc, log_links
from node_agent.stats.disk import filesystem_stats
from reconcile.errors import DriverError, Gone, NotReady, Refused
from reconcile.loop import Loop, LoopTiming, containing_bugs

LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ImagePolicy:
    """From `high` percent of the file system in use, images go until it is no more than `low` percent.

    An image that came to the host less than `least_age` ago stays. One that has not been used for longer than
    `most_age` goes however much room there is, unless `most_age` is 0.
    """

    high: int = 85
    low: int = 80
    least_age: timedelta = timedelta(minutes=2)
    most_age: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class ImageUse:
    """When an image was first seen here, and when a container last had it (None: never)."""

    detected: datetime
    used: datetime | None = None


def update_uses(
    known: Mapping[str, ImageUse], images: Iterable[StoredImage], in_use: Collection[str], now: datetime
) -> dict[str, ImageUse]:
    """What is known of the images that are here now."""
    before = {image.id: known.get(image.id, ImageUse(now)) for image in images}
    return {name: ImageUse(use.detected, now) if name in in_use else use for name, use in before.items()}


def removable_images(
    images: Iterable[StoredImage],
    known: Mapping[str, ImageUse],
    pinned: Collection[str],
    policy: ImagePolicy,
    now: datetime,
) -> tuple[StoredImage, ...]:
    """Images that no container has, those first that have not been used for longest, or never.

    `known` is what `uses` says now; `pinned` are ids of images that stay.
    """
    free = [image for image in images if image.id not in pinned and known[image.id].used != now]
    old = [image for image in free if now - known[image.id].detected >= policy.least_age]
    return tuple(sorted(old, key=lambda image: (known[image.id].used or LONG_AGO, known[image.id].detected, image.id)))


def expired_images(
    removable: Iterable[StoredImage], known: Mapping[str, ImageUse], policy: ImagePolicy, now: datetime
) -> tuple[StoredImage, ...]:
    """Of the images that may go those that nobody has used for too long, or ever since they came."""
    if not policy.most_age:
        return ()
    return tuple(
        image for image in removable if now - (known[image.id].used or known[image.id].detected) > policy.most_age
    )


log = logging.getLogger(__name__)


def read_image_uses(path: Path) -> dict[str, ImageUse]:
    """By image id; nothing when there is no file, or none that can be read: then all images were detected just now."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, ImageUse])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        log.warning("the record of images begins anew", extra={"file": path, "error": error})
        return {}


def write_image_uses(path: Path, record: Mapping[str, ImageUse]) -> None:
    """The file is the old or the new one, never a part. Raises NotReady."""
    beside = path.with_suffix(".new")
    try:
        beside.write_bytes(msgspec.json.encode(record))
        os.replace(beside, path)
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror or error}") from None


CONTAINERS_SECONDS, IMAGES_SECONDS, LOGS_SECONDS = 60.0, 300.0, 60.0
GATHER_SECONDS = 0.5


class Housekeeping:
    """`pods` are the UIDs of pods that have a worker here; `loops` are to be run as long as the daemon lives.

    `tell` tells an event about the node (reason, message).
    """

    def __init__(
        self,
        settings: Settings,
        docker: DockerClient,
        network: PodNetwork,
        pods: Callable[[], frozenset[str]],
        tell: Callable[[str, str], None],
    ) -> None:
        self._docker = docker
        self._network = network
        self._pods = pods
        self._tell = tell
        self._image_failures = 0
        self._pause_image = settings.pause_image
        self._record = Path(settings.state_dir) / "images.json"
        self._logs = log_links.LogDirs(Path(settings.pod_logs_dir), Path(settings.container_logs_dir))
        self._container_policy = container_gc.ContainerPolicy(
            settings.maximum_dead_containers_per_container, timedelta(seconds=settings.minimum_container_ttl_seconds)
        )
        self._image_policy = ImagePolicy(
            settings.image_gc_high_threshold_percent,
            settings.image_gc_low_threshold_percent,
            timedelta(seconds=settings.image_minimum_gc_age_seconds),
            timedelta(seconds=settings.image_maximum_gc_age_seconds),
        )
        self._log_loop = Loop(
            "logs", containing_bugs("logs", self.link_logs), LoopTiming(resync=LOGS_SECONDS, debounce=GATHER_SECONDS)
        )
        self.loops = (
            self._log_loop,
            Loop(
                "dead containers",
                containing_bugs("garbage", self.remove_containers),
                LoopTiming(resync=CONTAINERS_SECONDS),
            ),
            Loop("images", containing_bugs("images", self.remove_images), LoopTiming(resync=IMAGES_SECONDS)),
        )

    def container_changed(self) -> None:
        """A container has started, ended or gone."""
        self._log_loop.wake()

    async def remove_containers(self) -> None:
        """Delete dead containers that nobody looks at any more. Raises DriverError."""
        found = await self._docker.all_containers()
        for one in container_gc.containers_to_remove(found, self._container_policy, _now(), self._pods()):
            log.info("removing a dead container", extra={"container": one.name, "uid": one.uid, "id": one.id[:12]})
            if one.is_sandbox:
                await self._network.detach(one.id)
            await self._docker.remove(one.id)

    async def remove_images(self) -> None:
        """Note which images are in use, and delete others: old ones, and when their disk is too full more of them.

        That it does not succeed is told when it is not for the first time. Raises DriverError.
        """
        try:
            trouble = await self._collect_images()
        except DriverError as error:
            self._count_failure(str(error))
            raise
        if trouble:
            self._tell("FreeDiskSpaceFailed", trouble)
            self._count_failure(trouble)
        else:
            self._image_failures = 0

    def _count_failure(self, trouble: str) -> None:
        self._image_failures += 1
        if self._image_failures > 1:
            self._tell("ImageGCFailed", trouble)

    async def _collect_images(self) -> str:
        """What was wrong, empty if the disk has room."""
        root, unused = await self._docker.root_dir(), await self._unused_images()
        known, policy = await asyncio.to_thread(read_image_uses, self._record), self._image_policy
        for image in (old := expired_images(unused, known, policy, _now())):
            await self._remove_image(image)
        before = await asyncio.to_thread(filesystem_stats, root)
        if before.percent_used < policy.high:
            return ""
        after = before
        for image in (one for one in unused if one not in old):
            await self._remove_image(image)
            after = await asyncio.to_thread(filesystem_stats, root)
            if after.percent_used <= policy.low:
                return ""
        log.warning("the disk of images is too full, and no unused image is left", extra={"path": root})
        wish, freed = before.excess(policy.low), max(after.available - before.available, 0)
        return (
            "Failed to garbage collect required amount of images. "
            f"Attempted to free {wish} bytes, but only found {freed} bytes eligible to free."
        )

    async def reclaim(self) -> None:
        """The disk is under pressure: everything goes that no pod needs. Raises DriverError."""
        await self.remove_containers()
        for image in await self._unused_images():
            await self._remove_image(image)

    async def _unused_images(self) -> tuple[client.StoredImage, ...]:
        images, now = await self._docker.stored_images(), _now()
        known = await asyncio.to_thread(read_image_uses, self._record)
        known = update_uses(known, images, await self._docker.images_in_use(), now)
        await asyncio.to_thread(write_image_uses, self._record, known)
        return removable_images(images, known, await self._pinned(), self._image_policy, now)

    async def _remove_image(self, image: client.StoredImage) -> None:
        words = {"image": " ".join(image.names) or image.id}
        try:
            await self._docker.remove_image(image)
            log.info("removed an unused image", extra=words)
        except Refused as error:
            log.warning("an image stays", extra={**words, "error": error})

    async def _pinned(self) -> frozenset[str]:
        try:
            return frozenset((await self._docker.image_id(self._pause_image),))
        except Gone:
            return frozenset()

    async def link_logs(self) -> None:
        """Link the logs of new containers, and unlink those of containers that are gone. Raises DriverError."""
        found = await self._docker.all_containers()
        present = await asyncio.to_thread(log_links.existing_links, self._logs)
        for one in log_links.missing_links(self._logs, found, present):
            await self._link(one.id)
        for link in log_links.stale_links(self._logs, found, present):
            await asyncio.to_thread(log_links.remove_dangling, self._logs, link)

    async def _link(self, identity: str) -> None:
        try:
            one = await self._docker.inspect(identity)
        except Gone:
            return
        if one.log_path:
            by_pod = log_links.pod_link(self._logs, one)
            # That by container first: it tells of the directories that are made for the other.
            await asyncio.to_thread(log_links.create_link, log_links.container_link(self._logs, one), by_pod)
            await asyncio.to_thread(log_links.create_link, by_pod, Path(one.log_path))


def _now() -> datetime:
    return datetime.now(UTC)
