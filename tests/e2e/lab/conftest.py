"""One lab for all tests of this folder. A lab of the user is not touched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.down import bring_down
from lab.topology import Lab
from tests.testbed.lab.cluster import SITE, Cluster

BRING_UP = """
import sys
from pathlib import Path
import lab.connectivity
import lab.demo
import lab.up
from lab.up import Options, lab_up
from tests.testbed.lab.cluster import SITE
from tests.testbed.wait import PATIENCE
lab.connectivity.CALL_SECONDS *= PATIENCE
lab.up.START_SECONDS *= PATIENCE
lab.demo.WAIT_SECONDS *= PATIENCE
sys.exit(lab_up(Path(sys.argv[1]), Options(3, "ovs-multitenant", internal=True), SITE))
"""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    state = Path(f"/tmp/{SITE.prefix}-{os.getpid()}")
    bring_down(SITE.run_dir.resolve() if SITE.run_dir.is_symlink() else state, SITE)  # left by a killed run
    try:
        done = subprocess.run([sys.executable, "-c", BRING_UP, str(state)], check=False)
        assert done.returncode == 0, "the lab does not come up; its output says why"
        lab = Lab(SITE, state, Path(sys.executable).parent, 3, "ovs-multitenant", internal=True)
        yield Cluster(lab, tmp_path_factory.mktemp("home"))
    finally:
        bring_down(state, SITE)
