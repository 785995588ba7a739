"""Clears up after pods: dead containers, unused images, links to logs. Level-triggered, like everything here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from node_agent import garbage, log_links
from node_agent.drivers import image_record
from node_agent.drivers import log_links as link_files
from node_agent.drivers.docker import Docker
from node_agent.drivers.space import space
from node_agent.guard import guarded
from node_agent.pod_network import SandboxNetwork
from node_agent.settings import Settings
from reconcile.errors import DriverError, Gone, Refused
from reconcile.loop import Loop, Pace

log = logging.getLogger(__name__)

CONTAINERS_SECONDS, IMAGES_SECONDS, LOGS_SECONDS = 60.0, 300.0, 60.0
GATHER_SECONDS = 0.5


class Housekeeping:
    """`pods` are the UIDs of pods that have a worker here; `loops` are to be run as long as the daemon lives.

    `tell` tells an event about the node (reason, message).
    """

    def __init__(
        self,
        settings: Settings,
        docker: Docker,
        network: SandboxNetwork,
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
        self._container_policy = garbage.ContainerPolicy(
            settings.maximum_dead_containers_per_container, timedelta(seconds=settings.minimum_container_ttl_seconds)
        )
        self._image_policy = garbage.ImagePolicy(
            settings.image_gc_high_threshold_percent,
            settings.image_gc_low_threshold_percent,
            timedelta(seconds=settings.image_minimum_gc_age_seconds),
            timedelta(seconds=settings.image_maximum_gc_age_seconds),
        )
        self._log_loop = Loop("logs", guarded("logs", self.link_logs), Pace(resync=LOGS_SECONDS, settle=GATHER_SECONDS))
        self.loops = (
            self._log_loop,
            Loop("dead containers", guarded("garbage", self.remove_containers), Pace(resync=CONTAINERS_SECONDS)),
            Loop("images", guarded("images", self.remove_images), Pace(resync=IMAGES_SECONDS)),
        )

    def container_changed(self) -> None:
        """A container has started, ended or gone."""
        self._log_loop.wake()

    async def remove_containers(self) -> None:
        """Delete dead containers that nobody looks at any more. Raises DriverError."""
        found = await self._docker.all_containers()
        for one in garbage.dead_containers(found, self._container_policy, _now(), self._pods()):
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
        known, policy = await asyncio.to_thread(image_record.read, self._record), self._image_policy
        for image in (old := garbage.outdated_images(unused, known, policy, _now())):
            await self._remove_image(image)
        before = await asyncio.to_thread(space, root)
        if before.percent_used < policy.high:
            return ""
        after = before
        for image in (one for one in unused if one not in old):
            await self._remove_image(image)
            after = await asyncio.to_thread(space, root)
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

    async def _unused_images(self) -> tuple[garbage.Image, ...]:
        images, now = await self._docker.stored_images(), _now()
        known = await asyncio.to_thread(image_record.read, self._record)
        known = garbage.uses(known, images, await self._docker.images_in_use(), now)
        await asyncio.to_thread(image_record.write, self._record, known)
        return garbage.removable_images(images, known, await self._pinned(), self._image_policy, now)

    async def _remove_image(self, image: garbage.Image) -> None:
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
        present = await asyncio.to_thread(link_files.present, self._logs)
        for one in log_links.unlinked(self._logs, found, present):
            await self._link(one.id)
        for link in log_links.strangers(self._logs, found, present):
            await asyncio.to_thread(link_files.remove_dangling, self._logs, link)

    async def _link(self, identity: str) -> None:
        try:
            one = await self._docker.inspect(identity)
        except Gone:
            return
        if one.log_path:
            by_pod = log_links.pod_link(self._logs, one)
            # That by container first: it tells of the directories that are made for the other.
            await asyncio.to_thread(link_files.put, log_links.container_link(self._logs, one), by_pod)
            await asyncio.to_thread(link_files.put, by_pod, Path(one.log_path))


def _now() -> datetime:
    return datetime.now(UTC)
