"""Where the control group of a pod is, and what it may use."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from api.objects import Pod
from node_agent.cgroups import path, paths, values, weight
from tests.unit.node_agent.make import UID, pod

FULL = "resources: {limits: {cpu: 500m, memory: 64Mi}}"
GUARANTEED = pod(f"[{{name: main, image: a, {FULL}}}, {{name: side, image: a, {FULL}}}]")
BURSTABLE = pod(f"[{{name: main, image: a, {FULL}}}, {{name: side, image: a}}]")
BEST_EFFORT = pod()


@pytest.mark.parametrize(
    ("wish", "where"),
    [
        (GUARANTEED, f"/kubepods/pod{UID}"),
        (BURSTABLE, f"/kubepods/burstable/pod{UID}"),
        (BEST_EFFORT, f"/kubepods/besteffort/pod{UID}"),
    ],
)
def test_groups_lie_by_class(wish: Pod, where: str) -> None:
    assert path(wish, "/") == where
    assert path(wish, "/lab") == f"/lab{where}"
    assert where in paths(UID, "/")


@pytest.mark.parametrize(
    ("wish", "first", "second"),
    [
        (GUARANTEED, ["1024", "100000", "100000", str(128 << 20)], ["39", "100000 100000", str(128 << 20)]),
        (BURSTABLE, ["512", "100000", "-1", "-1"], ["20", "max 100000", "max"]),
        (BEST_EFFORT, ["2", "100000", "-1", "-1"], ["1", "max 100000", "max"]),
    ],
)
def test_a_pod_is_promised_what_its_containers_ask_for(wish: Pod, first: list[str], second: list[str]) -> None:
    assert [value.text for value in values(wish, 1)] == first
    assert [value.text for value in values(wish, 2)] == second


@pytest.mark.parametrize(("shares", "weighs"), [(2, 1), (262_144, 10_000), (1024, 39)])
def test_shares_as_weight(shares: int, weighs: int) -> None:
    assert weight(shares) == weighs


def test_the_class_is_the_status_of_the_pod() -> None:
    assert (
        path(replace(BURSTABLE, status=replace(BURSTABLE.status, qos_class="Guaranteed")), "/") == f"/kubepods/pod{UID}"
    )
