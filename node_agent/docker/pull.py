"""Pulls images, within limits of number and rate. Driver."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time

import aiohttp

from node_agent.images.credentials import Credential
from node_agent.images.pull_backoff import PullLimits
from reconcile.errors import Gone, NotReady, Refused
from reconcile.token_bucket import RateLimit, TokenBucket

LONGEST_LINE = 1 << 20
_AWAY = ("connection refused", "no such host", "timeout", "unreachable", "EOF", "connection reset")
_CLOSED = re.compile(r"unexpected HTTP status: 50[234]")


class RegistryUnavailable(NotReady):
    """The registry answers that it cannot answer now."""


class ImagePuller:
    """All pulls of one Docker, within limits: who comes too early waits for its turn."""

    def __init__(self, socket: str, limits: PullLimits) -> None:
        self._socket = socket
        self._limits = limits
        self._places = asyncio.Semaphore(limits.at_once)
        self._rate_limit = RateLimit(limits.per_second, limits.burst)
        self._bucket: TokenBucket | None = None

    async def fetch(self, repository: str, tag: str, credential: Credential | None) -> float:
        """The seconds that it took once it had its turn.

        Raises Refused or NotReady with the registry's words, NotReady when there is no progress for too long.
        """
        self._bucket, wait = self._rate_limit.reserve(self._bucket, time.monotonic())
        await asyncio.sleep(wait)
        async with self._places:
            began = time.monotonic()
            await _pull(self._socket, repository, tag, credential, self._limits.patience)
            return time.monotonic() - began


async def _pull(socket: str, repository: str, tag: str, credential: Credential | None, patience: float) -> None:
    """Docker tells its progress in lines of JSON; an error that comes after the first stands there, under a 200."""
    name = f"{repository}@{tag}" if ":" in tag else f"{repository}:{tag}"
    headers = {} if credential is None else {"X-Registry-Auth": _auth(credential)}
    limits = aiohttp.ClientTimeout(total=None, sock_read=patience)
    session = aiohttp.ClientSession(
        "http://docker", connector=aiohttp.UnixConnector(socket), timeout=limits, read_bufsize=LONGEST_LINE
    )
    try:
        async with (
            session,
            session.post("/images/create", params={"fromImage": repository, "tag": tag}, headers=headers) as answer,
        ):
            if answer.status >= 400:
                words = str((await answer.json(content_type=None)).get("message", answer.status))
                raise _error(words, Gone if answer.status == 404 else Refused)
            async for line in answer.content:
                told = json.loads(line)
                if "error" in told:
                    raise _error(str(told["error"]), Refused)
    except TimeoutError:
        raise NotReady(f"Cancel pulling image {name!r}: no progress for {patience:g}s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise NotReady(f"Docker does not answer: {error}") from None


def _auth(credential: Credential) -> str:
    return base64.urlsafe_b64encode(json.dumps(credential._asdict()).encode()).decode()


def _error(words: str, otherwise: type[Gone] | type[Refused]) -> NotReady | Gone | Refused:
    if _CLOSED.search(words):
        return RegistryUnavailable(f"Docker: {words}")
    return (NotReady if any(sign in words for sign in _AWAY) else otherwise)(f"Docker: {words}")
