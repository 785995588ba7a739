"""Where the control group of a pod is, and what it may use."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from api.core.pod import Pod
from node_agent.cgroups.hierarchy import (
    CgroupLimits,
    CgroupPath,
    PodsCapacity,
    candidate_cgroups,
    cgroupfs_path,
    cpu_weight,
    limit_files,
    pod_cgroup,
    pod_limits,
    qos_cgroups,
)
from tests.unit.node_agent.make import UID, pod

FULL = "resources: {limits: {cpu: 500m, memory: 64Mi}}"
GUARANTEED = pod(f"[{{name: main, image: a, {FULL}}}, {{name: side, image: a, {FULL}}}]")
BURSTABLE = pod(f"[{{name: main, image: a, {FULL}}}, {{name: side, image: a}}]")
BEST_EFFORT = pod()
ROOM = PodsCapacity(cpus=4, memory=8 << 30, pids=100)


@pytest.mark.parametrize(
    ("wish", "where"),
    [
        (GUARANTEED, f"/kubepods/pod{UID}"),
        (BURSTABLE, f"/kubepods/burstable/pod{UID}"),
        (BEST_EFFORT, f"/kubepods/besteffort/pod{UID}"),
    ],
)
def test_groups_lie_by_class(wish: Pod, where: str) -> None:
    assert cgroupfs_path(pod_cgroup(wish, "/")) == where
    assert cgroupfs_path(pod_cgroup(wish, "/lab/one")) == f"/lab/one{where}"
    assert pod_cgroup(wish, "/") in candidate_cgroups(UID, "/")


@pytest.mark.parametrize(
    ("wish", "wanted", "first", "second"),
    [
        (
            GUARANTEED,
            CgroupLimits(1024, 100_000, 128 << 20, 100),
            ["1024", "100000", "100000", str(128 << 20), "100"],
            ["39", "100000 100000", str(128 << 20), "100"],
        ),
        (
            BURSTABLE,
            CgroupLimits(512, pids=100),
            ["512", "100000", "-1", "-1", "100"],
            ["20", "max 100000", "max", "100"],
        ),
        (
            BEST_EFFORT,
            CgroupLimits(pids=100),
            ["2", "100000", "-1", "-1", "100"],
            ["1", "max 100000", "max", "100"],
        ),
    ],
)
def test_a_pod_is_promised_what_its_containers_ask_for(
    wish: Pod, wanted: CgroupLimits, first: list[str], second: list[str]
) -> None:
    assert pod_limits(wish, ROOM) == wanted
    assert [value.text for value in limit_files(wanted, 1)] == first
    assert [value.text for value in limit_files(wanted, 2)] == second


def test_no_limit_is_written_too_for_there_may_have_been_one() -> None:
    assert [value.text for value in limit_files(CgroupLimits(), 1)] == ["2", "100000", "-1", "-1", "max"]


def test_all_pods_together_have_the_node_and_burstable_ones_what_they_ask_for() -> None:
    assert qos_cgroups((GUARANTEED, BURSTABLE, BEST_EFFORT, BURSTABLE), "/", ROOM) == (
        (CgroupPath(("kubepods",)), CgroupLimits(shares=4096, memory=8 << 30)),
        (CgroupPath(("kubepods", "burstable")), CgroupLimits(shares=1024)),
        (CgroupPath(("kubepods", "besteffort")), CgroupLimits(shares=2)),
    )


@pytest.mark.parametrize(("shares", "weighs"), [(2, 1), (262_144, 10_000), (1024, 39)])
def test_shares_as_weight(shares: int, weighs: int) -> None:
    assert cpu_weight(shares) == weighs


def test_the_class_is_the_status_of_the_pod() -> None:
    told = replace(BURSTABLE, status=replace(BURSTABLE.status, qos_class="Guaranteed"))
    assert cgroupfs_path(pod_cgroup(told, "/")) == f"/kubepods/pod{UID}"
