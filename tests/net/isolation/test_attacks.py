"""Real packets agree with a model of ten lines, however six projects share VNIDs; mutants are detected."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.testbed.isolation.mutants import MUTANTS, SERVICE_MUTANTS, STALE_FLOW_MUTANTS
from tests.testbed.isolation.world import PlannedPod
from tests.testbed.netns.attacker import Attacker
from tests.testbed.netns.packet_world import PacketWorld, running_world
from tests.testbed.netns.services import OfferedServices
from tests.testbed.netns.vnid_changes import assign_vnids, revalidate_flows
from tests.testbed.wait import wait_until

SEED = int(os.environ.get("PODLANE_SEED", random.SystemRandom().randrange(1 << 32)))
"""In which order the clusters come; a failure names it, and PODLANE_SEED sets it."""

PROJECTS = ("amber", "blue", "cyan", "green", "red", "violet")
PLACES = (
    *(PlannedPod(f"{project}-pod", project, f"node-{1 + number % 2}") for number, project in enumerate(PROJECTS)),
    PlannedPod("admin-a", "default", "node-1"),
    PlannedPod("admin-b", "default", "node-2"),
)
CLUSTERS = 877
"""In so many ways six projects and the global lane can be put together."""

SOME = {"amber": 0, "blue": 1, "cyan": 1, "green": 2, "red": 2, "violet": 3}
OTHERS = {"amber": 1, "blue": 1, "cyan": 2, "green": 2, "red": 3, "violet": 3}
LAST_LOOK_SECONDS = 0.5
WITH_SERVICES = 200
"""So many of these have services; every change of lanes then takes twice as long."""

MOVE_EVERY = 20
"""After so many clusters the endpoint of a service is another one."""

MANY_CALLS = 100
ROOT = str(Path(__file__).parents[3])


@pytest.fixture(scope="module")
def cluster() -> Iterator[PacketWorld]:
    with running_world("podadv", 27, PLACES) as running:
        yield running


@pytest.fixture(scope="module")
def offers(cluster: PacketWorld) -> OfferedServices:
    return OfferedServices(cluster)


@pytest.fixture
def adversary(cluster: PacketWorld) -> Iterator[Attacker]:
    attacker = Attacker(cluster, random.Random(SEED))
    yield attacker
    attacker.close()


def arrangements(projects: tuple[str, ...], lanes: int = 1) -> Iterator[dict[str, int]]:
    """Every way to put projects into lanes; lane 0 is the global one, and a lane's number means nothing else."""
    if not projects:
        yield {}
        return
    for lane in range(lanes + 1):
        for rest in arrangements(projects[1:], max(lanes, lane + 1)):
            yield {projects[0]: lane, **rest}


def told(adversary: Attacker) -> str:
    """What was found, a line each."""
    return "\n".join(adversary.differences) or "nothing was found"


def shuffled() -> list[dict[str, int]]:
    """All clusters, in the order of the seed."""
    clusters = list(arrangements(PROJECTS))
    assert len(clusters) == CLUSTERS
    random.Random(SEED).shuffle(clusters)
    return clusters


def test_attack_packets_arrive_exactly_where_the_model_allows(cluster: PacketWorld, adversary: Attacker) -> None:
    overruns = adversary.overruns()
    for number, desired in enumerate(shuffled()[WITH_SERVICES:]):
        lanes = assign_vnids(cluster, desired)
        adversary.attack(f"cluster {number} of seed {SEED}: {lanes}", lanes)
        assert not adversary.differences, told(adversary)
    adversary.listen(LAST_LOOK_SECONDS)
    assert not adversary.differences, told(adversary)
    assert adversary.overruns() == overruns


def test_attack_packets_arrive_exactly_where_the_model_allows_with_services(
    cluster: PacketWorld, offers: OfferedServices, adversary: Attacker
) -> None:
    overruns = adversary.overruns()
    for number, desired in enumerate(shuffled()[:WITH_SERVICES]):
        if number % MOVE_EVERY == 0:
            offers.move("default", ("admin-b", "admin-a")[number // MOVE_EVERY % 2])
        lanes = assign_vnids(cluster, desired, offers)
        adversary.attack(f"cluster {number} of seed {SEED} with services: {lanes}", lanes, offers.all)
        assert not adversary.differences, told(adversary)
    adversary.listen(LAST_LOOK_SECONDS)
    assert not adversary.differences, told(adversary)
    assert adversary.overruns() == overruns


@contextmanager
def holed(cluster: PacketWorld, hole: str) -> Iterator[None]:
    """The sdn daemon of both nodes with a hole in its pipeline; afterwards all is as before."""
    output = {node: served(cluster, node) for node in cluster.nodes}
    for node in cluster.nodes:
        process = cluster.specification(f"{node} sdn")
        cluster.kill(f"{node} sdn")
        command = (sys.executable, "-m", "tests.testbed.netns.mutant_sdn", hole, *process.command[1:])
        cluster.start(f"{node} sdn", replace(process, command=command, environment=(("PYTHONPATH", ROOT),)))
    try:
        wait_until(
            lambda: all(served(cluster, node) > count for node, count in output.items()), "services with the hole"
        )
        yield
    finally:
        output = {node: served(cluster, node) for node in cluster.nodes}
        for node in cluster.nodes:
            cluster.kill(f"{node} sdn")
            cluster.start(f"{node} sdn")
        wait_until(lambda: all(served(cluster, node) > count for node, count in output.items()), "services as before")


def served(cluster: PacketWorld, node: str) -> int:
    """How often a node has told that it serves other ports than before; it does so first when it begins."""
    return cluster.log(node).count("services changed")


@pytest.mark.parametrize("hole", MUTANTS | SERVICE_MUTANTS)
def test_attack_packets_detect_every_mutant(
    cluster: PacketWorld, offers: OfferedServices, adversary: Attacker, hole: str
) -> None:
    lanes = assign_vnids(cluster, SOME, offers)
    called = offers.all if hole in SERVICE_MUTANTS else ()
    adversary.attack("whole", lanes, called, MANY_CALLS)
    assert not adversary.differences, told(adversary)
    before = {node: cluster.flows(node) for node in cluster.nodes}
    with holed(cluster, hole):
        wait_until(lambda: all(cluster.flows(node) != before[node] for node in before), "the hole")
        revalidate_flows(cluster)
        adversary.attack(hole, lanes, called, MANY_CALLS)
        adversary.listen(LAST_LOOK_SECONDS)
    assert any(line.startswith((MUTANTS | SERVICE_MUTANTS)[hole].shown_by) for line in adversary.differences), told(
        adversary
    )
    wait_until(lambda: all(cluster.has_flows(node, flows) for node, flows in before.items()), "no hole")


@pytest.mark.parametrize("hole", STALE_FLOW_MUTANTS)
def test_attack_packets_detect_stale_flows_after_vnid_changes(
    cluster: PacketWorld, adversary: Attacker, hole: str
) -> None:
    with holed(cluster, hole):
        wait_until(lambda: all(map(cluster.network_ready, cluster.nodes)), "the daemons")
        adversary.attack("before", assign_vnids(cluster, SOME))
        assert not adversary.differences, told(adversary)
        adversary.attack("after", assign_vnids(cluster, OTHERS))
    assert any(line.startswith(STALE_FLOW_MUTANTS[hole].shown_by) for line in adversary.differences), told(adversary)
    adversary.differences.clear()
    wait_until(lambda: all(map(cluster.network_ready, cluster.nodes)), "the daemons")
    adversary.attack("whole", assign_vnids(cluster, SOME))
    assert not adversary.differences, told(adversary)
