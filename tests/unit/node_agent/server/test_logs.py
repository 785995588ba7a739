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


def waiting(reason: str) -> ContainerState:
    return ContainerState(waiting=ContainerStateWaiting(reason=reason))


def pod_with_state(state: ContainerState, last: ContainerState | None = None, identity: str = "new") -> Pod:
    status = ContainerStatus(
        name="main", state=state, last_state=last or ContainerState(), container_id=identity and f"docker://{identity}"
    )
    return replace(make_pod(), status=PodStatus(container_statuses=(status,)))


@pytest.mark.parametrize(
    ("of", "previous", "container_id"),
    [
        (pod_with_state(RUNNING), False, "new"),
        (pod_with_state(RUNNING, ended("old")), False, "new"),
        (pod_with_state(RUNNING, ended("old")), True, "old"),
        (pod_with_state(ended("new")), False, "new"),
        (pod_with_state(ended("new"), ended("old")), True, "old"),
        (pod_with_state(waiting("CrashLoopBackOff"), ended("old")), False, "old"),
        (pod_with_state(waiting("CrashLoopBackOff"), ended("old")), True, "old"),
    ],
)
def test_log_container_follows_status_and_options(of: Pod, previous: bool, container_id: str) -> None:
    assert log_container_id(of, "main", previous=previous) == container_id


@pytest.mark.parametrize(
    ("of", "previous", "why"),
    [
        (make_pod(), False, "is not available"),
        (pod_with_state(RUNNING), True, "not found"),
        (
            pod_with_state(waiting("ContainerCreating")),
            False,
            "is waiting to start: ContainerCreating",
        ),
        (
            pod_with_state(waiting("ErrImagePull")),
            False,
            "is waiting to start: image can't be pulled",
        ),
        (
            pod_with_state(waiting("ImagePullBackOff")),
            False,
            "is waiting to start: trying and failing to pull image",
        ),
        (pod_with_state(ended("")), False, "is terminated"),
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
