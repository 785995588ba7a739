"""What of dead containers and unused images goes, and what stays."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.docker.client import StoredImage
from node_agent.images.gc import ImagePolicy, ImageUse, removable_images, update_uses
from node_agent.runtime.container import RuntimeContainer
from node_agent.runtime.container_gc import ContainerPolicy, containers_to_remove
from node_agent.stats.model import FilesystemStats
from tests.unit.node_agent.make import NOW, UID, container, pod, sandbox

WEB = pod()
DEAD = [container(WEB, state="exited", restarts=number, ended=90 - number) for number in range(4)]
DEFAULT = ContainerPolicy()


def going(
    found: list[RuntimeContainer], policy: ContainerPolicy = DEFAULT, pods: tuple[str, ...] = (UID,)
) -> list[str]:
    return [one.id for one in containers_to_remove(found, policy, NOW, pods)]


def test_the_newest_dead_container_stays() -> None:
    assert going([sandbox(), container(WEB, restarts=4), *DEAD]) == ["main-2", "main-1", "main-0"]
    assert going([sandbox(), *DEAD]) == ["main-2", "main-1", "main-0"]
    assert going([sandbox(), *DEAD], ContainerPolicy(per_container=3)) == ["main-0"]


def test_what_ended_a_moment_ago_stays() -> None:
    assert going([sandbox(), *DEAD], ContainerPolicy(least_age=timedelta(seconds=89))) == ["main-1", "main-0"]


def test_what_nobody_has_started_yet_and_what_runs_stays() -> None:
    unborn = container(WEB, state="created", restarts=9)
    assert going([sandbox(), unborn, container(WEB, restarts=8), container(WEB, restarts=7)]) == []


def test_pods_without_a_worker_are_left_to_the_sweep() -> None:
    assert going([sandbox(), *DEAD], pods=()) == []


def test_an_older_sandbox_goes_when_it_has_no_container_any_more() -> None:
    older = sandbox(0, "exited", "0ld")
    newest = sandbox(1, "exited")
    inside = container(WEB, state="exited", inside="0ld", restarts=1)
    assert going([newest, older]) == ["0ld"]
    assert going([newest, older, inside]) == []
    assert going([newest, older, inside, container(WEB, state="exited", restarts=2)]) == [inside.id, "0ld"]
    assert going([newest, replace(older, state="running")]) == []


MINUTE = timedelta(minutes=1)
IMAGES = tuple(StoredImage(name, (f"{name}:1",)) for name in ("never", "old", "lately", "inuse", "pinned", "new"))


def known(now: datetime = NOW) -> dict[str, ImageUse]:
    before = {image.id: ImageUse(NOW - 60 * MINUTE) for image in IMAGES if image.id != "new"}
    before |= {
        "old": ImageUse(NOW - 60 * MINUTE, NOW - 30 * MINUTE),
        "lately": ImageUse(NOW - 60 * MINUTE, NOW - MINUTE),
    }
    return update_uses({**before, "gone": ImageUse(NOW)}, IMAGES, {"inuse"}, now)


def test_images_go_least_recently_used_first_but_neither_new_nor_used_nor_pinned_ones() -> None:
    order = removable_images(IMAGES, known(), {"pinned"}, ImagePolicy(), NOW)
    assert [image.id for image in order] == ["never", "old", "lately"]
    later = NOW + 3 * MINUTE
    order = removable_images(IMAGES, update_uses(known(), IMAGES, set(), later), {"pinned"}, ImagePolicy(), later)
    assert [image.id for image in order] == ["never", "new", "old", "lately", "inuse"]


def test_the_record_forgets_images_that_are_gone_and_remembers_the_last_use() -> None:
    assert "gone" not in known()
    assert known()["inuse"].used == NOW
    assert update_uses(known(), IMAGES, set(), NOW + MINUTE)["inuse"] == ImageUse(NOW - 60 * MINUTE, NOW)
    assert known()["new"] == ImageUse(NOW)


@given(st.sets(st.sampled_from([image.id for image in IMAGES])), st.integers(0, 600))
def test_an_image_in_use_never_goes(in_use: set[str], minutes: int) -> None:
    now = NOW + minutes * MINUTE
    record = update_uses(known(), IMAGES, in_use, now)
    assert not in_use & {image.id for image in removable_images(IMAGES, record, (), ImagePolicy(), now)}


@pytest.mark.parametrize(
    ("available", "capacity", "percent"), [(0, 100, 100), (1, 1000, 100), (15, 100, 85), (9, 9, 0)]
)
def test_fullness_is_what_is_not_available(available: int, capacity: int, percent: int) -> None:
    assert FilesystemStats(available, capacity, 0, 0).percent_used == percent
