"""The script that removes a node from its host: what is below the directory of its pods."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "systemd" / "remove-node.sh"
PRIVATE = "set -e; mount --make-rprivate /; mount -t tmpfs none /var/log\n"
"""Mounts are those of the test only, and so are the logs of pods."""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
@pytest.mark.parametrize("name", ["plain", "a blank", "a\\backslash", "a%percent", "-dash"])
def test_mounts_of_any_name_are_removed(tmp_path: Path, name: str) -> None:
    functions = (
        SCRIPT.read_text()
        .partition("\n[[ $# == 0 ||")[0]
        .replace("\nstate=/var/lib/podlane\n", f"\nstate={tmp_path}\n")
    )
    assert f"state={tmp_path}" in functions
    (tmp_path / "docker").write_text("#!/bin/sh\n")
    (tmp_path / "docker").chmod(0o755)
    mount = tmp_path / "node-agent/pods/uid/volumes" / name
    mount.mkdir(parents=True)
    script = (
        f'''{PRIVATE}mount -t tmpfs none "$1"; mountpoint -q "$1"\n{functions}\nremove_pods; ! mountpoint -q "$1"'''
    )
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", script, "x", str(mount)],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
