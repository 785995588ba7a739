"""SIGKILL of the agent at driver calls of a pod's lifetime, on a real Docker: no container is started twice.

A run chooses one of three calls by its seed; PODLANE_ALL_KILLS=1 (`make soak`) lets it take them all.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator

import pytest

from tests.testbed.fault_injection import Share
from tests.testbed.node.consistency import CGROUPS, inconsistencies, wait_until_consistent
from tests.testbed.node.disturbed_node import AGENT, OBJECTS, DisturbedNode, full_pod, restart_count
from tests.testbed.wait import wait_until

TAKES_ALL = bool(os.environ.get("PODLANE_ALL_KILLS"))
SEED = int(os.environ.get("PODLANE_SEED", random.SystemRandom().randrange(1 << 32)))
"""Which calls are taken; a failure names it, and PODLANE_SEED sets it."""

SHARE = Share(1 if TAKES_ALL else 3, SEED)
SECONDS = 1200.0
"""For all calls, the agent is started some 150 times: in 40 seconds, and ten times as long on a busy machine."""

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
            "MORTAL_SHARE": str(SHARE),
        }
        yield node


def test_agent_killed_at_driver_calls_starts_nothing_twice(node: DisturbedNode) -> None:
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
    assert set(deaths) >= {call for call in DIED_OF if SHARE.has(call)}, SHARE
    assert len(deaths) > 20, SHARE
    kinds = {"run", "DELETE", "GET", "os.mkdir", "os.rename", "os.rmdir", "open"}
    assert not TAKES_ALL or {act.split()[0] for act in deaths} >= kinds
    assert node.process(AGENT).is_running()
