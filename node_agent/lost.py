"""Containers that the status tells of and that Docker no longer has: somebody removed them. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from api.objects import ContainerState, ContainerStateTerminated, ContainerStatus, Pod

KILLED = 137


def row_of(pod: Pod, name: str) -> ContainerStatus | None:
    """What the status last told of a container."""
    status = pod.status
    groups = (status.container_statuses, status.init_container_statuses, status.ephemeral_container_statuses)
    return next((row for group in groups for row in group if row.name == name), None)


def starts_before(pod: Pod, name: str) -> int:
    """How often a container was started of which nothing is left."""
    row = row_of(pod, name)
    if row is None or not (row.state.running or row.state.terminated or row.last_state.terminated):
        return 0
    return row.restart_count + 1


def last_words(row: ContainerStatus) -> ContainerStatus:
    """The row of a container of a pod that goes: it does not run, whatever became of it."""
    quiet = replace(row, ready=False, started=False)
    if row.state.running is None:
        return quiet
    gone = _unknown(row, "The container could not be located when the pod was terminated")
    return replace(quiet, state=ContainerState(terminated=gone))


def last_end(row: ContainerStatus | None) -> ContainerStateTerminated | None:
    """How a container ended of which nothing is left; nothing if it never ran."""
    if row is None:
        return None
    if row.state.running is not None:
        return _unknown(row, "The container could not be located. It used to be Running")
    return row.state.terminated or row.last_state.terminated


def _unknown(row: ContainerStatus, message: str) -> ContainerStateTerminated:
    started = row.state.running.started_at if row.state.running is not None else None
    return ContainerStateTerminated(
        exit_code=KILLED,
        reason="ContainerStatusUnknown",
        message=message,
        started_at=started,
        container_id=row.container_id,
    )
