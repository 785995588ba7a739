"""Services on Open vSwitch's kernel datapath with real packets, in a machine whose kernel has it."""

from __future__ import annotations

import os
import re
import sys

import pytest

from tests.vm import machine

INSIDE = (
    "tests/net/node/test_tunnel_port.py",
    "tests/net/services/test_pod_clients.py",
    "tests/net/services/test_services.py",
)
"""Cluster IPs and node ports by TCP and UDP on both nodes, other projects, a pod that calls itself, refusals."""
LEFT_OUT = "can_soon_connect_to_the_endpoint or trace or killed_daemon or flows_and_groups"
"""The kernel remembers calls that have ended for longer (docs/adr/0019-pod-service-traffic-in-open-vswitch.md); a trace
failed in such a machine, why is open, and what follows it has not been tried.
"""

PATIENCE = 3
SECONDS = 1200
WHY_NOT = machine.missing() or ("" if "PODLANE_VM" in os.environ else "takes minutes: `make vm` runs it")

SCRIPT = """\
ip link set lo up
mkdir -p /lib/modules
ln -s {kernels}/lib/modules/$(uname -r) /lib/modules/
depmod
modprobe openvswitch || exit 1
cd {source}
export PYTHONDONTWRITEBYTECODE=1 PODLANE_PATIENCE={patience}
exec {python} -m pytest -v --color=no -p no:cacheprovider -k 'not ({left_out})' {tests}
"""
"""Where the module is, labs and daemons take the kernel's datapath."""


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_service_tests_pass_on_the_kernel_datapath() -> None:
    """The tests that this host runs with the switch in user space pass there, too."""
    script = SCRIPT.format(
        kernels=machine.KERNELS,
        source=machine.ROOT,
        patience=PATIENCE,
        python=sys.executable,
        left_out=LEFT_OUT,
        tests=" ".join(INSIDE),
    )
    code, output = machine.run(script, 2, SECONDS)
    summary = re.findall(r"=+ (.*passed.*) in ", output)
    assert code == 0, output
    assert len(summary) == 1
    assert "skipped" not in summary[0]
