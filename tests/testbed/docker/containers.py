"""Containers on a dockerd of the tests, and the programs that run in them."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import docker

from lab import images
from lab.process import run
from node_agent.docker.client import DockerClient
from node_agent.docker.exec import StreamSession
from node_agent.runtime import container as label
from node_agent.runtime.spec import ContainerConfig
from tests.testbed.docker.daemon import DEADLINE_SECONDS, IGNORES_SIGTERM, Dockerd
from tests.testbed.docker.fake import FakeDocker

_NAMES = count()


def start_container(dockerd: Dockerd, *command: str, flags: tuple[str, ...] = ()) -> str:
    """Start a container and return its id."""
    name = f"--name=talk-{os.getpid()}-{next(_NAMES)}"
    words = ("run", "--detach", "--network=none", name, *flags, images.TOOLBOX, *(command or IGNORES_SIGTERM))
    return run_docker(dockerd, *words).strip()


def run_docker(dockerd: Dockerd, *words: str) -> str:
    return run("docker", "-H", f"unix://{dockerd.socket}", *words)


async def read_output(process: StreamSession) -> tuple[bytes, bytes]:
    """Return the whole output of a program on stdout and stderr."""
    output = {1: b"", 2: b""}
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for source, data in process.output():
            output[source] += data
    return output[1], output[2]


async def until(holds: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not holds():
            await asyncio.sleep(0.02)


def running_programs(dockerd: Dockerd, container: str) -> list[str]:
    """Return the programs that run in a container besides its main one."""
    rows = run_docker(dockerd, "top", container, "-o", "pid,args").splitlines()[1:]
    return [line.split(None, 1)[1] for line in rows][1:]


def open_sockets() -> set[str]:
    """Return the open sockets of this process."""
    actual = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            actual.add(os.readlink(entry))
        except FileNotFoundError:
            continue
    return {name for name in actual if name.startswith(("socket:", "anon_inode:[pidfd]"))}


def sandbox(uid: str, attempt: int = 0) -> ContainerConfig:
    own = {label.TYPE: label.SANDBOX_TYPE, label.ATTEMPT: str(attempt), label.CONTAINER_NAME: "POD"}
    pod = {label.POD_UID: uid, label.POD_NAME: "web", label.POD_NAMESPACE: "red"}
    return ContainerConfig(
        name=f"k8s_POD_web_red_{uid}_{attempt}", image=images.PAUSE, labels={**own, **pod}, hostname="web"
    )


def container(uid: str, image: str, network: str, command: tuple[str, ...], restarts: int = 0) -> ContainerConfig:
    own = {label.TYPE: label.CONTAINER_TYPE, label.CRASHES: "0", label.CONTAINER_NAME: "main"}
    counted = {label.RESTARTS: str(restarts), label.POD_UID: uid}
    return ContainerConfig(
        name=f"k8s_main_web_red_{uid}_{restarts}",
        image=image,
        labels={**own, **counted},
        entrypoint=command,
        command=(),
        network=f"container:{network}",
        ipc=f"container:{network}",
    )


async def running_sandbox(driver: DockerClient, uid: str) -> str:
    identity = await driver.create(sandbox(uid))
    await driver.start(identity)
    return identity


async def add_image(driver: DockerClient, *names: str) -> None:
    """Add an image with these names."""
    if isinstance(driver, FakeDocker):
        driver.images |= set(names)
        return
    client: Any = docker.APIClient(base_url=f"unix://{driver._socket}", version="1.41")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(names[0].replace(":", "-")))
    client.import_image_from_data(content.getvalue(), repository=names[0].partition(":")[0], tag="1")
    for name in names[1:]:
        client.tag(names[0], name.partition(":")[0], "1")
    client.close()
