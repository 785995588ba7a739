"""Real switches agree with a model of ten lines for every pair of pods of hundreds of generated clusters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.testbed.isolation.mutants import MUTANTS
from tests.testbed.isolation.world import PlannedPod
from tests.testbed.trace.dummy_switch import DummySwitch
from tests.testbed.trace.model_check import MOST_PODS, GeneratedCluster, add_ports, find_differences, load

CLUSTERS = 200
NODES = 3
PROJECTS = ("blue", "default", "green", "red")
VNIDS = st.sampled_from((0, 10, 11, 12))


@st.composite
def plans(draw: st.DrawFn) -> GeneratedCluster:
    """Projects alone, joined or global; pods anywhere."""
    nodes = draw(st.integers(1, NODES))
    vnids = tuple((project, 0 if project == "default" else draw(VNIDS)) for project in PROJECTS)
    where = st.tuples(st.sampled_from(PROJECTS), st.integers(1, nodes))
    chosen = draw(st.lists(where, min_size=2, max_size=MOST_PODS))
    places = tuple(PlannedPod(f"pod-{n}", project, f"node-{node}") for n, (project, node) in enumerate(chosen))
    return GeneratedCluster(nodes, vnids, places)


@pytest.fixture(scope="module")
def switches() -> Iterator[dict[str, DummySwitch]]:
    with ExitStack() as stack:
        running = {f"node-{number + 1}": stack.enter_context(DummySwitch()) for number in range(NODES)}
        for switch in running.values():
            add_ports(switch)
        yield running


@settings(max_examples=CLUSTERS, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans())
def test_switches_agree_with_the_model(switches: dict[str, DummySwitch], plan: GeneratedCluster) -> None:
    assert not list(find_differences(load(plan, switches)))


PLAN = GeneratedCluster(
    2,
    (("blue", 11), ("default", 0), ("green", 11), ("red", 10)),
    (
        PlannedPod("red-a", "red", "node-1"),
        PlannedPod("red-b", "red", "node-2"),
        PlannedPod("blue-a", "blue", "node-1"),
        PlannedPod("admin-a", "default", "node-2"),
    ),
)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_model_check_detects_every_mutant(switches: dict[str, DummySwitch], mutant: str) -> None:
    assert not list(find_differences(load(PLAN, switches)))
    actual = list(find_differences(load(PLAN, switches, MUTANTS[mutant].network_flows)))
    assert any(line.startswith(MUTANTS[mutant].detected_by) for line in actual), actual
