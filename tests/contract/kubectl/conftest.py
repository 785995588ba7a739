"""Every kubectl on this machine against a real master."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.apiserver.process import ApiServer
from tests.testbed.kubectl import ALL_PROGRAMS, RunKubectl


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    api_server = ApiServer(tmp_path_factory.mktemp("master"))
    api_server.start()
    yield api_server
    assert api_server.stop() == 0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory with the home directories of all versions."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(params=ALL_PROGRAMS, ids=[Path(program).name for program in ALL_PROGRAMS])
def kubectl(server: ApiServer, request: pytest.FixtureRequest, home: Path) -> RunKubectl:
    """Return a function that runs kubectl. Each version has a home directory, and its cache, for the module."""
    own_home = home / Path(request.param).name

    def run(*words: str, text: str | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [request.param, f"--kubeconfig={server.kubeconfig}", *words],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "HOME": str(own_home)},
        )
        assert done.returncode == code, f"{words}: {done.stdout} {done.stderr}"
        return done

    return run


@pytest.fixture
def project(request: pytest.FixtureRequest) -> str:
    return f"p-{request.node.callspec.id.replace('.', '-')}"
