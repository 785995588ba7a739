"""Images of a lab are loaded although a dockerd has to be started again. What keeps a lab from starting is reported."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import docker.errors
import pytest
import requests

from lab import images, up
from lab.process import LabError
from lab.topology import LabNode


@pytest.fixture
def node(tmp_path: Path) -> LabNode:
    (tmp_path / "docker.sock").touch()
    return cast("LabNode", SimpleNamespace(name="node-1", root=tmp_path, docker_socket=tmp_path / "docker.sock"))


def fail(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> list[Exception]:
    """Let the first calls that load images fail with these errors. Return the errors of calls to come."""
    coming = list(errors)

    def load(_: str) -> None:
        if coming:
            raise coming.pop(0)

    monkeypatch.setattr(images, "load", load)
    return coming


async def test_images_are_loaded_after_dockerd_was_started_again(
    monkeypatch: pytest.MonkeyPatch, node: LabNode
) -> None:
    coming = fail(monkeypatch, requests.exceptions.ConnectionError("reset"))
    await up._load_images(node)
    assert not coming


@pytest.mark.parametrize(
    ("seconds", "error"),
    [(0.0, requests.exceptions.ConnectionError("reset")), (60.0, docker.errors.APIError("no space"))],
)
async def test_lasting_error_of_dockerd_is_reported(
    monkeypatch: pytest.MonkeyPatch, node: LabNode, seconds: float, error: Exception
) -> None:
    monkeypatch.setattr(up, "START_SECONDS", seconds)
    coming = fail(monkeypatch, error, error)
    with pytest.raises(LabError, match=r"^node-1: (reset|no space); see \.lab/node-1/log/dockerd\.log$"):
        await up._load_images(node)
    assert len(coming) == 1


def test_registry_whose_port_is_taken_is_reported() -> None:
    with socket.create_server(("", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(
            LabError, match=rf"^the registry of the lab cannot listen at {address}: Address already in use"
        ):
            up._refuse_taken_port(address)
    up._refuse_taken_port(address)
