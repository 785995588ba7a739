"""Removes unused images when the disk is full or the images are old."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from node_agent.config import Settings
from node_agent.docker.client import DockerClient, StoredImage
from node_agent.event_recorder import EventRecorder
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


GC_SECONDS = 300.0


class ImageGC:
    """Removes unused images in the background (kubelet: ImageGCManager). `collect` is one pass."""

    def __init__(self, settings: Settings, docker: DockerClient, events: EventRecorder) -> None:
        self.loop = Loop("images", containing_bugs("images", self.collect), LoopTiming(resync=GC_SECONDS))
        self._docker = docker
        self._events = events
        self._failures = 0
        self._pause_image = settings.pause_image
        self._record = Path(settings.state_dir) / "images.json"
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
        """Return why the disk is still too full. Return an empty string if it has room."""
        root, unused = await self._docker.root_dir(), await self._unused_images()
        uses = await asyncio.to_thread(read_image_uses, self._record)
        expired = expired_images(unused, uses, self._policy, _now())
        for image in expired:
            await self._remove(image)
        before = await asyncio.to_thread(filesystem_stats, root)
        if before.percent_used < self._policy.high:
            return ""
        after = before
        for image in (image for image in unused if image not in expired):
            await self._remove(image)
            after = await asyncio.to_thread(filesystem_stats, root)
            if after.percent_used <= self._policy.low:
                return ""
        log.warning("image disk is too full and no unused image is left", extra={"path": root})
        excess = before.excess(self._policy.low)
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
        images, now = await self._docker.list_images(), _now()
        uses = await asyncio.to_thread(read_image_uses, self._record)
        uses = update_uses(uses, images, await self._docker.images_in_use(), now)
        await asyncio.to_thread(write_image_uses, self._record, uses)
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


def _now() -> datetime:
    return datetime.now(UTC)
