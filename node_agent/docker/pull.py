"""Pulls images, within limits of number and rate. Driver."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import re
import socket
import time

import aiohttp
import psutil

from node_agent.docker.http import TRANSIENT_ERRORS
from node_agent.images.credentials import DOCKER_HUB, Credential, split_registry
from node_agent.images.local_registries import local_registry_problem, registry_host
from node_agent.images.pull_backoff import PullLimits
from reconcile.errors import Gone, NotReady, Refused
from reconcile.token_bucket import RateLimit, TokenBucket

MAX_LINE_BYTES = 1 << 20
"""Longest accepted line of Docker's progress report."""

_TRANSIENT_PULL_ERRORS = (*TRANSIENT_ERRORS, "EOF", "connection reset")
_REGISTRY_UNAVAILABLE = re.compile(r"unexpected HTTP status: 50[234]")


class RegistryUnavailable(NotReady):
    """An error response with which the registry reports that it is temporarily unavailable."""


class ImagePuller:
    """The image pulls of one Docker, with a limit of parallel pulls and a limit of their rate."""

    def __init__(self, docker_socket: str, limits: PullLimits) -> None:
        self._socket = docker_socket
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.max_parallel)
        self._rate_limit = RateLimit(limits.per_second, limits.burst)
        self._bucket: TokenBucket | None = None

    async def pull(self, repository: str, tag: str, credential: Credential | None) -> float:
        """Pull an image as soon as the limits allow it. Returns the duration of the pull in seconds, without that wait.

        Raises Refused or NotReady with the registry's message, and NotReady if there is no progress for too long.
        """
        self._bucket, wait = self._rate_limit.reserve(self._bucket, time.monotonic())
        await asyncio.sleep(wait)
        async with self._slots:
            started_at = time.monotonic()
            await self._check_registry(repository)
            await _pull(self._socket, repository, tag, credential, self._limits.progress_seconds)
            return time.monotonic() - started_at

    async def _check_registry(self, repository: str) -> None:
        """Raise Refused if the registry is not to be asked. A name that does not resolve is left to Docker.

        It is called with a slot, because names of users can keep the threads of all lookups waiting. Docker looks the
        name up again, and goes where the registry sends it: only a firewall can refuse that (docs/operations/nodes.md).
        """
        registry, _ = split_registry(repository)
        addresses: set[str] = set()
        if registry not in DOCKER_HUB:
            with contextlib.suppress(OSError, UnicodeError):
                loop = asyncio.get_running_loop()
                rows = await loop.getaddrinfo(registry_host(registry), None, type=socket.SOCK_STREAM)
                addresses = {str(address[0]) for *_, address in rows}
        own = await asyncio.to_thread(_node_addresses) if addresses else frozenset()
        problem = local_registry_problem(registry, sorted(addresses), self._limits.local_registries, own)
        if problem:
            raise Refused(problem)


def _node_addresses() -> frozenset[str]:
    """Return all IPv4 and IPv6 addresses of the network namespace of this process."""
    rows = itertools.chain.from_iterable(psutil.net_if_addrs().values())
    return frozenset(row.address for row in rows if row.family in {socket.AF_INET, socket.AF_INET6})


async def _pull(
    docker_socket: str, repository: str, tag: str, credential: Credential | None, progress_seconds: float
) -> None:
    """Pull an image. Docker reports progress as lines of JSON; errors after the first line are in them, under 200."""
    name = f"{repository}@{tag}" if ":" in tag else f"{repository}:{tag}"
    headers = {} if credential is None else {"X-Registry-Auth": _auth_header(credential)}
    session = aiohttp.ClientSession(
        "http://docker",
        connector=aiohttp.UnixConnector(docker_socket),
        timeout=aiohttp.ClientTimeout(total=None, sock_read=progress_seconds),
        read_bufsize=MAX_LINE_BYTES,
    )
    try:
        async with (
            session,
            session.post("/images/create", params={"fromImage": repository, "tag": tag}, headers=headers) as response,
        ):
            if response.status >= 400:
                message = str((await response.json(content_type=None)).get("message", response.status))
                raise _pull_error(repository, message, Gone if response.status == 404 else Refused)
            async for line in response.content:
                progress = json.loads(line)
                if "error" in progress:
                    raise _pull_error(repository, str(progress["error"]), Refused)
    except TimeoutError:
        raise NotReady(f"Cancel pulling image {name!r}: no progress for {progress_seconds:g}s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise NotReady(f"Docker does not answer: {error}") from None


def _auth_header(credential: Credential) -> str:
    return base64.urlsafe_b64encode(json.dumps(credential._asdict()).encode()).decode()


def _pull_error(repository: str, message: str, permanent: type[Gone] | type[Refused]) -> NotReady | Gone | Refused:
    """Return the error for Docker's message: transient errors by their text, otherwise a `permanent` one."""
    if _REGISTRY_UNAVAILABLE.search(message):
        return RegistryUnavailable(f"Docker: {message}")
    if any(text in message for text in _TRANSIENT_PULL_ERRORS):
        registry, _ = split_registry(repository)
        by_hand = "without it, put the image on the nodes by `podlane image load`, in a lab by `podlane lab load`"
        return NotReady(f"registry {registry} does not answer ({message}); {by_hand}")
    return permanent(f"Docker: {message}")
