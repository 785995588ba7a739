"""One lab for all tests of this tier, beside the user's own if there is one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.down import bring_down
from lab.topology import Lab
from lab.up import lab_up
from tests.e2e.cluster import SITE, Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    state = Path(f"/tmp/pode2e-{os.getpid()}")
    try:
        assert lab_up(state, 3, "ovs-multitenant", SITE) == 0
        lab = Lab(SITE, state, Path(sys.executable).parent, 3, "ovs-multitenant")
        yield Cluster(lab, tmp_path_factory.mktemp("home"))
    finally:
        bring_down(state, SITE)
