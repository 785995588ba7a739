"""A Docker that accepts connections and never answers."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.testbed.node.consistency import nothing_left, vitals, wait_until_consistent
from tests.testbed.node.disturbed_node import (
    AGENT,
    DOCKER,
    MOST_THREADS,
    OBJECTS,
    DisturbedNode,
    full_pod,
    pod,
    restart_count,
    running_containers,
)
from tests.testbed.node.single_node import NODE
from tests.testbed.wait import wait_until

ANSWER_SECONDS = 4
SWEEP_SECONDS = 120.0
"""What Docker made late of a pod that is gone is swept within a minute."""

HANGS = re.compile("False KubeletNotReady Docker (has not answered for 4 s|does not answer: .*timed out.*)")
PROBE = """\
    livenessProbe: {exec: {command: ["true"]}, periodSeconds: 1, timeoutSeconds: 3, failureThreshold: 2}
"""


@pytest.fixture
def node() -> Iterator[DisturbedNode]:
    with DisturbedNode() as node:
        node.apply(OBJECTS)
        node.begin(f"--runtime-request-timeout-seconds={ANSWER_SECONDS}")
        yield node


def ready_condition(node: DisturbedNode) -> str:
    """Return status, reason and message of the node's condition Ready."""
    jsonpath = '{.status.conditions[?(@.type=="Ready")]}'
    words = jsonpath.replace("]}", "]['status','reason','message']}")
    return node.kubectl("get", "node", NODE, "-o", f"jsonpath={words}")


def test_hanging_docker_is_reported_and_disturbs_no_pod(node: DisturbedNode) -> None:
    node.apply(full_pod(node, "old"), pod(node, "probed", more=PROBE), pod(node, "leaving"))
    wait_until_consistent(node)
    before = running_containers(node)
    leaving = {
        container_id for container_id in before if "leaving" in node.docker("inspect", "-f", "{{.Name}}", container_id)
    }
    node.process(DOCKER).suspend()
    node.apply(*(pod(node, f"new-{number}") for number in range(4)))
    node.delete("leaving")
    wait_until(lambda: HANGS.fullmatch(ready_condition(node)), "it is told")
    wait_until(
        lambda: HANGS.fullmatch(f"False KubeletNotReady {node.health('/readyz')[1].strip()}"), "also at the door"
    )
    assert node.health("/readyz")[0] == 503
    assert node.health("/healthz") == (200, "ok")
    pods_given_up = [f"pod default/new-{number}" for number in range(4)]
    wait_until(lambda: all(node.log(AGENT).count(f'loop="{name}"') >= 2 for name in pods_given_up), "two tries of each")
    node.delete("new-3")
    assert vitals(node).threads <= MOST_THREADS
    assert not vitals(node).children
    node.process(DOCKER).resume()
    wait_until(lambda: ready_condition(node).startswith("True KubeletReady"), "the node is ready")
    wait_until_consistent(node, SWEEP_SECONDS)
    assert before.items() - running_containers(node).items() == {
        (container_id, before[container_id]) for container_id in leaving
    }
    assert restart_count(node, "old") == restart_count(node, "probed") == 0
    node.kubectl("delete", "pods", "--all", "--timeout=60s")
    nothing_left(node)


def test_agent_stops_at_once_while_docker_hangs(node: DisturbedNode) -> None:
    node.apply(pod(node, "one"))
    wait_until_consistent(node)
    node.process(DOCKER).suspend()
    wait_until(lambda: ready_condition(node).startswith("False"), "it is told")
    agent = node.process(AGENT)
    agent.terminate()
    assert agent.wait(timeout=ANSWER_SECONDS) is not None
