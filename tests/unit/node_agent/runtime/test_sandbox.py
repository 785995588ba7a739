"""The sandbox of a pod: its image, and the back-off of its creation."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from node_agent.clock import steady_clock
from node_agent.config import PAUSE_IMAGE
from node_agent.runtime.actions import PodActions
from node_agent.runtime.pod_files import make_pod_dir
from node_agent.runtime.sandbox import create_container
from node_agent.runtime.spec import ContainerConfig
from reconcile.errors import Gone, NotReady
from tests.testbed.docker.fake import FakeDocker
from tests.unit.node_agent.examples import make_pod
from tests.unit.node_agent.fake_host import fake_host


async def test_locally_built_pause_image_is_not_pulled() -> None:
    docker = FakeDocker()
    docker.pulls[PAUSE_IMAGE] = None
    with pytest.raises(Gone):
        await create_container(docker, ContainerConfig(name="k8s_POD_web_red_0b7c_0", image=PAUSE_IMAGE, labels={}))
    assert not docker.pull_requests


async def test_sandbox_start_is_retried_with_back_off(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        sandbox, pod = host.sandbox(), make_pod()
        make_pod_dir(host.host, pod.metadata.uid)
        actions, delays = PodActions(sandbox_attempt=0), []

        async def fail() -> datetime:
            host.docker.trouble, before = NotReady("away"), steady_clock()
            with pytest.raises(NotReady):
                await sandbox.create(pod, 0, actions)
            host.docker.trouble = None
            assert sandbox.retry_at is not None
            delays.append(round((sandbox.retry_at - before).total_seconds()))
            return sandbox.retry_at

        assert not sandbox.is_backing_off(steady_clock())
        for _ in range(11):
            due = await fail()
            assert sandbox.is_backing_off(due - timedelta(milliseconds=1))
            assert not sandbox.is_backing_off(due)
        assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
        await sandbox.attach(pod, await sandbox.start(await sandbox.create(pod, 0, actions)))
        assert not sandbox.is_backing_off(steady_clock())
        await fail()
        assert delays[-1] == 1
