"""Rate limits and back-off of image pulls."""

from __future__ import annotations

from datetime import timedelta

import pytest

from node_agent.docker.pull import RegistryUnavailable
from node_agent.images.manager import ImageManager, ImageUnavailable
from node_agent.images.pull_backoff import (
    BACKOFF_RESET,
    DEFAULT_LIMITS,
    PullFailure,
    next_failure,
)
from reconcile.errors import NotReady, Refused
from tests.testbed.docker.fake import FakeDocker
from tests.testbed.node.events import FakeEventRecorder
from tests.unit.node_agent.examples import NOW, make_pod

SECOND = timedelta(seconds=1)


async def no_wait() -> None:
    """Do nothing before a pull."""


def test_image_pull_back_off_doubles_to_five_minutes_and_resets_after_ten() -> None:
    failure, delays = None, []
    for _ in range(7):
        now = NOW if failure is None else failure.retry_at
        failure = next_failure(failure, now, "no", "ErrImagePull")
        delays.append(failure.delay.total_seconds())
    assert delays == [10, 20, 40, 80, 160, 300, 300]
    assert failure is not None
    assert next_failure(failure, failure.failed_at + BACKOFF_RESET, "no", "ErrImagePull").delay.total_seconds() == 300
    assert (
        next_failure(failure, failure.failed_at + BACKOFF_RESET + SECOND, "no", "ErrImagePull").delay.total_seconds()
        == 10
    )


@pytest.mark.parametrize(("after", "is_active"), [(0, True), (9, True), (10, False), (-1, False)])
def test_image_pull_failure_holds_until_its_retry_time(after: int, is_active: bool) -> None:
    assert PullFailure(NOW, timedelta(seconds=10), "no").is_active(NOW + after * SECOND) is is_active


def test_one_image_is_pulled_at_a_time_by_default() -> None:
    assert (DEFAULT_LIMITS.max_parallel, DEFAULT_LIMITS.per_second, DEFAULT_LIMITS.burst) == (1, 5, 10)


async def test_image_back_off_message_includes_the_last_failure() -> None:
    docker, recorder = FakeDocker("toolbox"), FakeEventRecorder()
    images = ImageManager(docker, recorder.for_pod(make_pod()))
    [container] = make_pod("[{name: main, image: nowhere}]").spec.containers
    docker.pulls["nowhere"] = Refused("Docker: denied")
    first = await images.ensure_present(container, (), no_wait)
    assert first == ImageUnavailable(
        "ErrImagePull", "Docker: denied", first.retry_at if isinstance(first, ImageUnavailable) else None
    )
    second = await images.ensure_present(container, (), no_wait)
    assert isinstance(second, ImageUnavailable)
    assert (second.reason, second.message) == (
        "ImagePullBackOff",
        'Back-off pulling image "nowhere": ErrImagePull: Docker: denied',
    )
    assert [(reason, message) for reason, message, _ in recorder.events] == [
        ("Pulling", 'Pulling image "nowhere"'),
        ("Failed", 'Failed to pull image "nowhere": Docker: denied'),
        ("Failed", "Error: ErrImagePull"),
        ("BackOff", 'Back-off pulling image "nowhere"'),
        ("Failed", "Error: ImagePullBackOff"),
    ]
    assert docker.pull_requests == [""], "one request"


async def test_unavailable_registry_has_its_own_reason() -> None:
    docker = FakeDocker("toolbox")
    images = ImageManager(docker, FakeEventRecorder().for_pod(make_pod()))
    [container] = make_pod("[{name: main, image: nowhere}]").spec.containers
    docker.pulls["nowhere"] = RegistryUnavailable("Docker: 503")
    missing = await images.ensure_present(container, (), no_wait)
    assert isinstance(missing, ImageUnavailable)
    assert missing.reason == "RegistryUnavailable"
    assert missing.message == "image pull failed for nowhere because the registry is unavailable: Docker: 503"


async def test_local_image_replaces_an_unavailable_registry_and_not_a_rejecting_one() -> None:
    docker = FakeDocker("toolbox")
    images = ImageManager(docker, FakeEventRecorder().for_pod(make_pod()))
    [container] = make_pod("[{name: main, image: toolbox, imagePullPolicy: Always}]").spec.containers
    docker.pulls["toolbox"] = NotReady("Docker: connection refused")
    assert await images.ensure_present(container, (), no_wait) == await docker.image_id("toolbox")
    docker.pulls["toolbox"] = Refused("Docker: denied")
    for reason in ("ErrImagePull", "ImagePullBackOff"):
        missing = await images.ensure_present(container, (), no_wait)
        assert isinstance(missing, ImageUnavailable)
        assert missing.reason == reason
    assert len(docker.pull_requests) == 2
