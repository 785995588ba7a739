"""Worlds of real packets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.net.cluster import NetCluster, inhabited
from tests.net.serving import answering, register


@pytest.fixture(scope="package")
def world() -> Iterator[NetCluster]:
    with inhabited("podreal", 14) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def serving(world: NetCluster) -> Iterator[NetCluster]:
    """The world, whose pods the master knows and who tell who they are."""
    names = tuple(world.pods)
    register(world, *names)
    with answering(world, *names):
        yield world
