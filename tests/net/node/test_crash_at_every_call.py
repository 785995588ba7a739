"""The sdn daemon reaches the same final state after SIGKILL at every changing call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reconcile.errors import NotReady
from tests.testbed.isolation.world import PlannedPod, reaches
from tests.testbed.netns.packet_world import PacketWorld, running_world
from tests.testbed.traffic import Ping
from tests.testbed.wait import wait_until

CALLS = 16
"""A run of the scenario makes 14; what is left over dies of nothing."""

FRIEND, FAR = PlannedPod("friend", "red", "node-1"), PlannedPod("far", "red", "node-2")
COMES, STAYS, FOE = (
    PlannedPod("comes", "red", "node-1"),
    PlannedPod("stays", "red", "node-1"),
    PlannedPod("foe", "blue", "node-1"),
)
ADMINS = (PlannedPod("admin-a", "default", "node-1"), PlannedPod("admin-b", "default", "node-2"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[PacketWorld]:
    with running_world("podflt", 20, (FRIEND, FAR, FOE, *ADMINS)) as running:
        yield running


def insisting(cluster: PacketWorld, act: Callable[[], object]) -> None:
    """Repeat a request until it succeeds, as the node agent does. A killed sdn daemon is started again."""

    def done() -> bool:
        if not cluster.is_alive("node-1 sdn"):
            cluster.start("node-1 sdn")
        try:
            act()
        except NotReady:
            return False
        return True

    wait_until(done, "the request")


def traces(cluster: PacketWorld) -> tuple[object, ...]:
    """Return the state that pods leave on the node."""
    guard = cluster.in_node("node-1", "nft", "list", "table", "netdev", "podlane-guard")
    links = {line.split("@")[0] for line in cluster.in_node("node-1", "ip", "-br", "link").splitlines()}
    return cluster.flows("node-1"), sorted(cluster.vsctl("node-1", "list-ports", "br0").split()), guard, sorted(links)


@pytest.mark.parametrize("calls", range(1, CALLS + 1))
def test_sdn_daemon_killed_after_any_call_reaches_the_same_state(cluster: PacketWorld, calls: int) -> None:
    before = traces(cluster)
    # On one node: the switch in user space may lose a tunnelled packet whenever a link is added or removed.
    stream = Ping(f"/run/netns/{cluster.pod_namespace('friend')}", str(cluster.pods["admin-a"].address))
    process = cluster.specification("node-1 sdn")
    script = str(Path(__file__).parents[2] / "testbed/netns/crashing_sdn.py")
    cluster.kill("node-1 sdn")
    cluster.start("node-1 sdn", replace(process, command=(sys.executable, script, str(calls), *process.command[1:])))
    wait_until(lambda: cluster.network_ready("node-1") or not cluster.is_alive("node-1 sdn"), "the network")

    insisting(cluster, lambda: cluster.add(COMES))
    insisting(cluster, lambda: cluster.add(STAYS))
    insisting(cluster, lambda: cluster.detach("node-1", "comes"))
    if calls < CALLS - 1:
        assert not cluster.is_running_as("node-1 sdn", script), "it was killed on the way"
    assert reaches(cluster, "stays", "far")
    assert reaches(cluster, "stays", "friend")
    assert not reaches(cluster, "stays", "foe")
    ports = cluster.vsctl("node-1", "list-ports", "br0").split()
    assert len(ports) == len(before[1]) + 1  # type: ignore[arg-type]
    insisting(cluster, lambda: cluster.detach("node-1", "stays"))
    assert traces(cluster) == before
    assert stream.lost() == 0
    cluster.forget("comes", "stays")
