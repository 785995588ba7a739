"""Checks of aggregated API servers: whether they answer, and what they serve. Driver.

Each APIService has a task of its own, so a server that is slow or lies delays the checks of no other one. Without an
APIService for another server, no task runs and nothing is watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from api.core.endpoints import Endpoints
from api.core.services import Service
from master.auth.attributes import SYSTEM_MASTERS, User
from master.registry.aggregated_apis import AggregatedAPIs, Availability, Backend, Discovered, service_problem
from master.resources.scheme import group_resource
from master.server.proxy import api_discovery
from master.server.proxy.api_discovery import InvalidDiscovery
from master.server.proxy.backend_requests import request_backend
from master.server.proxy.extension_client import ExtensionClient, ResponseTooLarge, ServerResponse
from master.server.proxy.kubelet_client import Unreachable
from master.storage.interface import Storage, WatchEvent

CHECK_SECONDS = 5.0
"""Seconds that a server has to answer."""

RECHECK_SECONDS, MIN_PAUSE_SECONDS, FIRST_RETRY_SECONDS = 30.0, 0.2, 1.0
"""Seconds between checks, between two of them whatever changes, and before the first one after a failure."""

MAX_DISCOVERY_BYTES = 2 << 20
MAX_INDEX_BYTES = 1 << 20
MAX_PARALLEL_CHECKS = 16

CHECKER = User("system:kube-aggregator", frozenset((SYSTEM_MASTERS,)))
"""Who asks: a user to whom every server answers."""

log = logging.getLogger(__name__)


class APIChecks:
    """Checks every aggregated API until cancelled: `run`. `report` is called after a check with a new result."""

    def __init__(
        self,
        storage: Storage,
        apis: AggregatedAPIs,
        extensions: ExtensionClient,
        client_certificate: Path,
        report: Callable[[], None],
    ) -> None:
        self._store = storage
        self._apis = apis
        self._extensions = extensions
        self._certificate = client_certificate
        self._report = report
        self._changed = asyncio.Event()
        self._wakes: dict[str, asyncio.Event] = {}
        self._slots = asyncio.Semaphore(MAX_PARALLEL_CHECKS)

    async def run(self) -> None:
        """Check until cancelled."""
        self._apis.subscribe(self._changed.set)
        self._changed.set()
        known: dict[str, Backend] = {}
        async with asyncio.TaskGroup() as group:
            with contextlib.ExitStack() as watches:
                while True:
                    await self._changed.wait()
                    self._changed.clear()
                    backends = dict(self._apis.backends)
                    if bool(backends) != bool(known):
                        watches.close()
                        if backends:
                            for kind in (Service, Endpoints):
                                watches.callback(self._store.watch(group_resource(kind), self._note))
                    for name, backend in backends.items():
                        if name not in self._wakes:
                            self._wakes[name] = asyncio.Event()
                            group.create_task(self._check_repeatedly(name))
                        elif known.get(name) != backend:
                            self._wakes[name].set()
                    for name in known.keys() - backends.keys():
                        # The task may have seen by itself that the API is gone.
                        if name in self._wakes:
                            self._wakes[name].set()
                    known = backends

    def _note(self, event: WatchEvent) -> None:
        """Check the APIs of a service again that has changed."""
        key = event.record.key
        for name, backend in self._apis.backends.items():
            if (backend.service.namespace, backend.service.name) == (key.namespace, key.name) and name in self._wakes:
                self._wakes[name].set()

    async def _check_repeatedly(self, name: str) -> None:
        """Check one API until it is gone."""
        failures = 0
        wake = self._wakes[name]
        while (backend := self._apis.backends.get(name)) is not None:
            wake.clear()
            async with self._slots:
                found, discovered = await self._check_safely(backend)
            if self._apis.note_check(found, discovered):
                log.info("aggregated API checked", extra={"api": name, "reason": found.reason, "text": found.message})
                self._report()
            failures = 0 if found.status == "True" else failures + 1
            pause = (
                RECHECK_SECONDS
                if not failures
                else min(FIRST_RETRY_SECONDS * 2 ** min(failures - 1, 6), RECHECK_SECONDS)
            )
            await asyncio.sleep(MIN_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await wake.wait()
        del self._wakes[name]
        # An APIService of this name may have come back meanwhile.
        self._changed.set()

    async def _check_safely(self, backend: Backend) -> tuple[Availability, Discovered | None]:
        """Check an API. An unexpected error is a failed check, because other APIs have to be checked, too."""
        try:
            return await self._check(backend)
        except Exception as error:
            log.exception("check of an aggregated API failed", extra={"api": backend.name})
            text = f"failing or missing response from {backend.url(backend.path)}: {type(error).__name__}"
            return Availability(backend, "False", "FailedDiscoveryCheck", text), None

    async def _check(self, backend: Backend) -> tuple[Availability, Discovered | None]:
        problem = service_problem(self._store, backend)
        if problem is not None:
            return Availability(backend, "False", *problem), None
        url, failure, body = backend.url(backend.path), "", b""
        try:
            response = await self._get(backend, backend.path, MAX_DISCOVERY_BYTES)
            body, failure = response.body, _bad_status(url, response.status)
        except ResponseTooLarge as error:
            log.warning("discovery of an aggregated API not usable", extra={"api": backend.name, "error": str(error)})
            failure = _bad_status(url, error.status)
        except TimeoutError:
            failure = "context deadline exceeded"
        except Unreachable as error:
            failure = str(error)
        if failure:
            text = f"failing or missing response from {url}: {failure}"
            return Availability(backend, "False", "FailedDiscoveryCheck", text), None
        passed = Availability(backend, "True", "Passed", "all checks passed")
        return passed, await self._discover(backend, body) if body else None

    async def _discover(self, backend: Backend, body: bytes) -> Discovered | None:
        known = self._apis.discovered(backend.name)
        try:
            found = known
            if known.digest != api_discovery.digest(body):
                # In a thread: a server may have thousands of resources.
                found = await asyncio.to_thread(api_discovery.discovered, backend, body)
            index = await self._get(backend, "/openapi/v3", MAX_INDEX_BYTES)
            openapi_hash = api_discovery.openapi_hash(backend, index.body) if index.status == 200 else ""
            return replace(found, openapi_hash=openapi_hash)
        except (Unreachable, TimeoutError):
            return replace(found, openapi_hash="")
        except InvalidDiscovery as error:
            log.warning("discovery of an aggregated API not usable", extra={"api": backend.name, "error": str(error)})
            return None

    async def _get(self, backend: Backend, path: str, max_bytes: int) -> ServerResponse:
        """Return the response to a GET of the master itself. Raises Unreachable and TimeoutError."""
        async with asyncio.timeout(CHECK_SECONDS):
            return await request_backend(
                self._extensions, self._certificate, backend, CHECKER, "GET", path, max_bytes=max_bytes
            )


def _bad_status(url: str, status: int) -> str:
    """Return what is wrong with the status of a response; empty for success."""
    return "" if 200 <= status < 300 else f"bad status from {url}: {status}"
