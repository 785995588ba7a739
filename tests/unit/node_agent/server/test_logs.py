"""Selection of the container whose log is read."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from api.core.pod import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodStatus,
)
from node_agent.server.logs import LogUnavailable, find_container_spec, log_container_id
from tests.unit.node_agent.examples import make_pod

RUNNING = ContainerState(running=ContainerStateRunning())


def ended(identity: str) -> ContainerState:
    return ContainerState(
        terminated=ContainerStateTerminated(exit_code=1, container_id=identity and f"docker://{identity}")
    )


def waits(reason: str) -> ContainerState:
    return ContainerState(waiting=ContainerStateWaiting(reason=reason))


def told(state: ContainerState, last: ContainerState | None = None, identity: str = "new") -> Pod:
    status = ContainerStatus(
        name="main", state=state, last_state=last or ContainerState(), container_id=identity and f"docker://{identity}"
    )
    return replace(make_pod(), status=PodStatus(container_statuses=(status,)))


@pytest.mark.parametrize(
    ("of", "previous", "found"),
    [
        (told(RUNNING), False, "new"),
        (told(RUNNING, ended("old")), False, "new"),
        (told(RUNNING, ended("old")), True, "old"),
        (told(ended("new")), False, "new"),
        (told(ended("new"), ended("old")), True, "old"),
        (told(waits("CrashLoopBackOff"), ended("old")), False, "old"),
        (told(waits("CrashLoopBackOff"), ended("old")), True, "old"),
    ],
)
def test_log_container_follows_status_and_options(of: Pod, previous: bool, found: str) -> None:
    assert log_container_id(of, "main", previous=previous) == found


@pytest.mark.parametrize(
    ("of", "previous", "why"),
    [
        (make_pod(), False, "is not available"),
        (told(RUNNING), True, "not found"),
        (
            told(waits("ContainerCreating")),
            False,
            "is waiting to start: ContainerCreating",
        ),
        (
            told(waits("ErrImagePull")),
            False,
            "is waiting to start: image can't be pulled",
        ),
        (
            told(waits("ImagePullBackOff")),
            False,
            "is waiting to start: trying and failing to pull image",
        ),
        (told(ended("")), False, "is terminated"),
    ],
)
def test_log_request_without_a_container_reports_why(of: Pod, previous: bool, why: str) -> None:
    with pytest.raises(LogUnavailable) as caught:
        log_container_id(of, "main", previous=previous)
    before = "previous terminated container" if previous else "container"
    assert str(caught.value) == f'{before} "main" in pod "{of.metadata.name}" {why}'


def test_log_container_is_found_among_all_container_types() -> None:
    pod = make_pod(spec="  initContainers: [{name: first, image: toolbox}]")
    assert [find_container_spec(pod, name) is not None for name in ("first", "main", "other")] == [True, True, False]
