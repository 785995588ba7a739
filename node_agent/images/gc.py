"""Removes unused images when the disk is full or the images are old."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from node_agent.clock import wall_clock
from node_agent.config import Settings
from node_agent.docker.client import DockerClient, StoredImage
from node_agent.event_recorder import EventRecorder
from node_agent.stats.disk import filesystem_stats
from reconcile import atomic_file
from reconcile.errors import DriverError, Gone, NotReady, Refused, os_errors_as
from reconcile.loop import Loop, LoopTiming, retry_unexpected_errors

log = logging.getLogger(__name__)

GC_SECONDS = 300.0
"""Time between two passes."""

NEVER_USED = datetime.min.replace(tzinfo=UTC)
"""The time of last use of an image that no container has used."""


@dataclass(frozen=True, slots=True)
class ImagePolicy:
    """Limits of image garbage collection.

    When the disk is filled to `high_threshold_percent`, images are removed until it is filled to at most
    `low_threshold_percent`. Images that came to this host less than `min_age` ago stay. Images that no container has
    used for longer than `max_age` are removed in any case; 0 means no such limit.
    """

    high_threshold_percent: int = 85
    low_threshold_percent: int = 80
    min_age: timedelta = timedelta(minutes=2)
    max_age: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class ImageUse:
    """The times when an image was first detected on this host and when a container last used it (None: never)."""

    detected: datetime
    used: datetime | None = None


class ImageGC:
    """The loop that removes unused images (kubelet: ImageGCManager). `collect` is one pass."""

    def __init__(self, settings: Settings, docker: DockerClient, events: EventRecorder) -> None:
        self.loop = Loop("images", retry_unexpected_errors("images", self.collect), LoopTiming(resync=GC_SECONDS))
        self._docker = docker
        self._events = events
        self._failures = 0
        self._pause_image = settings.pause_image
        self._uses_file = Path(settings.state_dir) / "images.json"
        self._policy = ImagePolicy(
            settings.image_gc_high_threshold_percent,
            settings.image_gc_low_threshold_percent,
            timedelta(seconds=settings.image_minimum_gc_age_seconds),
            timedelta(seconds=settings.image_maximum_gc_age_seconds),
        )

    async def collect(self) -> None:
        """Record which images are in use, remove expired images, and more of them if their disk is too full.

        A failure is recorded as an event from the second one in a row on. Raises DriverError.
        """
        try:
            shortage = await self._collect()
        except DriverError as error:
            self._count_failure(str(error))
            raise
        if shortage:
            self._events.node_event("FreeDiskSpaceFailed", shortage)
            self._count_failure(shortage)
        else:
            self._failures = 0

    def _count_failure(self, message: str) -> None:
        self._failures += 1
        if self._failures > 1:
            self._events.node_event("ImageGCFailed", message)

    async def _collect(self) -> str:
        """Return a message if the disk is still too full, otherwise an empty string."""
        root = await self._docker.root_dir()
        unused = await self._unused_images()
        uses = await asyncio.to_thread(read_image_uses, self._uses_file)
        expired = expired_images(unused, uses, self._policy, wall_clock())
        for image in expired:
            await self._remove(image)
        before = await asyncio.to_thread(filesystem_stats, root)
        if before.percent_used < self._policy.high_threshold_percent:
            return ""
        after = before
        for image in unused:
            if image in expired:
                continue
            await self._remove(image)
            after = await asyncio.to_thread(filesystem_stats, root)
            if after.percent_used <= self._policy.low_threshold_percent:
                return ""
        log.warning("image disk is too full after all unused images were removed", extra={"path": root})
        excess = before.excess(self._policy.low_threshold_percent)
        freed = max(after.available - before.available, 0)
        return (
            "Failed to garbage collect required amount of images. "
            f"Attempted to free {excess} bytes, but only found {freed} bytes eligible to free."
        )

    async def remove_unused_images(self) -> None:
        """Remove all images that no container uses, because the disk is under pressure. Raises DriverError."""
        for image in await self._unused_images():
            await self._remove(image)

    async def _unused_images(self) -> tuple[StoredImage, ...]:
        """Store which images are in use now, and return the removable ones."""
        images = await self._docker.list_images()
        now = wall_clock()
        uses = await asyncio.to_thread(read_image_uses, self._uses_file)
        uses = update_uses(uses, images, await self._docker.images_in_use(), now)
        await asyncio.to_thread(write_image_uses, self._uses_file, uses)
        return removable_images(images, uses, await self._pinned_images(), self._policy, now)

    async def _remove(self, image: StoredImage) -> None:
        names = " ".join(image.names) or image.id
        try:
            await self._docker.remove_image(image)
            log.info("unused image removed", extra={"image": names})
        except Refused as error:
            log.warning("unused image could not be removed", extra={"image": names, "error": error})

    async def _pinned_images(self) -> frozenset[str]:
        try:
            return frozenset((await self._docker.image_id(self._pause_image),))
        except Gone:
            return frozenset()


def update_uses(
    uses: Mapping[str, ImageUse], images: Iterable[StoredImage], in_use: Collection[str], now: datetime
) -> dict[str, ImageUse]:
    """Return the uses of these images by image ID. Those in `in_use` are used now, and new ones are detected now."""
    before = {image.id: uses.get(image.id, ImageUse(now)) for image in images}
    return {image_id: ImageUse(use.detected, now) if image_id in in_use else use for image_id, use in before.items()}


def removable_images(
    images: Iterable[StoredImage],
    uses: Mapping[str, ImageUse],
    pinned: Collection[str],
    policy: ImagePolicy,
    now: datetime,
) -> tuple[StoredImage, ...]:
    """Return the images that no container uses and that are old enough, the least recently used first.

    `uses` is the result of `update_uses` for the same time. `pinned` are the IDs of images that stay.
    """
    unused = [image for image in images if image.id not in pinned and uses[image.id].used != now]
    old_enough = [image for image in unused if now - uses[image.id].detected >= policy.min_age]
    return tuple(
        sorted(old_enough, key=lambda image: (uses[image.id].used or NEVER_USED, uses[image.id].detected, image.id))
    )


def expired_images(
    removable: Iterable[StoredImage], uses: Mapping[str, ImageUse], policy: ImagePolicy, now: datetime
) -> tuple[StoredImage, ...]:
    """Return the removable images that no container has used for longer than the policy's maximum age."""
    if not policy.max_age:
        return ()
    return tuple(
        image for image in removable if now - (uses[image.id].used or uses[image.id].detected) > policy.max_age
    )


def read_image_uses(path: Path) -> dict[str, ImageUse]:
    """Return the stored uses by image ID. Returns none if there is no file, or an unreadable one.

    Then all images count as detected now.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, ImageUse])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        log.warning("record of image use is unreadable; starting a new one", extra={"file": path, "error": error})
        return {}


def write_image_uses(path: Path, uses: Mapping[str, ImageUse]) -> None:
    """Store uses by image ID. The file is replaced atomically. Raises NotReady."""
    with os_errors_as(NotReady, path):
        atomic_file.write(path, msgspec.json.encode(uses), atomic_file.READABLE, durable=False)
