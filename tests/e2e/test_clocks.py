"""The agent's clock is set, and the master is away for ten minutes of it: no pod notices.

The clock is that of the agent alone (libfaketime): no test sets the clock of the machine that it runs on.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from api import manifest
from tests.e2e.agreement import agree, nothing_left
from tests.e2e.cluster import wait_until
from tests.e2e.disturbed import AGENT, MASTER, DisturbedNode, container, pod
from tests.e2e.single import NODE
from tests.e2e.test_disturbances import OBJECTS, phases, restarts, running, whole

[LIBRARY] = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
PROBE = """\
    livenessProbe: {exec: {command: ["true"]}, periodSeconds: 1, initialDelaySeconds: 1000, failureThreshold: 1}
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
"""


@pytest.fixture(scope="module")
def host() -> Iterator[DisturbedNode]:
    with DisturbedNode() as node:
        node.apply(OBJECTS)
        node.environment = {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(node.root / "time"),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        set_clock(node, "+0")
        yield node


@pytest.fixture
def node(host: DisturbedNode) -> Iterator[DisturbedNode]:
    set_clock(host, "+0")
    host.begin()
    yield host
    host.kubectl("delete", "pods", "--all", "--timeout=60s")
    nothing_left(host)


def set_clock(node: DisturbedNode, by: str) -> None:
    """As far from the right time as said, at once."""
    part = node.root / "time.part"
    part.write_text(f"{by}\n")
    part.rename(node.root / "time")


def renewed(node: DisturbedNode) -> str:
    """When the agent says that it has renewed its lease."""
    return node.kubectl("-n", "kube-node-lease", "get", "lease", NODE, "-o", "jsonpath={.spec.renewTime}")


def until_beaten(node: DisturbedNode, times: int) -> None:
    """The lease has been renewed so often."""
    for _ in range(times):
        before = renewed(node)
        wait_until(lambda before=before: renewed(node) != before, "the lease is renewed")  # type: ignore[misc]


def test_a_clock_that_is_set_ends_and_starts_nothing(node: DisturbedNode) -> None:
    node.apply(whole(node, "old"), pod(node, "probed", more=PROBE))
    node.apply(pod(node, "limited", extra="  activeDeadlineSeconds: 3600"))
    agree(node)
    before = running(node)
    right = renewed(node)
    for number, step in enumerate(("+5h", "-5h", "+0")):
        set_clock(node, step)
        wait_until(lambda: renewed(node)[:10] <= right[:10] or step != "-5h", "the lease has the new time")
        until_beaten(node, 2)
        node.apply(pod(node, f"new-{number}", more=PROBE, extra="  activeDeadlineSeconds: 3600"))
        agree(node)
        assert before.items() <= running(node).items()
        assert node.node_condition("Ready") == "True"
    assert phases(node) == {"Running"}
    assert restarts(node, "old") == restarts(node, "probed") == restarts(node, "limited") == 0


def test_a_clock_that_is_set_shortens_no_grace(node: DisturbedNode) -> None:
    """A container that takes its time to end is not killed because it is suddenly late."""
    command = "trap 'sleep 3; echo ended >> /witness/ended; exit 0' TERM; tail -f /dev/null & wait"
    node.apply(pod(node, "slow", command=command).replace("PeriodSeconds: 0", "PeriodSeconds: 1000"))
    agree(node)
    node.delete("slow")
    wait_until(lambda: "asking to stop" in node.log(AGENT), "it is asked to stop")
    for step in ("+5h", "-5h"):
        set_clock(node, step)
        until_beaten(node, 1)
    wait_until(lambda: not node.kubectl("get", "pods", "-o", "name"), "it is gone")
    assert (node.witness / "ended").read_text() == "ended\n"


def test_a_deadline_comes_although_the_clock_is_set_back(node: DisturbedNode) -> None:
    node.apply(pod(node, "short", extra="  activeDeadlineSeconds: 5"))
    agree(node)
    set_clock(node, "-5h")
    wait_until(lambda: node.status("short").get("reason") == "DeadlineExceeded", "its time is over")
