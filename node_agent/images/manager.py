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


@dataclass(frozen=True, slots=True)
class ImageUnavailable:
    """Why a container has no image (reason and message of its state).

    And when, by `steady`, to ask again if not at any change.
    """

    reason: str
    message: str
    due: datetime | None = None


class PullCancelled(NotReady):
    """Nobody waits for the image any more."""


class ImageManager:
    """Images of one pod. `time_limit` is the maximum of seconds that a pull may take; None: no limit."""

    def __init__(self, docker: DockerClient, events: PodEvents) -> None:
        self.time_limit: float | None = None
        self._docker = docker
        self._events = events
        self._failures: dict[str, PullFailure] = {}
        self._fetching: asyncio.Task[PullResult] | None = None
        self._expected: dict[str, str] = {}

    def give_up(self) -> None:
        """The pod is to go: what is being fetched for it is not waited for."""
        if self._fetching is not None:
            self._fetching.cancel()

    def look_anew(self) -> None:
        """What was expected earlier may not be so any more."""
        self._expected.clear()

    async def expect(self, wishes: Iterable[Container]) -> None:
        """These images will be asked for in a moment: what is found now needs no second look then."""
        for image in {wish.image for wish in wishes}:
            with contextlib.suppress(DriverError):
                self._expected[image] = await self._docker.image_id(image)

    async def get(
        self, wish: Container, credentials: tuple[Credential, ...], before_pull: Callable[[], Awaitable[None]]
    ) -> str | ImageUnavailable:
        """Return the ID of the container's image. Pull the image according to the pull policy.

        The registry gets the credentials one after the other, then a request without any. `before_pull` is awaited
        before the pull begins. Raises NotReady while Docker does not answer, PullCancelled after cancel().
        """
        image = wish.image
        try:
            here: str | None = self._expected.pop(image, "") or await self._docker.image_id(image)
        except Gone:
            here = None
        except Refused as error:
            self._events.record("InspectFailed", f'Failed to inspect image "{image}": {error}', wish.name)
            self._events.record("Failed", "Error: InvalidImageName", wish.name)
            return ImageUnavailable("InvalidImageName", str(error))
        if wish.image_pull_policy == "Never" and here is None:
            words = f'Container image "{image}" is not present with pull policy of Never'
            self._events.record("ErrImageNeverPull", words, wish.name)
            self._events.record("Failed", "Error: ErrImageNeverPull", wish.name)
            return ImageUnavailable("ErrImageNeverPull", words)
        if here is not None and wish.image_pull_policy in ("IfNotPresent", "Never"):
            words = f'Container image "{image}" already present on machine and can be accessed by the pod'
            self._events.record("Pulled", words, wish.name)
            return here
        return await self._pull(wish.name, image, here, (*credentials, None), before_pull)

    async def _pull(
        self,
        container: str,
        image: str,
        here: str | None,
        credentials: tuple[Credential | None, ...],
        before_pull: Callable[[], Awaitable[None]],
    ) -> str | ImageUnavailable:
        earlier, began = self._failures.get(image), steady_clock()
        if earlier is not None and earlier.holds(began):
            words = f'Back-off pulling image "{image}"'
            self._events.record("BackOff", words, container)
            self._events.record("Failed", "Error: ImagePullBackOff", container)
            return ImageUnavailable("ImagePullBackOff", f"{words}: {earlier.reason}: {earlier.words}", earlier.due)
        self._events.record("Pulling", f'Pulling image "{image}"', container)
        await before_pull()
        reason = "ErrImagePull"
        try:
            pulled = await self._fetch(image, credentials)
            self._failures.pop(image, None)
            self._events.record("Pulled", _pulled_message(image, pulled, steady_clock() - began), container)
            return await self._docker.image_id(image)
        except PullCancelled:
            raise
        except NotReady as error:
            if here is not None:
                log.warning("registry away, using the image that is here", extra={"image": image, "error": error})
                words = f'Container image "{image}" already present on machine, and no registry answers'
                self._events.record("Pulled", words, container)
                return here
            words = str(error)
            if isinstance(error, RegistryUnavailable):
                reason = "RegistryUnavailable"
                words = f"image pull failed for {image} because the registry is unavailable: {error}"
        except (Refused, Gone) as error:
            words = str(error)
        failure = self._failures[image] = next_failure(earlier, steady_clock(), words, reason)
        self._events.record("Failed", f'Failed to pull image "{image}": {words}', container)
        self._events.record("Failed", f"Error: {reason}", container)
        return ImageUnavailable(reason, words, failure.due)

    async def _fetch(self, image: str, credentials: tuple[Credential | None, ...]) -> PullResult:
        """Raises Refused with all that the registry said, NotReady when there is none."""
        said: dict[str, None] = {}
        for credential in credentials:
            try:
                return await self._until_given_up(asyncio.ensure_future(self._docker.pull(image, credential)))
            except (Refused, Gone) as error:
                said[str(error)] = None
        raise Refused("; ".join(said))

    async def _until_given_up(self, task: asyncio.Task[PullResult]) -> PullResult:
        """Who is cancelled himself takes the task along."""
        self._fetching = task
        try:
            await asyncio.wait([task], timeout=self.time_limit)
        finally:
            self._fetching = None
            task.cancel()
        if task.cancelled() or not task.done():
            raise PullCancelled("the image is not waited for: the pod is to go")
        return task.result()


def _pulled_message(image: str, pulled: PullResult, waited: timedelta) -> str:
    whole = max(waited.total_seconds(), pulled.seconds)
    times = f"{_duration(pulled.seconds)} ({_duration(whole)} including waiting)"
    return f'Successfully pulled image "{image}" in {times}. Image size: {pulled.size} bytes.'


def _duration(seconds: float) -> str:
    return f"{seconds:.3f}s" if seconds >= 1 else f"{seconds * 1000:.0f}ms"
