"""The image podlane/toolbox."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from lab.images import toolbox

CHROOT = "/usr/sbin/chroot"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root directory")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toolbox")
    with tarfile.open(fileobj=io.BytesIO(toolbox())) as archive:
        names = [entry.name for entry in archive if not entry.isdir()]
        assert len(names) == len(set(names))
        archive.extractall(folder, filter="tar")
    return folder


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (("/bin/bash", "-c", "words=(a b); echo ${words[1]^^}"), "B\n"),
        (("/bin/sh", "-c", "ls /bin/bash"), "/bin/bash\n"),
        (("/usr/bin/curl", "--version"), "curl "),
    ],
)
def test_programs_of_the_image_run(command: tuple[str, ...], output: str, root: Path) -> None:
    done = subprocess.run([CHROOT, root, *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(output)


def test_the_image_describes_the_usual_terminals(root: Path) -> None:
    described = {path.name for path in (root / "lib" / "terminfo").glob("*/*")}
    assert {"xterm", "xterm-256color", "screen", "linux"} <= described
