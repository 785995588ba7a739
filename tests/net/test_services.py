"""Services by real packets: who gets an answer, of whom, and as whom callers are seen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.net.cluster import NetCluster
from tests.net.serving import answering, expose, register, serves


@pytest.fixture(scope="module")
def serving(world: NetCluster) -> Iterator[NetCluster]:
    names = tuple(world.pods)
    register(world, *names)
    with answering(world, *names):
        yield world


def test_the_node_itself_reaches_a_service(serving: NetCluster) -> None:
    service = expose(serving, "of-node", "red", {"app": "red-c"})
    node = serving.nodes["node-1"].namespace
    name, seen = serves(node, service.spec.cluster_ip, 80)
    assert (name, seen) == ("red-c", str(serving.gateway("node-1")))
