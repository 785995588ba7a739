"""Clock changes, and ten minutes without the master: no pod is affected.

The clock is that of the agent alone (libfaketime): no test sets the clock of the machine that it runs on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from api.meta import times
from tests.testbed.node.consistency import nothing_left, wait_until_consistent
from tests.testbed.node.disturbed_node import (
    AGENT,
    MASTER,
    OBJECTS,
    DisturbedNode,
    full_pod,
    pod,
    pod_phases,
    restart_count,
    running_containers,
)
from tests.testbed.node.single_node import NODE
from tests.testbed.wait import wait_until

[LIBRARY] = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
OFTEN = "exec: {command: ['true']}, periodSeconds: 1, timeoutSeconds: 30"
PROBE = f"""\
    livenessProbe: {{{OFTEN}, initialDelaySeconds: 1000, failureThreshold: 1}}
    readinessProbe: {{{OFTEN}}}
"""


HURRY, ABSENCE_SECONDS = 60, 600
"""How much faster time goes by for an agent while the master is away, and for how long of its time that is."""


@pytest.fixture(scope="module")
def host() -> Iterator[DisturbedNode]:
    with DisturbedNode() as node:
        node.apply(OBJECTS)
        yield node


@pytest.fixture
def node(host: DisturbedNode) -> Iterator[DisturbedNode]:
    host.environment = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(host.root / "time"),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    set_clock(host, "+0h")
    begin(host)
    yield host
    host.kubectl("delete", "pods", "--all", "--timeout=60s")
    nothing_left(host)


FAILED_SLEEP = "    time.sleep(delay)\nOSError: [Errno 22] Invalid argument\n"


def begin(node: DisturbedNode, *flags: str) -> None:
    """Start the agent, and wait until it has renewed its lease. Start it again if libfaketime ends it.

    libfaketime lets a sleep of the agent's first commands fail sometimes. An earlier agent may have left the node
    ready, so only the lease shows that this agent runs.
    """
    before = renewed(node)
    node.agent(*flags)
    wait_until(lambda: has_begun(node, flags, before), "the agent has renewed its lease")


def has_begun(node: DisturbedNode, flags: tuple[str, ...], before: str) -> bool:
    if node.process(AGENT).status() == psutil.STATUS_ZOMBIE:
        assert node.log(AGENT).endswith(FAILED_SLEEP), node.log(AGENT)
        node.kill(AGENT)
        node.agent(*flags)
    return renewed(node) != before and node.node_condition("Ready") == "True"


def set_clock(node: DisturbedNode, by: str) -> None:
    """Set the clock's distance from the real time, at once."""
    part = node.root / "time.part"
    part.write_text(f"{by}\n")
    part.rename(node.root / "time")


def renewed(node: DisturbedNode) -> str:
    """Return the time at which the agent renewed its lease, by its clock; empty before the first renewal."""
    words = ("get", "lease", NODE, "--ignore-not-found", "-o", "jsonpath={.spec.renewTime}")
    return node.kubectl("-n", "kube-node-lease", *words)


def hours_ahead(node: DisturbedNode) -> int:
    """Return the hours by which the agent's clock is ahead."""
    return round((times.parse_time(renewed(node)) - datetime.now(UTC)).total_seconds() / 3600)


def until_beaten(node: DisturbedNode, times: int) -> None:
    """Wait until the lease has been renewed this number of times."""
    for _ in range(times):
        before = renewed(node)
        wait_until(lambda before=before: renewed(node) != before, "the lease is renewed")  # type: ignore[misc]


def test_clock_change_ends_and_starts_no_container(node: DisturbedNode) -> None:
    node.apply(full_pod(node, "old"), pod(node, "probed", more=PROBE))
    node.apply(pod(node, "limited", extra="  activeDeadlineSeconds: 3600"))
    wait_until_consistent(node)
    before = running_containers(node)
    for number, hours in enumerate((5, -5, 0)):
        set_clock(node, f"{hours:+}h")
        wait_until(lambda hours=hours: hours_ahead(node) == hours, "the lease has the new time")  # type: ignore[misc]
        until_beaten(node, 2)
        node.apply(pod(node, f"new-{number}", more=PROBE, extra="  activeDeadlineSeconds: 3600"))
        wait_until_consistent(node)
        assert before.items() <= running_containers(node).items()
        assert node.node_condition("Ready") == "True"
    assert pod_phases(node) == {"Running"}
    assert restart_count(node, "old") == restart_count(node, "probed") == restart_count(node, "limited") == 0


def test_clock_change_does_not_shorten_a_grace_period(node: DisturbedNode) -> None:
    """A container that needs time to end is not killed because the clock jumps ahead."""
    command = "trap 'sleep 3; echo ended >> /witness/ended; exit 0' TERM; tail -f /dev/null & wait"
    node.apply(pod(node, "slow", command=command).replace("PeriodSeconds: 0", "PeriodSeconds: 1000"))
    wait_until_consistent(node)
    node.delete("slow")
    wait_until(lambda: "stopping container" in node.log(AGENT), "it is asked to stop")
    for step in ("+5h", "-5h"):
        set_clock(node, step)
        until_beaten(node, 1)
    wait_until(lambda: not node.kubectl("get", "pods", "-o", "name"), "it is gone")
    assert (node.witness / "ended").read_text() == "ended\n"


def test_active_deadline_is_enforced_when_the_clock_is_set_back(node: DisturbedNode) -> None:
    node.apply(pod(node, "short", extra="  activeDeadlineSeconds: 5"))
    wait_until_consistent(node)
    set_clock(node, "-5h")
    wait_until(lambda: node.status("short").get("reason") == "DeadlineExceeded", "its time is over")


def test_node_keeps_its_pods_running_for_ten_minutes_without_the_master(node: DisturbedNode) -> None:
    """Running pods continue, ended containers restart, static pods are created and removed. The master is informed when
    it is back.
    """
    node.environment = {"LD_PRELOAD": str(LIBRARY), "FAKETIME": f"+0 x{HURRY}"}
    begin(node, "--heartbeat-seconds=10", "--runtime-request-timeout-seconds=3600")
    manifests = node.root / "manifests"
    (manifests / "going.yaml").write_text(pod(node, "going"))
    node.apply(full_pod(node, "old"), pod(node, "ending"))
    wait_until_consistent(node)
    before, ending = running_containers(node), container_of(node, "ending")
    removed = {
        container_id for container_id in before if "going" in node.docker("inspect", "-f", "{{.Name}}", container_id)
    }
    began = time.monotonic()
    node.kill(MASTER)
    node.docker("kill", ending)
    (manifests / "coming.yaml").write_text(pod(node, "coming"))
    (manifests / "going.yaml").unlink()
    wait_until(lambda: time.monotonic() - began >= ABSENCE_SECONDS / HURRY, "ten minutes have passed for the agent")
    wait_until(lambda: "k8s_main_coming" in node.docker("ps", "--format", "{{.Names}}"), "the static pod runs")
    wait_until(lambda: not removed & running_containers(node).keys(), "the other static pod is gone")
    assert before.keys() - running_containers(node).keys() == {*removed, ending}
    assert node.process(AGENT).is_running()
    node.start_master()
    wait_until_consistent(node)
    assert [restart_count(node, name) for name in ("old", "ending", f"coming-{NODE}")] == [0, 1, 0]
    assert pod_phases(node) == {"Running"}
    (manifests / "coming.yaml").unlink()


def container_of(node: DisturbedNode, name: str) -> str:
    """Return the id of a pod's first container."""
    return str(node.status(name)["containerStatuses"][0]["containerID"]).removeprefix("docker://")
