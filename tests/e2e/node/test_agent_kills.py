"""SIGKILL of the agent at every driver call of a pod's lifetime, on a real Docker: no container is started twice."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.testbed.node.consistency import CGROUPS, inconsistencies, wait_until_consistent
from tests.testbed.node.disturbed_node import AGENT, OBJECTS, DisturbedNode, full_pod, restart_count
from tests.testbed.wait import wait_until

SECONDS = 1200.0
"""The agent is started some 150 times. That takes 40 seconds, and ten times as long on a busy machine."""

NAMES = [f"k8s_{name}_one_default_ID_0" for name in ("POD", "first", "main")]
DIED_OF = {f"{sent}POST /v1.41/containers/create?name={name} " for name in NAMES for sent in ("", "sent ")} | {
    f"{sent}POST /v1.41/start ['{name}']" for name in NAMES for sent in ("", "sent ")
}
"""Some of it: if the agent lives it does not show that it can die."""


@pytest.fixture
def node() -> Iterator[DisturbedNode]:
    with DisturbedNode() as node:
        node.apply(OBJECTS)
        places = (node.state, node.root / "logs", CGROUPS)
        node.program = (sys.executable, "-m", "tests.testbed.node.crashing_agent")
        node.environment = {
            "MORTAL_RECORD": str(node.root / "deaths"),
            "MORTAL_PLACES": ":".join(map(str, places)),
        }
        yield node


def test_agent_killed_at_every_driver_call_starts_nothing_twice(node: DisturbedNode) -> None:
    node.agent()
    node.apply(full_pod(node, "one"))
    wait_until_consistent(node, SECONDS)
    assert restart_count(node, "one") == 0
    main = node.status("one")["containerStatuses"][0]["containerID"].removeprefix("docker://")
    node.docker("kill", main)
    wait_until(lambda: restart_count(node, "one") == 1 and not inconsistencies(node), "it is started again", SECONDS)
    node.delete("one")
    wait_until(lambda: not any(node.traces().values()) and not inconsistencies(node), "nothing is left", SECONDS)
    deaths = (node.root / "deaths").read_text().splitlines()
    assert set(deaths) >= DIED_OF
    assert {act.split()[0] for act in deaths} >= {"run", "DELETE", "GET", "os.mkdir", "os.rename", "os.rmdir", "open"}
    assert node.process(AGENT).is_running()
