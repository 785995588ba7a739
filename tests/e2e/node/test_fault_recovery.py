"""Faults of a node disturb no pod; afterwards the state is as desired and nothing is left."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator

import pytest

from lab.process import run
from node_agent.runtime import container as label
from tests.testbed.node.consistency import CGROUPS, inconsistencies, nothing_left, vitals, wait_until_consistent
from tests.testbed.node.disturbed_node import (
    AGENT,
    DOCKER,
    MOST_FILES,
    MOST_THREADS,
    OBJECTS,
    DisturbedNode,
    full_pod,
    pod,
    pod_phases,
    restart_count,
    running_containers,
)
from tests.testbed.wait import wait_until

STORM = 30
SEED = 7


@pytest.fixture(scope="module")
def host() -> Iterator[DisturbedNode]:
    with DisturbedNode() as running:
        running.apply(OBJECTS)
        yield running


@pytest.fixture
def node(host: DisturbedNode) -> Iterator[DisturbedNode]:
    """Yield the node without pods before and after the test."""
    host.begin()
    yield host
    host.kubectl("delete", "pods", "--all", "--timeout=60s")
    nothing_left(host)


def started(node: DisturbedNode, *pods: str) -> None:
    """Start these pods, and wait until the state of the node is consistent."""
    node.apply(*pods)
    wait_until_consistent(node)


def test_consistency_check_reports_every_difference(node: DisturbedNode) -> None:
    started(node, full_pod(node, "good"))
    uid = node.kubectl("get", "pod", "good", "-o", "jsonpath={.metadata.uid}")
    pods, here, witness = node.state / "pods", node.state / "pods" / uid, node.witness / f"{uid}.main"
    cache, link = here / "volumes" / "kubernetes.io~empty-dir" / "cache", node.root / "logs" / "pods" / "x"
    group = next(CGROUPS.glob(f"*/{node.root.name}/kubepods")) / "podstray"
    sabotage = (
        ("is left over", f"mkdir {pods}/stray", f"rmdir {pods}/stray"),
        ("control group of stray is left over", f"mkdir {group}", f"rmdir {group}"),
        ("is half done", f"touch {here}/half~", f"rm {here}/half~"),
        ("mounted are", f"mount -t tmpfs x {here}/containers", f"umount {here}/containers"),
        ("mounted are", f"umount -l {cache}", f"mount -t tmpfs x {cache}"),
        ("leads nowhere", f"ln -s /nowhere {link}", f"rm {link}"),
        (
            "it says ['run', 'run']",
            f"cp {witness} {witness}.kept; echo run >> {witness}",
            f"mv {witness}.kept {witness}",
        ),
    )
    node.process(AGENT).suspend()
    for words, harm, repair in sabotage:
        run("sh", "-c", harm)
        assert any(words in inconsistency for inconsistency in inconsistencies(node)), words
        run("sh", "-c", repair)
        assert not inconsistencies(node)
    stray = f"label={label.POD_UID}=stray", f"{label.CONTAINER_NAME}=POD"
    node.docker(
        "run", "-d", "--name=stray", "--label", stray[0].removeprefix("label="), "--label", stray[1], "podlane/pause"
    )
    assert any("container POD of stray is left over" in inconsistency for inconsistency in inconsistencies(node))
    node.docker("rm", "-f", "stray")
    assert not inconsistencies(node)
    node.docker("kill", next(iter(running_containers(node))))
    assert inconsistencies(node)
    node.process(AGENT).resume()


def test_hundreds_of_short_pods_leave_nothing_behind(node: DisturbedNode) -> None:
    """The agent does not grow with each pod: its threads and connections are bounded, and its memory is that of one
    storm.
    """
    order = random.Random(SEED)
    storm(node, order)
    first = vitals(node)
    storm(node, order)
    second = vitals(node)
    assert not second.children
    assert second.threads <= MOST_THREADS
    assert second.files <= MOST_FILES
    assert second.memory <= first.memory * 1.1


def storm(node: DisturbedNode, order: random.Random) -> None:
    """Create pods, delete some of them meanwhile, and delete all of them in the end."""
    names = [f"storm-{number}" for number in range(STORM)]
    batches = [names[start : start + 10] for start in range(0, STORM, 10)]
    there: list[str] = []
    for batch in batches:
        node.apply(*(full_pod(node, name) if number % 5 == 0 else pod(node, name) for number, name in enumerate(batch)))
        there += batch
        order.shuffle(there)
        going, there = there[:5], there[5:]
        node.delete(*going)
    wait_until_consistent(node)
    order.shuffle(there)
    node.kubectl("delete", "pod", "--timeout=60s", *there)
    nothing_left(node)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_every_container_is_started_once_after_docker_restarts(node: DisturbedNode, how: signal.Signals) -> None:
    started(node, *(full_pod(node, f"lasting-{number}") for number in range(3)))
    before = running_containers(node)
    node.kill(DOCKER, how)
    wait_until(lambda: node.node_condition("Ready") == "False", "the node is told not to be ready")
    assert pod_phases(node) == {"Running"}
    node.start_docker()
    wait_until_consistent(node)
    assert not before.keys() & running_containers(node).keys()
    assert [restart_count(node, f"lasting-{number}") for number in range(3)] == [1, 1, 1]


@pytest.fixture
def live() -> Iterator[DisturbedNode]:
    """Yield a node whose Docker keeps containers running across its restarts."""
    with DisturbedNode("--live-restore") as node:
        node.apply(OBJECTS)
        node.begin()
        yield node
        node.kubectl("delete", "pods", "--all", "--timeout=60s")
        nothing_left(node)


def test_docker_with_live_restore_keeps_the_same_containers(live: DisturbedNode) -> None:
    started(live, full_pod(live, "one"), pod(live, "two"))
    before = running_containers(live)
    for how in (signal.SIGTERM, signal.SIGKILL):
        live.kill(DOCKER, how)
        wait_until(lambda: live.node_condition("Ready") == "False", "the node is told not to be ready")
        live.start_docker()
        wait_until(lambda: live.node_condition("Ready") == "True", "the node is ready")
        wait_until_consistent(live)
        assert running_containers(live) == before
    assert [restart_count(live, name) for name in ("one", "two")] == [0, 0]
