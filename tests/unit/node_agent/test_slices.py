"""Control groups as systemd names and counts them."""

from __future__ import annotations

from typing import Any

import pytest

from node_agent.cgroups.hierarchy import (
    UNLIMITED,
    CgroupLimits,
    CgroupPath,
    pods_cgroup,
    slice_last_name,
    slice_path,
    slice_properties,
    slice_unit,
)

UID = "0f2c-11"


@pytest.mark.parametrize(
    ("group", "name", "where"),
    [
        (pods_cgroup("/"), "kubepods.slice", "/kubepods.slice"),
        (
            pods_cgroup("/").below("burstable", f"pod{UID}"),
            "kubepods-burstable-pod0f2c_11.slice",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f2c_11.slice",
        ),
        (pods_cgroup("/lab-1/a"), "lab_1-a-kubepods.slice", "/lab_1.slice/lab_1-a.slice/lab_1-a-kubepods.slice"),
    ],
)
def test_a_dash_is_a_step_in_the_tree(group: CgroupPath, name: str, where: str) -> None:
    assert slice_unit(group) == name
    assert slice_path(group) == where
    assert slice_last_name(where.rpartition("/")[2]) == group.names[-1]


@pytest.mark.parametrize("name", ["docker-0f2c.scope", "user@0.service", ""])
def test_what_is_no_slice_is_no_group(name: str) -> None:
    assert slice_last_name(name) == ""


@pytest.mark.parametrize(
    ("limits", "version", "wanted"),
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
def test_limits_as_properties(limits: CgroupLimits, version: int, wanted: dict[str, int]) -> None:
    asked: dict[str, Any] = {one.name: one.value[1] for one in slice_properties(limits, version)}
    assert {name: value for name, value in asked.items() if not name.endswith("Accounting")} == wanted
    assert asked["MemoryAccounting"] is asked["CPUAccounting"] is asked["TasksAccounting"] is True


@pytest.mark.parametrize(("quota", "micros"), [(1_000, 10_000), (1_001, 20_000), (1_500, 20_000), (2_000, 20_000)])
def test_quotas_are_whole_percents_and_never_less_than_the_containers_have(quota: int, micros: int) -> None:
    asked = {one.name: one.value[1] for one in slice_properties(CgroupLimits(quota=quota), 1)}
    assert asked["CPUQuotaPerSecUSec"] == micros
