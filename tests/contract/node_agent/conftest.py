"""A dockerd that the tests of a module share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import images
from tests.testbed.docker.daemon import Dockerd


@pytest.fixture(scope="module")
def dockerd() -> Iterator[Dockerd]:
    daemon = Dockerd(Path(f"/tmp/podlane-dockerd-{os.getpid()}"))
    daemon.root.mkdir()
    process = daemon.start()
    try:
        images.load(str(daemon.socket))
        yield daemon
        client = daemon.client()
        for container in client.containers(all=True):
            client.remove_container(container["Id"], force=True)
        client.close()
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(daemon.root)
