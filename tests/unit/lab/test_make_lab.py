"""The options of `make lab`."""

from __future__ import annotations

import subprocess

import pytest

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
    command = ["make", "-C", str(ROOT), "--no-print-directory", "-n", "-o", "install", "lab", *variables]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(f"podlane lab up {options}")
