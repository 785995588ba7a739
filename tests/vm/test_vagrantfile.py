"""The Vagrantfile, validated by vagrant."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("vagrant") is None, reason="vagrant is not installed (apt install vagrant)")
@pytest.mark.parametrize("environment", [{}, {"NODES": "5", "PLUGIN": "ovs-subnet"}])
def test_vagrant_validates_the_vagrantfile(tmp_path: Path, environment: dict[str, str]) -> None:
    """With a stand-in for VirtualBox, which only has to be there."""
    shutil.copy(ROOT / "Vagrantfile", tmp_path)
    shutil.copytree(ROOT / "vagrant", tmp_path / "vagrant")
    provider = tmp_path / "VBoxManage"
    provider.write_text("#!/bin/sh\necho 7.0.0\n")
    provider.chmod(0o755)
    surroundings = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "VAGRANT_HOME": str(tmp_path / "home"),
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        ["vagrant", "validate"],
        cwd=tmp_path,
        env={**os.environ, **surroundings, **environment, "VAGRANT_CHECKPOINT_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "validated successfully" in done.stdout
    assert (tmp_path / ".vagrant/join-secret").stat().st_mode & 0o777 == 0o600
