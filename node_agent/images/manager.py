"""Ensures that a container's image is present: pull policy, pull, back-off (kubelet: EnsureImageExists)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from api.core.pod import Container
from node_agent.clock import steady_clock
from node_agent.docker.client import DockerClient
from node_agent.docker.pull import RegistryUnavailable
from node_agent.event_recorder import PodEvents
from node_agent.images.credentials import Credential
from node_agent.images.pull_backoff import PullFailure, PullResult, next_failure
from reconcile.errors import DriverError, Gone, NotReady, Refused

log = logging.getLogger(__name__)

PULLS_ONLY_MISSING = ("IfNotPresent", "Never")
"""Pull policies with which an image that is present is used."""


@dataclass(frozen=True, slots=True)
class ImageUnavailable:
    """Reason and message of the waiting state of a container without an image.

    `retry_at` is the time of the next attempt by the steady clock. None means after the next change of the pod.
    """

    reason: str
    message: str
    retry_at: datetime | None = None


class PullCancelled(NotReady):
    """The cancellation of a pull, because its pod is being terminated."""


class ImageManager:
    """The images of one pod's containers. `time_limit` is the time limit of a pull in seconds, None for no limit."""

    def __init__(self, docker: DockerClient, events: PodEvents) -> None:
        self.time_limit: float | None = None
        self._docker = docker
        self._events = events
        self._failures: dict[str, PullFailure] = {}
        """Last failed pull by image."""
        self._pull_task: asyncio.Task[PullResult] | None = None
        self._prefetched: dict[str, str] = {}
        """Image ID by image, for the next `ensure_present` of the image."""

    def cancel(self) -> None:
        """Cancel the pull in progress, because the pod is being terminated."""
        if self._pull_task is not None:
            self._pull_task.cancel()

    def clear_prefetched(self) -> None:
        """Forget the results of `prefetch`, because the images may have changed since."""
        self._prefetched.clear()

    async def prefetch(self, containers: Iterable[Container]) -> None:
        """Look up the images of these containers, so that the next `ensure_present` of each needs no request."""
        for image in {container.image for container in containers}:
            with contextlib.suppress(DriverError):
                self._prefetched[image] = await self._docker.image_id(image)

    def needs_no_pull(self, container: Container) -> bool:
        """Return whether `prefetch` has found the container's image, and its pull policy demands no pull."""
        return container.image in self._prefetched and container.image_pull_policy in PULLS_ONLY_MISSING

    async def ensure_present(
        self, container: Container, credentials: tuple[Credential, ...], before_pull: Callable[[], Awaitable[None]]
    ) -> str | ImageUnavailable:
        """Return the ID of the container's image. Pull the image according to the pull policy.

        The registry gets the credentials one after the other, then a request without any. `before_pull` is awaited
        before the pull begins. Raises NotReady while Docker does not answer, PullCancelled after `cancel`.
        """
        image = container.image
        try:
            image_id: str | None = self._prefetched.pop(image, "") or await self._docker.image_id(image)
        except Gone:
            image_id = None
        except Refused as error:
            self._events.record("InspectFailed", f'Failed to inspect image "{image}": {error}', container.name)
            self._events.record("Failed", "Error: InvalidImageName", container.name)
            return ImageUnavailable("InvalidImageName", str(error))
        if container.image_pull_policy == "Never" and image_id is None:
            message = f'Container image "{image}" is not present with pull policy of Never'
            self._events.record("ErrImageNeverPull", message, container.name)
            self._events.record("Failed", "Error: ErrImageNeverPull", container.name)
            return ImageUnavailable("ErrImageNeverPull", message)
        if image_id is not None and container.image_pull_policy in PULLS_ONLY_MISSING:
            message = f'Container image "{image}" already present on machine and can be accessed by the pod'
            self._events.record("Pulled", message, container.name)
            return image_id
        return await self._pull(container.name, image, image_id, (*credentials, None), before_pull)

    async def _pull(
        self,
        container: str,
        image: str,
        present_id: str | None,
        credentials: tuple[Credential | None, ...],
        before_pull: Callable[[], Awaitable[None]],
    ) -> str | ImageUnavailable:
        """Pull an image unless it is in back-off. `present_id` is the ID of the image that is present, if any."""
        previous = self._failures.get(image)
        started_at = steady_clock()
        if previous is not None and previous.is_active(started_at):
            message = f'Back-off pulling image "{image}"'
            self._events.record("BackOff", message, container)
            self._events.record("Failed", "Error: ImagePullBackOff", container)
            return ImageUnavailable(
                "ImagePullBackOff", f"{message}: {previous.reason}: {previous.message}", previous.retry_at
            )
        self._events.record("Pulling", f'Pulling image "{image}"', container)
        await before_pull()
        reason = "ErrImagePull"
        try:
            result = await self._pull_with_credentials(image, credentials)
            self._failures.pop(image, None)
            self._events.record("Pulled", _pulled_message(image, result, steady_clock() - started_at), container)
            return await self._docker.image_id(image)
        except PullCancelled:
            raise
        except NotReady as error:
            if present_id is not None:
                log.warning("registry does not answer; using the present image", extra={"image": image, "error": error})
                message = f'Container image "{image}" already present on machine, and no registry answers'
                self._events.record("Pulled", message, container)
                return present_id
            message = str(error)
            if isinstance(error, RegistryUnavailable):
                reason = "RegistryUnavailable"
                message = f"image pull failed for {image} because the registry is unavailable: {error}"
        except (Refused, Gone) as error:
            message = str(error)
        failure = next_failure(previous, steady_clock(), message, reason)
        self._failures[image] = failure
        self._events.record("Failed", f'Failed to pull image "{image}": {message}', container)
        self._events.record("Failed", f"Error: {reason}", container)
        return ImageUnavailable(reason, message, failure.retry_at)

    async def _pull_with_credentials(self, image: str, credentials: tuple[Credential | None, ...]) -> PullResult:
        """Pull an image with the first credential that the registry accepts.

        Raises Refused with the messages for all credentials, NotReady if the registry does not answer.
        """
        messages: dict[str, None] = {}
        for credential in credentials:
            try:
                return await self._wait_for_pull(asyncio.ensure_future(self._docker.pull(image, credential)))
            except (Refused, Gone) as error:
                messages[str(error)] = None
        raise Refused("; ".join(messages))

    async def _wait_for_pull(self, task: asyncio.Task[PullResult]) -> PullResult:
        """Wait for a pull until the time limit or `cancel`. The pull is also cancelled if the caller is."""
        self._pull_task = task
        try:
            await asyncio.wait([task], timeout=self.time_limit)
        finally:
            self._pull_task = None
            task.cancel()
        if task.cancelled() or not task.done():
            raise PullCancelled("image pull cancelled, because the pod is being terminated")
        return task.result()


def _pulled_message(image: str, result: PullResult, elapsed: timedelta) -> str:
    total_seconds = max(elapsed.total_seconds(), result.seconds)
    durations = f"{_format_duration(result.seconds)} ({_format_duration(total_seconds)} including waiting)"
    return f'Successfully pulled image "{image}" in {durations}. Image size: {result.size} bytes.'


def _format_duration(seconds: float) -> str:
    return f"{seconds:.3f}s" if seconds >= 1 else f"{seconds * 1000:.0f}ms"
