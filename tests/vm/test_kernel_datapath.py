"""Isolation, services and traces on Open vSwitch's kernel datapath, in machines whose kernel has it."""

from __future__ import annotations

import os
import re
import sys

import pytest

from tests.vm import kernel_datapath, machine
from tests.vm.kernel_datapath import LEFT_OUT, PARTS

PATIENCE = 3
CLUSTERS = 2
"""Number of clusters that the attacks try with services, and of those without: a packet takes ten times as long."""

SECONDS = 1500
WHY_NOT = machine.missing() or ("" if "PODLANE_VM" in os.environ else "takes minutes: `make vm` runs it")

SCRIPT = """\
ip link set lo up
mkdir -p /lib/modules
ln -s {kernels}/lib/modules/$(uname -r) /lib/modules/
depmod
modprobe openvswitch || exit 1
cd {source}
export PYTHONDONTWRITEBYTECODE=1 PODLANE_PATIENCE={patience} PODLANE_CLUSTERS={clusters}
exec {python} -m pytest -v --color=no --durations=0 -s -p no:cacheprovider -p {plugin} {tests}
"""
"""Where the module is, labs and daemons take the kernel's datapath."""


def script(*tests: str) -> str:
    """Return the script that runs these tests, as arguments of pytest, in a machine."""
    return SCRIPT.format(
        kernels=machine.KERNELS,
        source=machine.ROOT,
        patience=PATIENCE,
        clusters=CLUSTERS,
        python=sys.executable,
        plugin=kernel_datapath.__name__,
        tests=" ".join((*tests, *(f"--deselect='{test}'" for test in LEFT_OUT))),
    )


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.parametrize("part", PARTS)
def test_tests_pass_on_the_kernel_datapath(part: str) -> None:
    """None is skipped, and every switch has forwarded packets in the kernel: the plugin fails a test if one did not."""
    code, output = machine.run(script(*PARTS[part]), 2, SECONDS)
    summary = re.findall(r"=+ (.*passed.*) in ", output)
    assert code == 0, output
    assert len(summary) == 1
    assert "skipped" not in summary[0]
    [packets] = re.findall(rf"^{kernel_datapath.SUMMARY}(\d+)", output, re.MULTILINE)
    assert int(packets) > 0
