"""Containers to talk to, on a dockerd of the module's own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

from lab import images
from lab.process import run
from node_agent.docker.exec import StreamSession
from tests.contract.test_docker_driver import DEADLINE_SECONDS, DEAF, Dockerd

_NAMES = count()


def start(dockerd: Dockerd, *command: str, flags: tuple[str, ...] = ()) -> str:
    """The id of a container that has been started."""
    name = f"--name=talk-{os.getpid()}-{next(_NAMES)}"
    words = ("run", "--detach", "--network=none", name, *flags, images.TOOLBOX, *(command or DEAF))
    return docker(dockerd, *words).strip()


def docker(dockerd: Dockerd, *words: str) -> str:
    return run("docker", "-H", f"unix://{dockerd.socket}", *words)


async def told(process: StreamSession) -> tuple[bytes, bytes]:
    """All that it says on stdout and on stderr."""
    said = {1: b"", 2: b""}
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for source, data in process.output():
            said[source] += data
    return said[1], said[2]


async def until(holds: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not holds():
            await asyncio.sleep(0.02)


def programs(dockerd: Dockerd, container: str) -> list[str]:
    """What runs in it, beside its own."""
    rows = docker(dockerd, "top", container, "-o", "pid,args").splitlines()[1:]
    return [row.split(None, 1)[1] for row in rows][1:]


def sockets() -> set[str]:
    """The sockets that this process has open."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(os.readlink(entry))
        except FileNotFoundError:
            continue
    return {name for name in found if name.startswith(("socket:", "anon_inode:[pidfd]"))}
