"""The command `podlane network`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def podlane_network(kubeconfig: Path, *words: str, code: int = 0) -> str:
    """What it prints; `code` is the exit code that is expected."""
    command = Path(sys.executable).with_name("podlane")
    done = subprocess.run(
        [command, "network", *words, "--kubeconfig", kubeconfig], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr
