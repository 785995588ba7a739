"""What `make lab` installs, and its options."""

from __future__ import annotations

import re
import subprocess

import pytest

from lab.up import NEEDED
from tests.testbed.documents import ROOT


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ((), "--nodes 3 --plugin ovs-multitenant"),
        (("REGISTRY=1", "NODES=2"), "--nodes 2 --plugin ovs-multitenant --registry"),
        (("PLUGIN=ovs-subnet",), "--nodes 3 --plugin ovs-subnet"),
    ],
)
def test_variables_of_make_are_options_of_the_lab(variables: tuple[str, ...], options: str) -> None:
    command = ["make", "-C", str(ROOT), "--no-print-directory", "-n", "-o", "lab-install", "lab", *variables]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(f"podlane lab up {options}")


def dry_run(target: str) -> str:
    """Return the shell commands of a target where nothing is installed yet."""
    command = ["make", "-C", str(ROOT), "-n", "-B", target, "VENV=/nowhere"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_lab_installs_what_it_needs_and_nothing_for_tests() -> None:
    lab, all_tests = dry_run("lab-install"), dry_run("install")
    [commands] = re.findall(r"for command in (.*?);", lab)
    assert set(NEEDED) - set(commands.split()) == {"bash"}
    assert "slapd" in all_tests
    assert "[dev]" in all_tests
    assert "slapd" not in lab
    assert "[dev]" not in lab
