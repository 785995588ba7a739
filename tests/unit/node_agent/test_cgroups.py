"""Where the control group of a pod is, and what it may use."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from api.objects import Pod
from node_agent.cgroups import Group, Limits, Room, group, groups, limits, path, shared, values, weight
from tests.unit.node_agent.make import UID, pod

FULL = "resources: {limits: {cpu: 500m, memory: 64Mi}}"
GUARANTEED = pod(f"[{{name: main, image: a, {FULL}}}, {{name: side, image: a, {FULL}}}]")
BURSTABLE = pod(f"[{{name: main, image: a, {FULL}}}, {{name: side, image: a}}]")
BEST_EFFORT = pod()
ROOM = Room(cpus=4, memory=8 << 30, pids=100)


@pytest.mark.parametrize(
    ("wish", "where"),
    [
        (GUARANTEED, f"/kubepods/pod{UID}"),
        (BURSTABLE, f"/kubepods/burstable/pod{UID}"),
        (BEST_EFFORT, f"/kubepods/besteffort/pod{UID}"),
    ],
)
def test_groups_lie_by_class(wish: Pod, where: str) -> None:
    assert path(group(wish, "/")) == where
    assert path(group(wish, "/lab/one")) == f"/lab/one{where}"
    assert group(wish, "/") in groups(UID, "/")


@pytest.mark.parametrize(
    ("wish", "wanted", "first", "second"),
    [
        (
            GUARANTEED,
            Limits(1024, 100_000, 128 << 20, 100),
            ["1024", "100000", "100000", str(128 << 20), "100"],
            ["39", "100000 100000", str(128 << 20), "100"],
        ),
        (
            BURSTABLE,
            Limits(512, pids=100),
            ["512", "100000", "-1", "-1", "100"],
            ["20", "max 100000", "max", "100"],
        ),
        (
            BEST_EFFORT,
            Limits(pids=100),
            ["2", "100000", "-1", "-1", "100"],
            ["1", "max 100000", "max", "100"],
        ),
    ],
)
def test_a_pod_is_promised_what_its_containers_ask_for(
    wish: Pod, wanted: Limits, first: list[str], second: list[str]
) -> None:
    assert limits(wish, ROOM) == wanted
    assert [value.text for value in values(wanted, 1)] == first
    assert [value.text for value in values(wanted, 2)] == second


def test_no_limit_is_written_too_for_there_may_have_been_one() -> None:
    assert [value.text for value in values(Limits(), 1)] == ["2", "100000", "-1", "-1", "max"]


def test_all_pods_together_have_the_node_and_burstable_ones_what_they_ask_for() -> None:
    assert shared((GUARANTEED, BURSTABLE, BEST_EFFORT, BURSTABLE), "/", ROOM) == (
        (Group(("kubepods",)), Limits(shares=4096, memory=8 << 30)),
        (Group(("kubepods", "burstable")), Limits(shares=1024)),
        (Group(("kubepods", "besteffort")), Limits(shares=2)),
    )


@pytest.mark.parametrize(("shares", "weighs"), [(2, 1), (262_144, 10_000), (1024, 39)])
def test_shares_as_weight(shares: int, weighs: int) -> None:
    assert weight(shares) == weighs


def test_the_class_is_the_status_of_the_pod() -> None:
    told = replace(BURSTABLE, status=replace(BURSTABLE.status, qos_class="Guaranteed"))
    assert path(group(told, "/")) == f"/kubepods/pod{UID}"
