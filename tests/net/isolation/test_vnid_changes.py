"""Projects that are joined, isolated and made global while their pods exchange packets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.testbed.isolation.world import arrives, reaches
from tests.testbed.netns.packet_world import PacketWorld, running_world
from tests.testbed.podlane_cli import podlane_network
from tests.testbed.traffic import Ping
from tests.testbed.wait import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[PacketWorld]:
    with running_world("podlns", 17) as running:
        yield running


PAIRS = [
    pair
    for red_pod in ("red-a", "red-c")
    for other in ("blue-a", "blue-b")
    for pair in ((red_pod, other), (other, red_pod))
]


def settle(cluster: PacketWorld, together: bool) -> None:
    """Wait until red and blue reach each other by all protocols in both directions, or in none."""
    wait_until(lambda: {arrives(cluster, *pair) for pair in PAIRS} == {together}, f"together: {together}")
    assert {reaches(cluster, *pair) for pair in PAIRS} == {together}


@pytest.mark.parametrize("killed", [False, True])
def test_running_pods_follow_join_isolate_and_make_global(
    cluster: PacketWorld, request: pytest.FixtureRequest, killed: bool
) -> None:
    own = Ping(f"/run/netns/{cluster.pod_namespace('red-a')}", str(cluster.pods["red-c"].address))
    request.addfinalizer(own.end)
    before = {node: len(cluster.flows(node)) for node in cluster.nodes}
    settle(cluster, together=False)
    for words, together in (
        (("join", "blue", "--to", "red"), True),
        (("join", "blue", "--to", "red"), True),
        (("isolate", "blue"), False),
        (("global", "blue"), True),
        (("isolate", "blue", "--yes"), False),
    ):
        if killed:
            cluster.kill("node-2 sdn")
        podlane_network(cluster.lab.kubeconfig, *words)
        if killed:
            cluster.start("node-2 sdn")
        settle(cluster, together)
        assert reaches(cluster, "red-a", "red-c")
        assert reaches(cluster, "blue-b", "blue-a")
    own.wait_for_answers(5)
    assert own.lost() == 0, "what was allowed all the time never stopped"
    assert {node: len(cluster.flows(node)) for node in cluster.nodes} == before


def test_joined_projects_are_isolated_again_together(cluster: PacketWorld) -> None:
    podlane_network(cluster.lab.kubeconfig, "join", "red", "--to", "blue")
    settle(cluster, together=True)
    podlane_network(cluster.lab.kubeconfig, "isolate", "red", "blue")
    settle(cluster, together=False)
    assert reaches(cluster, "red-a", "red-c")


def test_invalid_vnid_change_request_changes_nothing(cluster: PacketWorld) -> None:
    before = {node: cluster.flows(node) for node in cluster.nodes}
    for words in (("isolate", "red", "nobody"), ("join", "red", "--to", "nobody"), ("global", "nobody")):
        error = podlane_network(cluster.lab.kubeconfig, *words, code=1)
        assert error == "podlane: there is no project 'nobody'\n"
    assert "default stays global" in podlane_network(cluster.lab.kubeconfig, "isolate", "default", code=1)
    assert {node: cluster.flows(node) for node in cluster.nodes} == before
    assert "PROJECT" in podlane_network(cluster.lab.kubeconfig, "status")
