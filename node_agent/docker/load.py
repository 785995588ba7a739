"""Loads images from archives into Docker. Driver."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable

import aiohttp

from node_agent.docker.http import docker_session, response_error
from reconcile.errors import DriverError, NotReady, Refused

MAX_RESPONSE_BYTES = 1 << 20
"""Longest accepted report of a load. It has a line for each name in the archive."""

IDLE_SECONDS = 1800.0
"""Time for Docker to unpack an archive that it has received. Large images on slow disks take minutes."""


async def load_images(docker_socket: str, archive: AsyncIterable[bytes]) -> str:
    """Load the images of a tar archive, as `docker save` writes it, compressed or not. Return Docker's report.

    The archive is read as fast as Docker unpacks it, so it is in memory at no time. Raises Refused with Docker's
    message if it is not such an archive, and NotReady if Docker or the sender of the archive ends early.
    """
    headers = {"Content-Type": "application/x-tar"}
    timeout = aiohttp.ClientTimeout(sock_read=IDLE_SECONDS)
    try:
        async with (
            docker_session(docker_socket) as docker,
            docker.post(
                "/images/load", params={"quiet": "1"}, data=archive, headers=headers, timeout=timeout
            ) as response,
        ):
            if response.status >= 400:
                raise _load_error(await response_error(response))
            return _report(await response.content.read(MAX_RESPONSE_BYTES))
    except TimeoutError:
        raise NotReady(f"Docker has not finished within {IDLE_SECONDS:g}s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise NotReady(f"the archive did not reach Docker: {error}") from None


def _load_error(error: DriverError) -> DriverError:
    """Return the error of a load. Docker reports a wrong archive as an internal error (500)."""
    return Refused(f"{error}; an archive of `docker save` is accepted") if isinstance(error, NotReady) else error


def _report(body: bytes) -> str:
    """Return what Docker reports in lines of JSON. Raises Refused if one of them is an error."""
    texts = []
    for line in body.splitlines():
        try:
            progress = json.loads(line)
        except ValueError:
            raise NotReady(f"Docker's answer is not JSON: {line[:100]!r}") from None
        if "error" in progress:
            raise Refused(f"Docker: {progress['error']}; an archive of `docker save` is accepted")
        texts.append(str(progress.get("stream", "")))
    return "".join(texts)
