"""Control groups of pods on the kernel of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.cgroups import Value, path, paths, values
from node_agent.drivers.cgroups import MOUNT, Cgroups
from reconcile.errors import NotReady
from tests.unit.node_agent.make import UID, pod

ROOT = f"/podlane-test-{os.getpid()}"
WISH = pod("[{name: main, image: a, resources: {limits: {cpu: 500m, memory: 64Mi}}}]")
HERE = path(WISH, ROOT)


@pytest.fixture
def driver() -> Iterator[Cgroups]:
    one = Cgroups()
    try:
        one.make(f"{ROOT}/kubepods", ())
    except NotReady as error:
        pytest.skip(f"no control groups can be made here: {error}")
    yield one
    one.remove(ROOT)


def test_a_group_is_made_with_its_values_and_goes_without_a_trace(driver: Cgroups) -> None:
    for _ in range(2):
        driver.make(HERE, tuple(values(WISH, driver.version)))
    for value in values(WISH, driver.version):
        assert (MOUNT / value.controller / HERE.lstrip("/") / value.file).read_text().strip() == value.text
    for where in paths(UID, ROOT):
        driver.remove(where)
        driver.remove(where)
    assert not [*MOUNT.glob(f"*{HERE}"), *MOUNT.glob(HERE.lstrip("/"))]


def test_a_process_can_run_in_a_group(driver: Cgroups) -> None:
    driver.make(HERE, tuple(values(WISH, driver.version)))
    groups = [*MOUNT.glob(f"*{HERE}")] if driver.version == 1 else [MOUNT / HERE.lstrip("/")]
    assert groups
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for group in groups:
                Path(group / "cgroup.procs").write_text(str(os.getpid()))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_value_that_the_kernel_refuses_is_told(driver: Cgroups) -> None:
    wrong = Value("cpu", "cpu.shares", "many") if driver.version == 1 else Value("", "cpu.weight", "many")
    with pytest.raises(NotReady, match=r"cpu\.shares|cpu\.weight"):
        driver.make(HERE, (wrong,))
