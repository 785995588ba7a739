"""Requests that run on after they were authorized: watches, and connections to nodes and pods.

They end when the credential that they began with becomes invalid: at once if an OAuth token or its user is deleted,
else with the next review.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from master.auth.authentication import Authentication
from master.resources.oauth import OAuthAccessToken
from master.resources.scheme import group_resource
from master.resources.users import User
from master.storage.interface import Storage, WatchEvent

REVIEW_SECONDS, PAUSE_SECONDS = 60.0, 1.0
"""Seconds between reviews of all credentials, and the pause before the next one: users can delete tokens quickly."""

REVIEWS_PER_TURN = 20
"""Number of credentials that are reviewed before other tasks run."""

log = logging.getLogger(__name__)


class OpenRequests:
    """The requests in progress, by what authenticated them. `is_valid` tells whether that is still valid."""

    def __init__(self, storage: Storage, is_valid: Callable[[Authentication], bool]) -> None:
        self._is_valid = is_valid
        self._tasks: dict[Authentication, set[asyncio.Task[object]]] = {}
        self._has_revocation = asyncio.Event()
        for kind in (OAuthAccessToken, User):
            storage.watch(group_resource(kind), self._note_deletion)

    @contextmanager
    def open(self, authentication: Authentication) -> Iterator[None]:
        """Cancel this task when the credential of its request becomes invalid during the block."""
        task = asyncio.current_task()
        if task is None or not authentication.can_end:
            yield
            return
        tasks = self._tasks.setdefault(authentication, set())
        tasks.add(task)
        try:
            yield
        finally:
            tasks.discard(task)
            if not tasks and self._tasks.get(authentication) is tasks:
                del self._tasks[authentication]

    async def run(self) -> None:
        """Review credentials until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REVIEW_SECONDS):
                    await self._has_revocation.wait()
            self._has_revocation.clear()
            await self.review()
            await asyncio.sleep(PAUSE_SECONDS)

    async def review(self) -> None:
        """End the requests whose credentials are no longer valid."""
        for number, authentication in enumerate(tuple(self._tasks), 1):
            if not self._is_valid(authentication):
                tasks = tuple(self._tasks.get(authentication, ()))
                log.info("credential ended", extra={"user": authentication.user.name, "requests": len(tasks)})
                for task in tasks:
                    task.cancel()
            if number % REVIEWS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _note_deletion(self, event: WatchEvent) -> None:
        if event.type == "DELETED" or event.record.object.metadata.deletion_timestamp:
            self._has_revocation.set()
