"""The commands that README shows to a user of a project, as they are written there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.documents import LAB, refusal, scripts, sections
from tests.testbed.lab.cluster import Cluster
from tests.testbed.wait import CALL_SECONDS


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Return a directory with `.lab`, as the clone of the repository has it."""
    (tmp_path / ".lab").symlink_to(cluster.lab.root)
    yield tmp_path
    names = ("deployment/web", "pod/hello", "pod/hello-debug")
    cluster.kubectl("-n", "red", "delete", *names, "--ignore-not-found", "--wait=false")
    cluster.kubectl("delete", "namespace", "mine", "--ignore-not-found", "--wait=false")


def test_every_command_of_a_user_does_what_readme_says(folder: Path) -> None:
    commands = list(scripts(*sections(LAB)))
    assert any(refusal(command) for command, _ in commands)
    environment = {**os.environ, "HOME": str(folder)}
    for command, script in commands:
        assert script.startswith("export KUBECONFIG=")
        done = subprocess.run(
            ["bash", "-c", script],
            capture_output=True,
            text=True,
            timeout=CALL_SECONDS,
            check=False,
            cwd=folder,
            env=environment,
        )
        assert bool(done.returncode) == bool(refusal(command)), f"{command}: {done.stderr}"
        assert refusal(command) in done.stderr + done.stdout, command
