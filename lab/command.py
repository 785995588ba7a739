"""Runs one program and tells, when it fails, what it was and what it said."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping


class LabError(Exception):
    """`str(error)` is a sentence for the person at the terminal."""


def run(*command: str, environment: Mapping[str, str] | None = None) -> str:
    """What the program prints. Raises LabError with its own words."""
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=60)
    except FileNotFoundError:
        raise LabError(f"{command[0]} is not installed; `make lab` installs what the lab needs") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"{' '.join(command)}: did not end within 60 s") from None
    except subprocess.CalledProcessError as error:
        raise LabError(f"{' '.join(command)}: {(error.stderr or error.stdout).strip()}") from None
    return done.stdout


def succeeds(*command: str) -> bool:
    """Whether the program ends with 0."""
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
