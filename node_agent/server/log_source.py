"""Which container's log is meant by the name of a container of a pod. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from api.objects import Container, ContainerState, ContainerStatus, Pod

PREFIX = "docker://"
WAITS = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}


class NoLog(Exception):
    """There is none; `str(error)` says why, in the words of a kubelet."""


def containers(pod: Pod) -> Iterator[Container]:
    """All containers of its spec."""
    yield from (*pod.spec.init_containers, *pod.spec.containers, *pod.spec.ephemeral_containers)


def spec_of(pod: Pod, name: str) -> Container | None:
    """The container of this name."""
    return next((one for one in containers(pod) if one.name == name), None)


def log_source(pod: Pod, name: str, *, previous: bool) -> str:
    """The id of the container whose log is asked for: the newest that has begun, or the one before. Raises NoLog."""
    row = _row(pod, name)
    if row is None:
        raise NoLog(f'container "{name}" in pod "{pod.metadata.name}" is not available')
    before = _ended(row.last_state)
    if previous:
        if not before:
            raise NoLog(f'previous terminated container "{name}" in pod "{pod.metadata.name}" not found')
        return before
    found = row.container_id.removeprefix(PREFIX) if row.state.running is not None else _ended(row.state) or before
    if found:
        return found
    if row.state.terminated is not None or row.state.waiting is None:
        raise NoLog(f'container "{name}" in pod "{pod.metadata.name}" is terminated')
    reason = row.state.waiting.reason
    raise NoLog(f'container "{name}" in pod "{pod.metadata.name}" is waiting to start: {WAITS.get(reason, reason)}')


def _row(pod: Pod, name: str) -> ContainerStatus | None:
    status = pod.status
    rows = (*status.init_container_statuses, *status.container_statuses, *status.ephemeral_container_statuses)
    return next((row for row in rows if row.name == name), None)


def _ended(state: ContainerState) -> str:
    return state.terminated.container_id.removeprefix(PREFIX) if state.terminated is not None else ""
