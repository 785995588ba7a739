"""The command `podlane network`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def podlane_network(kubeconfig: Path, *words: str, code: int = 0) -> str:
    """Run `podlane network` and return its output. `code` is the expected exit code."""
    command = Path(sys.executable).with_name("podlane")
    process = subprocess.run(
        [command, "network", *words, "--kubeconfig", kubeconfig], capture_output=True, text=True, check=False
    )
    assert process.returncode == code, process.stdout + process.stderr
    return process.stdout + process.stderr
