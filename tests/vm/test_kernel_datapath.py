"""Isolation, services and traces on Open vSwitch's kernel datapath, in machines whose kernel has it."""

from __future__ import annotations

import os
import re
import sys

import pytest

from tests.vm import kernel_datapath, machine

PODS = "tests/e2e/lab/test_pods.py"
PARTS = {
    "net_isolation": ("tests/net/isolation",),
    "net_services": (
        "tests/net/node/test_tunnel_port.py",
        "tests/net/services/test_external_clients.py",
        "tests/net/services/test_host_network_endpoints.py",
        "tests/net/services/test_pod_clients.py",
        "tests/net/services/test_services.py",
    ),
    "e2e_isolation": (
        f"{PODS}::test_pods_reach_only_pods_of_their_own_project_across_nodes",
        f"{PODS}::test_pod_exchanges_tcp_and_udp_with_the_outside_and_its_node",
        f"{PODS}::test_pod_with_a_spoofed_address_reaches_nothing",
        "tests/e2e/lab/test_cluster_dns.py",
        "tests/e2e/lab/test_services.py",
    ),
    "trace": (
        "tests/e2e/lab/test_drop_events.py",
        "tests/e2e/lab/test_network_command.py",
        "tests/e2e/lab/test_why.py",
    ),
}
"""Tests that this host runs with the switch in user space. Each part has a machine of its own."""

LEFT_OUT: dict[str, str] = {}
"""Test → why it cannot pass, or takes too long, in such a machine."""

PATIENCE = 10
SECONDS = 1500
WHY_NOT = machine.missing() or ("" if "PODLANE_VM" in os.environ else "takes minutes: `make vm` runs it")

SCRIPT = """\
ip link set lo up
mkdir -p /lib/modules
ln -s {kernels}/lib/modules/$(uname -r) /lib/modules/
depmod
modprobe openvswitch || exit 1
cd {source}
export PYTHONDONTWRITEBYTECODE=1 PODLANE_PATIENCE={patience}
exec {python} -m pytest -v --color=no --durations=0 -p no:cacheprovider -p {plugin} {tests}
"""
"""Where the module is, labs and daemons take the kernel's datapath."""


def script(*tests: str) -> str:
    """Return the script that runs these tests, as arguments of pytest, in a machine."""
    return SCRIPT.format(
        kernels=machine.KERNELS,
        source=machine.ROOT,
        patience=PATIENCE,
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
