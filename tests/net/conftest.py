"""Worlds of real packets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.net.cluster import NetCluster, inhabited


@pytest.fixture(scope="package")
def world() -> Iterator[NetCluster]:
    with inhabited("podreal", 14) as cluster:
        yield cluster
