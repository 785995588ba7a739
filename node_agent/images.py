"""The images of one pod's containers: looked for here, fetched if need be, with longer and longer waits."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from api.objects import Container
from node_agent.clock import steady
from node_agent.credentials import Credential
from node_agent.drivers.docker import Docker
from reconcile.errors import DriverError, Gone, NotReady, Refused

log = logging.getLogger(__name__)

FIRST_PULL_DELAY, LAST_PULL_DELAY = timedelta(seconds=10), timedelta(seconds=300)


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a container has no image (reason and message of its state).

    And when, by `steady`, to ask again if not at any change.
    """

    reason: str
    message: str
    due: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Failure:
    """How often in a row an image could not be fetched, when the next attempt is due, and what was said."""

    failures: int
    due: datetime
    words: str


class Images:
    """`tell` tells an event: (reason, message, container)."""

    def __init__(self, docker: Docker, tell: Callable[[str, str, str], None]) -> None:
        self._docker = docker
        self._tell = tell
        self._failures: dict[str, _Failure] = {}
        self._expected: dict[str, str] = {}

    def look_anew(self) -> None:
        """What was expected earlier may not be so any more."""
        self._expected.clear()

    async def expect(self, wishes: Iterable[Container]) -> None:
        """These images will be asked for in a moment: what is found now needs no second look then."""
        for image in {wish.image for wish in wishes}:
            with contextlib.suppress(DriverError):
                self._expected[image] = await self._docker.image_id(image)

    async def get(self, wish: Container, credentials: tuple[Credential, ...]) -> str | Missing:
        """The id of the container's image. Raises NotReady while Docker is away.

        A registry is shown one of the credentials after the other, and then none.
        """
        image = wish.image
        try:
            here: str | None = self._expected.pop(image, "") or await self._docker.image_id(image)
        except Gone:
            here = None
        except Refused as error:
            self._tell("InspectFailed", f'Failed to inspect image "{image}": {error}', wish.name)
            return Missing("InvalidImageName", str(error))
        if wish.image_pull_policy == "Never" and here is None:
            words = f'Container image "{image}" is not present with pull policy of Never'
            self._tell("ErrImageNeverPull", words, wish.name)
            return Missing("ErrImageNeverPull", words)
        if here is not None and wish.image_pull_policy in ("IfNotPresent", "Never"):
            self._tell("Pulled", f'Container image "{image}" already present on machine', wish.name)
            return here
        return await self._pull(wish.name, image, here, (*credentials, None))

    async def _pull(
        self, container: str, image: str, here: str | None, credentials: tuple[Credential | None, ...]
    ) -> str | Missing:
        earlier, began = self._failures.get(image), steady()
        if earlier is not None and began < earlier.due and here is None:
            self._tell("BackOff", f'Back-off pulling image "{image}"', container)
            self._tell("Failed", "Error: ImagePullBackOff", container)
            words = f'Back-off pulling image "{image}": {earlier.words}'
            return Missing("ImagePullBackOff", words, earlier.due)
        self._tell("Pulling", f'Pulling image "{image}"', container)
        try:
            await self._fetch(image, credentials)
            self._failures.pop(image, None)
            took = (steady() - began).total_seconds()
            self._tell("Pulled", f'Successfully pulled image "{image}" in {took:.3f}s', container)
            return await self._docker.image_id(image)
        except NotReady as error:
            if here is not None:
                log.warning("registry away, using the image that is here", extra={"image": image, "error": error})
                words = f'Container image "{image}" already present on machine, and no registry answers'
                self._tell("Pulled", words, container)
                return here
            words = str(error)
        except (Refused, Gone) as error:
            words = str(error)
        failures = earlier.failures + 1 if earlier is not None else 1
        delay = min(FIRST_PULL_DELAY * float(2 ** min(failures - 1, 10)), LAST_PULL_DELAY)
        due = steady() + delay
        self._failures[image] = _Failure(failures, due, words)
        self._tell("Failed", f'Failed to pull image "{image}": {words}', container)
        self._tell("Failed", "Error: ErrImagePull", container)
        return Missing("ErrImagePull", words, due)

    async def _fetch(self, image: str, credentials: tuple[Credential | None, ...]) -> None:
        """Raises Refused with all that the registry said, NotReady when there is none."""
        said: dict[str, None] = {}
        for credential in credentials:
            try:
                await self._docker.pull(image, credential)
                return
            except (Refused, Gone) as error:
                said[str(error)] = None
        raise Refused("; ".join(said))
