"""Real packets agree with a model of ten lines, for all ways in which six projects share VNIDs. Mutants are
detected.

A run chooses one cluster of each class by its seed; PODLANE_ALL_CLUSTERS=1 (`make soak`) lets it try them all, and
PODLANE_CLUSTERS only so many with services and so many without.
"""

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
PLANNED_PODS = (
    *(PlannedPod(f"{project}-pod", project, f"node-{1 + number % 2}") for number, project in enumerate(PROJECTS)),
    PlannedPod("admin-a", "default", "node-1"),
    PlannedPod("admin-b", "default", "node-2"),
)
CLUSTERS = 877
"""Number of ways to distribute six projects over VNIDs, VNID 0 included."""

CLASSES = 109
"""Number of these ways if projects on the same node are interchangeable.

Frames whose fate depends on VNIDs are sent in every cluster, forged ones in one cluster of each class."""

TRIES_ALL = bool(os.environ.get("PODLANE_ALL_CLUSTERS"))
MOST = int(os.environ.get("PODLANE_CLUSTERS", CLUSTERS))

SOME = {"amber": 0, "blue": 1, "cyan": 1, "green": 2, "red": 2, "violet": 3}
OTHERS = {"amber": 1, "blue": 1, "cyan": 2, "green": 2, "red": 3, "violet": 3}
LAST_LOOK_SECONDS = 0.5
WITH_SERVICES = 200 if TRIES_ALL else 40
"""Number of the tried clusters that have services. A change of VNIDs then takes twice as long."""

MOVE_EVERY = 10
"""Number of clusters after which a service gets another endpoint."""

MANY_CALLS = 100
ROOT = str(Path(__file__).parents[3])


@pytest.fixture(scope="module")
def cluster() -> Iterator[PacketWorld]:
    with running_world("podadv", 27, PLANNED_PODS) as running:
        yield running


@pytest.fixture(scope="module")
def offers(cluster: PacketWorld) -> OfferedServices:
    return OfferedServices(cluster)


@pytest.fixture
def adversary(cluster: PacketWorld) -> Iterator[Attacker]:
    attacker = Attacker(cluster, random.Random(SEED))
    yield attacker
    attacker.close()


def arrangements(projects: tuple[str, ...], vnids: int = 1) -> Iterator[dict[str, int]]:
    """Yield every way to give VNIDs to projects. VNID 0 is global; apart from that, numbers do not matter."""
    if not projects:
        yield {}
        return
    for vnid in range(vnids + 1):
        for rest in arrangements(projects[1:], max(vnids, vnid + 1)):
            yield {projects[0]: vnid, **rest}


def findings_text(adversary: Attacker) -> str:
    """Return the differences from the model, a line each."""
    return "\n".join(adversary.differences) or "nothing was found"


def shuffled() -> list[tuple[dict[str, int], bool]]:
    """Return the clusters to try in the order of the seed, and whether each is the first of its class."""
    clusters = list(arrangements(PROJECTS))
    assert len(clusters) == CLUSTERS
    random.Random(SEED).shuffle(clusters)
    classes: set[tuple[tuple[bool, int, int], ...]] = set()
    shuffled_clusters = []
    for cluster in clusters:
        cluster_class = class_of(cluster)
        shuffled_clusters.append((cluster, cluster_class not in classes))
        classes.add(cluster_class)
    assert len(classes) == CLASSES
    return shuffled_clusters if TRIES_ALL else [(cluster, True) for cluster, is_first in shuffled_clusters if is_first]


def class_of(cluster: dict[str, int]) -> tuple[tuple[bool, int, int], ...]:
    """Return for each VNID whether it is 0 and how many projects share it on node-1 and on node-2, sorted.

    Clusters of one class differ only in the names of projects and the numbers of VNIDs.
    """
    nodes = {planned_pod.project: planned_pod.node for planned_pod in PLANNED_PODS}
    sharing: dict[int, list[str]] = {}
    for project, vnid in cluster.items():
        sharing.setdefault(vnid, []).append(nodes[project])
    return tuple(sorted((vnid == 0, on.count("node-1"), on.count("node-2")) for vnid, on in sharing.items()))


def test_attack_packets_arrive_exactly_where_the_model_allows(cluster: PacketWorld, adversary: Attacker) -> None:
    overruns = adversary.overruns()
    for number, (desired, is_first) in enumerate(shuffled()[WITH_SERVICES:][:MOST]):
        vnids = assign_vnids(cluster, desired)
        adversary.attack(f"cluster {number} of seed {SEED}: {vnids}", vnids, with_forged=is_first)
        assert not adversary.differences, findings_text(adversary)
    adversary.listen(LAST_LOOK_SECONDS)
    assert not adversary.differences, findings_text(adversary)
    assert adversary.overruns() == overruns


def test_attack_packets_arrive_exactly_where_the_model_allows_with_services(
    cluster: PacketWorld, offers: OfferedServices, adversary: Attacker
) -> None:
    overruns = adversary.overruns()
    for number, (desired, is_first) in enumerate(shuffled()[:WITH_SERVICES][:MOST]):
        if number % MOVE_EVERY == 0:
            offers.move("default", ("admin-b", "admin-a")[number // MOVE_EVERY % 2])
        vnids = assign_vnids(cluster, desired, offers)
        title = f"cluster {number} of seed {SEED} with services: {vnids}"
        adversary.attack(title, vnids, offers.all, with_forged=is_first)
        assert not adversary.differences, findings_text(adversary)
    adversary.listen(LAST_LOOK_SECONDS)
    assert not adversary.differences, findings_text(adversary)
    assert adversary.overruns() == overruns


@contextmanager
def mutated(cluster: PacketWorld, mutant: str) -> Iterator[None]:
    """Run the sdn daemons of both nodes with a mutant in their pipeline during the block."""
    output = {node: served(cluster, node) for node in cluster.nodes}
    for node in cluster.nodes:
        process = cluster.specification(f"{node} sdn")
        cluster.kill(f"{node} sdn")
        command = (sys.executable, "-m", "tests.testbed.netns.mutant_sdn", mutant, *process.command[1:])
        cluster.start(f"{node} sdn", replace(process, command=command, environment=(("PYTHONPATH", ROOT),)))
    try:
        wait_until(
            lambda: all(served(cluster, node) > count for node, count in output.items()), "services with the mutant"
        )
        yield
    finally:
        output = {node: served(cluster, node) for node in cluster.nodes}
        for node in cluster.nodes:
            cluster.kill(f"{node} sdn")
            cluster.start(f"{node} sdn")
        wait_until(lambda: all(served(cluster, node) > count for node, count in output.items()), "services as before")


def served(cluster: PacketWorld, node: str) -> int:
    """Return the number of changes of service ports that a node has logged. The first is at its start."""
    return cluster.log(node).count("services changed")


@pytest.mark.parametrize("mutant", MUTANTS | SERVICE_MUTANTS)
def test_attack_packets_detect_every_mutant(
    cluster: PacketWorld, offers: OfferedServices, adversary: Attacker, mutant: str
) -> None:
    vnids = assign_vnids(cluster, SOME, offers)
    called = offers.all if mutant in SERVICE_MUTANTS else ()
    adversary.attack("whole", vnids, called, MANY_CALLS)
    assert not adversary.differences, findings_text(adversary)
    before = {node: cluster.flows(node) for node in cluster.nodes}
    with mutated(cluster, mutant):
        wait_until(lambda: all(cluster.flows(node) != before[node] for node in before), "the mutant")
        revalidate_flows(cluster)
        adversary.attack(mutant, vnids, called, MANY_CALLS)
        adversary.listen(LAST_LOOK_SECONDS)
    assert any(line.startswith((MUTANTS | SERVICE_MUTANTS)[mutant].detected_by) for line in adversary.differences), (
        findings_text(adversary)
    )
    wait_until(lambda: all(cluster.has_flows(node, flows) for node, flows in before.items()), "no mutant")


@pytest.mark.parametrize("mutant", STALE_FLOW_MUTANTS)
def test_attack_packets_detect_stale_flows_after_vnid_changes(
    cluster: PacketWorld, adversary: Attacker, mutant: str
) -> None:
    assign_vnids(cluster, SOME)  # The mutant keeps the flows of the VNIDs with which it starts.
    with mutated(cluster, mutant):
        wait_until(lambda: all(map(cluster.network_ready, cluster.nodes)), "the daemons")
        adversary.attack("before", assign_vnids(cluster, SOME))
        assert not adversary.differences, findings_text(adversary)
        adversary.attack("after", assign_vnids(cluster, OTHERS))
    detected_by = STALE_FLOW_MUTANTS[mutant].detected_by
    assert any(line.startswith(detected_by) for line in adversary.differences), findings_text(adversary)
    adversary.differences.clear()
    wait_until(lambda: all(map(cluster.network_ready, cluster.nodes)), "the daemons")
    adversary.attack("whole", assign_vnids(cluster, SOME))
    assert not adversary.differences, findings_text(adversary)
