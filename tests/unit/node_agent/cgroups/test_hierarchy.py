"""Paths and limits of cgroups."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from api.core.pod import Pod
from node_agent.cgroups.hierarchy import (
    UNLIMITED,
    CgroupLimits,
    CgroupPath,
    PodsCapacity,
    candidate_cgroups,
    cgroupfs_path,
    cpu_weight,
    limit_files,
    pod_cgroup,
    pod_limits,
    pods_cgroup,
    qos_cgroups,
    slice_last_name,
    slice_path,
    slice_properties,
    slice_unit,
)
from tests.unit.node_agent.examples import UID, make_pod

FULL = "resources: {limits: {cpu: 500m, memory: 64Mi}}"
GUARANTEED = make_pod(f"[{{name: main, image: a, {FULL}}}, {{name: side, image: a, {FULL}}}]")
BURSTABLE = make_pod(f"[{{name: main, image: a, {FULL}}}, {{name: side, image: a}}]")
BEST_EFFORT = make_pod()
ROOM = PodsCapacity(cpus=4, memory=8 << 30, pids=100)


@pytest.mark.parametrize(
    ("pod", "parent"),
    [
        (GUARANTEED, f"/kubepods/pod{UID}"),
        (BURSTABLE, f"/kubepods/burstable/pod{UID}"),
        (BEST_EFFORT, f"/kubepods/besteffort/pod{UID}"),
    ],
)
def test_pod_cgroup_is_below_its_qos_cgroup(pod: Pod, parent: str) -> None:
    assert cgroupfs_path(pod_cgroup(pod, "/")) == parent
    assert cgroupfs_path(pod_cgroup(pod, "/lab/one")) == f"/lab/one{parent}"
    assert pod_cgroup(pod, "/") in candidate_cgroups(UID, "/")


@pytest.mark.parametrize(
    ("pod", "expected", "first", "second"),
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
def test_pod_cgroup_limits_sum_its_containers(
    pod: Pod, expected: CgroupLimits, first: list[str], second: list[str]
) -> None:
    assert pod_limits(pod, ROOM) == expected
    assert [value.text for value in limit_files(expected, 1)] == first
    assert [value.text for value in limit_files(expected, 2)] == second


def test_missing_limits_are_written_as_unlimited() -> None:
    assert [value.text for value in limit_files(CgroupLimits(), 1)] == ["2", "100000", "-1", "-1", "max"]


def test_qos_cgroups_have_capacity_and_burstable_requests() -> None:
    assert qos_cgroups((GUARANTEED, BURSTABLE, BEST_EFFORT, BURSTABLE), "/", ROOM) == (
        (CgroupPath(("kubepods",)), CgroupLimits(shares=4096, memory=8 << 30)),
        (CgroupPath(("kubepods", "burstable")), CgroupLimits(shares=1024)),
        (CgroupPath(("kubepods", "besteffort")), CgroupLimits(shares=2)),
    )


@pytest.mark.parametrize(("shares", "weighs"), [(2, 1), (262_144, 10_000), (1024, 39)])
def test_cpu_shares_convert_to_weight(shares: int, weighs: int) -> None:
    assert cpu_weight(shares) == weighs


def test_qos_class_is_taken_from_pod_status() -> None:
    pod = replace(BURSTABLE, status=replace(BURSTABLE.status, qos_class="Guaranteed"))
    assert cgroupfs_path(pod_cgroup(pod, "/")) == f"/kubepods/pod{UID}"


SYSTEMD_UID = "0f2c-11"


@pytest.mark.parametrize(
    ("group", "name", "parent"),
    [
        (pods_cgroup("/"), "kubepods.slice", "/kubepods.slice"),
        (
            pods_cgroup("/").child("burstable", f"pod{SYSTEMD_UID}"),
            "kubepods-burstable-pod0f2c_11.slice",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f2c_11.slice",
        ),
        (pods_cgroup("/lab-1/a"), "lab_1-a-kubepods.slice", "/lab_1.slice/lab_1-a.slice/lab_1-a-kubepods.slice"),
    ],
)
def test_slice_name_dashes_separate_levels(group: CgroupPath, name: str, parent: str) -> None:
    assert slice_unit(group) == name
    assert slice_path(group) == parent
    assert slice_last_name(parent.rpartition("/")[2]) == group.names[-1]


@pytest.mark.parametrize("name", ["docker-0f2c.scope", "user@0.service", ""])
def test_invalid_slice_name_is_no_cgroup(name: str) -> None:
    assert slice_last_name(name) == ""


@pytest.mark.parametrize(
    ("limits", "version", "expected"),
    [
        (
            CgroupLimits(512, 50_000, 64 << 20, 100),
            1,
            {"CPUShares": 512, "CPUQuotaPerSecUSec": 500_000, "MemoryLimit": 64 << 20, "TasksMax": 100},
        ),
        (
            CgroupLimits(512, 50_000, 64 << 20, 100),
            2,
            {"CPUWeight": 20, "CPUQuotaPerSecUSec": 500_000, "MemoryMax": 64 << 20, "TasksMax": 100},
        ),
        (
            CgroupLimits(),
            2,
            {"CPUWeight": 1, "CPUQuotaPerSecUSec": UNLIMITED, "MemoryMax": UNLIMITED, "TasksMax": UNLIMITED},
        ),
    ],
)
def test_cgroup_limits_convert_to_systemd_properties(
    limits: CgroupLimits, version: int, expected: dict[str, int]
) -> None:
    values: dict[str, Any] = {
        slice_property.name: slice_property.value[1] for slice_property in slice_properties(limits, version)
    }
    assert {name: value for name, value in values.items() if not name.endswith("Accounting")} == expected
    assert values["MemoryAccounting"] is values["CPUAccounting"] is values["TasksAccounting"] is True


@pytest.mark.parametrize(("quota", "micros"), [(1_000, 10_000), (1_001, 20_000), (1_500, 20_000), (2_000, 20_000)])
def test_systemd_cpu_quota_is_rounded_up_to_whole_percent(quota: int, micros: int) -> None:
    values = {
        slice_property.name: slice_property.value[1]
        for slice_property in slice_properties(CgroupLimits(quota=quota), 1)
    }
    assert values["CPUQuotaPerSecUSec"] == micros
