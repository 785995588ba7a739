"""The Vagrantfile, validated by vagrant for both providers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WHY_NOT = "" if shutil.which("vagrant") else "vagrant is not installed (`make test` installs it)"


def vagrant(folder: Path, *words: str, **environment: str) -> str:
    """Run vagrant on a copy of the Vagrantfile, with a stand-in for VirtualBox, which only has to be there."""
    for name in ("Vagrantfile", "vagrant"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    stand_in = folder / "VBoxManage"
    stand_in.write_text("#!/bin/sh\necho 7.0.0\n")
    stand_in.chmod(0o755)
    surroundings = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "VAGRANT_HOME": str(folder / "home"),
        "HOME": str(folder),
        "VAGRANT_CHECKPOINT_DISABLE": "1",
    }
    done = subprocess.run(
        ["vagrant", *words],
        cwd=folder,
        env={**os.environ, **surroundings, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.parametrize(
    ("provider", "environment"), [("virtualbox", {}), ("libvirt", {"NODES": "25", "PLUGIN": "ovs-subnet"})]
)
def test_vagrant_validates_the_vagrantfile(tmp_path: Path, provider: str, environment: dict[str, str]) -> None:
    printed = vagrant(tmp_path, "validate", VAGRANT_DEFAULT_PROVIDER=provider, **environment)
    assert "validated successfully" in printed
    assert not list(tmp_path.glob(".vagrant/*secret*")), "nothing lies open on the user's machine"


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_nodes_beyond_the_first_ones_are_there_for_later(tmp_path: Path) -> None:
    printed = vagrant(tmp_path, "status", "node-7", "node-20", VAGRANT_DEFAULT_PROVIDER="virtualbox")
    assert "node-7" in printed
    assert "not created" in printed
