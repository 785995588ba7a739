"""The commands that README shows to a user of a project, as they are written there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.lab.cluster import Cluster

README = Path(__file__).resolve().parents[3] / "README.md"
HEADING = "### As a user of a project"
REFUSED = "# Forbidden"


def commands() -> list[str]:
    """Return the lines of the blocks in the section of README."""
    section = README.read_text().split(HEADING)[1].split("\n##")[0]
    blocks = section.split("```")[1::2]
    return [line for block in blocks for line in block.splitlines() if line]


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Return a directory with `.lab`, as the clone of the repository has it."""
    (tmp_path / ".lab").symlink_to(cluster.lab.root)
    yield tmp_path
    names = ("deployment/web", "pod/hello", "pod/hello-debug")
    cluster.kubectl("-n", "red", "delete", *names, "--ignore-not-found", "--wait=false")
    cluster.kubectl("delete", "namespace", "mine", "--ignore-not-found", "--wait=false")


def test_every_command_of_a_user_does_what_readme_says(folder: Path) -> None:
    first, *others = commands()
    assert first.startswith("export KUBECONFIG=")
    assert any(REFUSED in command for command in others)
    environment = {**os.environ, "HOME": str(folder)}
    for command in others:
        done = subprocess.run(
            ["bash", "-c", f"{first}\n{command}"],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env=environment,
        )
        if REFUSED in command:
            assert "Forbidden" in done.stderr, command
        else:
            assert done.returncode == 0, f"{command}: {done.stderr}"
