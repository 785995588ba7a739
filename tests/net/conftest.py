"""Clusters that exchange real packets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.testbed.netns.packet_world import PacketWorld, running_world
from tests.testbed.netns.services import answering, register


@pytest.fixture(scope="package")
def world() -> Iterator[PacketWorld]:
    with running_world("podreal", 14) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def serving(world: PacketWorld) -> Iterator[PacketWorld]:
    """Yield a cluster whose pods are registered on the master and answer with their names."""
    names = tuple(world.pods)
    register(world, *names)
    with answering(world, *names):
        yield world
