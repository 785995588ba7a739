"""Worlds of real packets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.net.cluster import NetCluster
from tests.world import PLACES


@pytest.fixture(scope="package")
def world() -> Iterator[NetCluster]:
    with NetCluster("podnet", 14) as cluster:
        for project in ("red", "blue"):
            cluster.add_project(project)
        for place in PLACES:
            cluster.add(place)
        cluster.warm_up("admin-a", "admin-b")
        yield cluster
