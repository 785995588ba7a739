"""The counterparts of drivers: a master, a switch without packets, and network namespaces."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from lab.process import run
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.namespaces import inside
from tests.testbed.streaming.pod_server import PodServer, running_pod_server
from tests.testbed.trace.dummy_switch import DummySwitch


@pytest.fixture(scope="module", autouse=True)
def _dockers_sockets() -> Iterator[None]:
    """Docker's library leaves the socket open with which it did not reach Docker: none is left to the next module."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Run a master for the tests of a module."""
    api_server = ApiServer(tmp_path_factory.mktemp("master"))
    api_server.start()
    yield api_server
    api_server.stop()


@pytest.fixture
async def api_client(server: ApiServer) -> AsyncIterator[UntypedClient]:
    async with Client(Kubeconfig.load(server.kubeconfig)) as client:
        yield UntypedClient(client)


@pytest.fixture
async def one_pod() -> AsyncIterator[PodServer]:
    """Run a server with one pod. At the end, no session may be left."""
    before = asyncio.all_tasks()
    async with running_pod_server() as running:
        yield running
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, left
    assert all(process.program.returncode is not None for process in running.processes)


@pytest.fixture
def switch() -> Iterator[DummySwitch]:
    with DummySwitch() as running:
        yield running


@pytest.fixture(scope="module")
def lasting_switch() -> Iterator[DummySwitch]:
    with DummySwitch() as running:
        yield running


@pytest.fixture
def node() -> Iterator[str]:
    """Run the test in a new network namespace, and yield its name."""
    with _namespace("node") as name, inside(name):
        run("ip", "link", "set", "lo", "up")
        yield name


@pytest.fixture
def pod() -> Iterator[str]:
    """Yield the path of another network namespace."""
    with _namespace("pod") as name:
        yield f"/run/netns/{name}"


@contextmanager
def _namespace(role: str) -> Iterator[str]:
    name = f"podctr-{os.getpid()}-{role}"
    run("ip", "netns", "add", name)
    try:
        yield name
    finally:
        run("ip", "netns", "del", name)
