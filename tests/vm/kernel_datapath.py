"""A plugin of pytest: each test fails whose switches forward in user space, and the summary counts the packets.

test_kernel_datapath.py of tests/vm loads it in machines that have Open vSwitch's kernel module.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import psutil
import pytest

from lab.process import LabError, run

TRACE = "tests/net/services/test_services.py::test_trace_follows_a_service_connection_to_an_endpoint"
PARTS = {
    "isolation": (
        "tests/net/isolation/test_fragments.py",
        "tests/net/isolation/test_isolation.py",
        "tests/net/isolation/test_loopback_addresses.py",
        "tests/net/isolation/test_multicast.py",
    ),
    "vnid-changes": ("tests/net/isolation/test_vnid_changes.py",),
    "attacks": ("tests/net/isolation/test_attacks.py",),
    "service-attacks": ("tests/net/isolation/test_service_attacks.py",),
    "services": (
        "tests/net/node/test_tunnel_port.py",
        "tests/net/services/test_external_clients.py",
        "tests/net/services/test_host_network_endpoints.py",
        "tests/net/services/test_pod_clients.py",
        "tests/net/services/test_services.py",
        f"--deselect={TRACE}",
    ),
    "trace": (TRACE,),
}
"""Arguments of pytest: tests that this host runs with the switch in user space. Each part has a machine of its own."""

LEFT_OUT = {
    "tests/e2e/lab": (
        "its three nodes took eleven minutes to become ready, on two processors that other machines used, too; then "
        "the master did not answer in time"
    ),
}
"""Test → why it does not run in such a machine."""

SUMMARY = "least packets of a switch in the kernel's datapath: "

_DATAPATH = re.compile(r"^(\w+)@\S+:$", re.MULTILINE)
_LOOKUPS = re.compile(r"^ +lookups: hit:(\d+) missed:(\d+) ", re.MULTILINE)

packets_of_switches: dict[str, int] = {}
"""Control socket of each switch that a test has used → packets that its datapath has looked up."""


def require_kernel(switch: str, shown: str) -> int:
    """Return the number of packets in the output of `dpctl/show`. Assert that the kernel forwards them."""
    types = sorted(_DATAPATH.findall(shown))
    assert types == ["system"], f"{switch}: its datapaths are {types}, not the kernel's alone"
    return sum(int(number) for hit_and_missed in _LOOKUPS.findall(shown) for number in hit_and_missed)


def control_sockets() -> Iterator[str]:
    """Yield the control sockets of all running switches."""
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "ovs-vswitchd":
            words = [word for word in process.info["cmdline"] or () if word.startswith("--unixctl=")]
            yield from (word.removeprefix("--unixctl=") for word in words)


@pytest.fixture(autouse=True)
def _switches_use_the_kernels_datapath() -> Iterator[None]:
    yield
    for control in control_sockets():
        try:
            shown = run("ovs-appctl", "--timeout=20", "-t", control, "dpctl/show")
        except LabError:
            continue  # A test has just killed it.
        packets_of_switches[control] = require_kernel(control, shown)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure at once: a machine that is out of time does not come to the end of the report."""
    if report.failed:
        sys.stdout.write(f"\n{report.longreprtext}\n")
        sys.stdout.flush()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many packets the switch has forwarded that has forwarded the fewest."""
    terminalreporter.write_line(f"{SUMMARY}{min(packets_of_switches.values(), default=0)}")
