"""The runtime check of a hanging Docker: one query at a time, with a timeout."""

from __future__ import annotations

import asyncio

import pytest

from node_agent.node.status_loop import RuntimeHealthCheck
from reconcile.errors import NotReady
from tests.testbed.docker.fake import FakeDocker


class Hanging(FakeDocker):
    """A Docker that does not respond while it hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.questions = 0

    async def version(self) -> str:
        self.questions += 1
        await self.goes_on.wait()
        return await super().version()


async def test_hanging_runtime_check_is_started_once() -> None:
    docker = Hanging()
    health_check = RuntimeHealthCheck(docker, 0.01)
    for _ in range(3):
        with pytest.raises(NotReady, match="Docker has not answered for 0 s"):
            await health_check.check()
    assert docker.questions == 1
    docker.goes_on.set()
    assert (await RuntimeHealthCheck(docker).check())[0] == "20.10.24"


async def test_runtime_check_result_is_returned_and_not_cached() -> None:
    docker = Hanging()
    docker.goes_on.set()
    health_check = RuntimeHealthCheck(docker)
    docker.trouble = NotReady("Docker does not answer: Connection refused")
    with pytest.raises(NotReady, match="refused"):
        await health_check.check()
    docker.trouble = None
    assert (await health_check.check())[0] == "20.10.24"
    docker.images.add("toolbox:2")
    assert [image.names for image in (await health_check.check())[1]] == [("toolbox:2",)]
    assert docker.questions == 3
