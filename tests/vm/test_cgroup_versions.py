"""Cgroups of versions 1 and 2, created by Docker and by systemd, on kernels of their own."""

from __future__ import annotations

import os
import re
import sys

import pytest

from tests.vm import machine

INSIDE = (
    "tests/contract/node_agent/test_cgroups.py",
    "tests/vm/test_slices.py",
    "tests/e2e/node/test_resource_limits.py",
)
PATIENCE = 10
SECONDS = 1200
WHY_NOT = machine.missing() or ("" if "PODLANE_VM" in os.environ else "takes minutes: `make vm` runs it")

SCRIPT = """\
ip link set lo up
cd {source}
export PYTHONDONTWRITEBYTECODE=1 PODLANE_PATIENCE={patience}
export PODLANE_DOCKERD_FLAGS=--exec-opt=native.cgroupdriver={driver}
exec {python} -m pytest -v --color=no -p no:cacheprovider {tests}
"""


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.parametrize(("version", "driver"), [(2, "systemd"), (2, "cgroupfs"), (1, "systemd"), (1, "cgroupfs")])
def test_resource_tests_pass_on_each_cgroup_version(version: int, driver: str) -> None:
    """The tests that this machine runs with its own control groups pass there, too, and none is left out."""
    script = SCRIPT.format(
        source=machine.ROOT, patience=PATIENCE, driver=driver, python=sys.executable, tests=" ".join(INSIDE)
    )
    code, output = machine.run(script, version, SECONDS)
    summary = re.findall(r"=+ (.*passed.*) in ", output)
    assert code == 0, output
    assert len(summary) == 1
    assert "skipped" not in summary[0]
