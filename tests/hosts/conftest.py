"""The cluster on machines of their own, for all tests of this tier."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.testbed.hosts import machine
from tests.testbed.hosts.site import Site, running_site, workplace

WHY_NOT = machine.missing() or ("" if "PODLANE_HOSTS" in os.environ else "takes minutes: `make hosts` runs it")


@pytest.fixture(scope="session")
def place() -> Iterator[None]:
    """Hold what all machines of this tier share."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    with workplace():
        yield


@pytest.fixture(scope="session")
def site(place: None) -> Iterator[Site]:
    """A master and two nodes, with the demo."""
    with running_site() as running:
        running.wait_whole()
        yield running
