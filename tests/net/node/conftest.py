"""A cluster of two nodes with pods of two projects, for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.net.node.examples import ADMINS, RED
from tests.testbed.netns.packet_world import PacketWorld


@pytest.fixture(scope="module")
def cluster() -> Iterator[PacketWorld]:
    with PacketWorld("podlife", 15) as running:
        running.add_project("red")
        for planned_pod in (*RED, *ADMINS):
            running.add(planned_pod)
        running.warm_up("admin-a", "admin-b")
        yield running
