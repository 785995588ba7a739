"""Where a registry of a user can send Docker, and the firewall rule of docs/operations/nodes.md against it."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from lab.process import run
from node_agent.docker.client import DockerClient, LogLimits
from node_agent.images.pull_backoff import PullLimits
from reconcile.errors import NotReady, Refused
from tests.testbed.docker.daemon import Dockerd
from tests.testbed.documents import blocks
from tests.testbed.namespaces import only_loopback

CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """Yield a new cgroup of the unified hierarchy."""
    parent = CGROUPS if (CGROUPS / "cgroup.procs").exists() else CGROUPS / "unified"
    path = parent / f"podlane-docker-{os.getpid()}"
    path.mkdir()
    yield path
    path.rmdir()


@pytest.fixture
def confined_dockerd(cgroup: Path) -> Iterator[Dockerd]:
    """Run a dockerd in a cgroup and in a network namespace with loopback only, where this thread stays, too."""
    daemon = Dockerd(Path(f"/tmp/podlane-firewall-{os.getpid()}"))
    daemon.root.mkdir()
    with only_loopback():
        process = daemon.start()
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        try:
            yield daemon
        finally:
            process.terminate()
            process.wait()
            shutil.rmtree(daemon.root)


def rules(cgroup: Path, port: int) -> str:
    """Return the rules of the document for this cgroup and this port of a registry."""
    (text,) = (text for _, language, text in blocks("docs/operations/nodes.md") if language == "nft")
    names = cgroup.relative_to(CGROUPS)
    # The level counts from the root of the hierarchy, the path from the directory in which it is usually mounted.
    for old, new in (('level 2 "system.slice/docker.service"', f'level 1 "{names}"'), ("5000", str(port))):
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


@asynccontextmanager
async def serving(answer: Callable[[web.Request], web.Response]) -> AsyncIterator[tuple[int, list[str]]]:
    """Run a server on loopback that answers all requests so. Yield its port, and the paths of all requests."""
    paths: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        paths.append(request.path)
        return answer(request)

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1], paths
    finally:
        await runner.cleanup()


def token_server(request: web.Request, port: int) -> web.Response:
    """Answer as a registry whose tokens are at another port."""
    challenge = f'Bearer realm="http://127.0.0.1:{port}/secret",service="x"'
    return web.Response(status=401, headers={"WWW-Authenticate": challenge})


def redirect(request: web.Request, port: int) -> web.Response:
    """Answer as a registry whose manifests are at another port."""
    if request.path == "/v2/":
        return web.json_response({})
    return web.Response(status=307, headers={"Location": f"http://127.0.0.1:{port}/secret"})


@pytest.mark.parametrize("lead", [token_server, redirect])
async def test_registry_leads_docker_to_loopback_unless_the_firewall_rule_refuses_it(
    confined_dockerd: Dockerd, cgroup: Path, lead: Callable[[web.Request, int], web.Response]
) -> None:
    async with (
        serving(lambda _: web.Response(status=404)) as (victim_port, stolen),
        serving(lambda request: lead(request, victim_port)) as (port, asked),
    ):
        registry = f"127.0.0.1:{port}"
        limits = PullLimits(local_registries=(registry,))
        real = DockerClient(str(confined_dockerd.socket), LogLimits(20_000, 2), pull_limits=limits)

        async def pull() -> tuple[bool, bool]:
            """Pull an image. Return whether the registry and the other server have got a request."""
            asked.clear()
            stolen.clear()
            with pytest.raises((Refused, NotReady)):
                await real.pull(f"{registry}/web:1")
            return bool(asked), "/secret" in stolen

        assert await pull() == (True, True)
        file = confined_dockerd.root / "docker.nft"
        file.write_text(rules(cgroup, port))
        run("nft", "-f", str(file))
        assert await pull() == (True, False)
        run("nft", "delete", "table", "inet", "podlane-docker")
        assert await pull() == (True, True)
        real.close()
