"""Resize of a pod in place: what is allocated, what the node decides, what is left to do (kubelet: allocation). Pure.

The API server changes the resources in the spec. The node allocates them if it has room, and Docker applies them to
containers that run. The status of a container has the resources that it has, so that a restarted agent finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from api.core.node import Node
from api.core.pod import Container, ContainerStatus, Pod, ResourceRequirements
from api.core.resource_requests import allocatable, insufficient_resources, pod_requests, sidecars, total_requests
from api.meta import quantity
from node_agent.runtime.container import HASH, DockerResources, RuntimeContainer, RuntimePod
from node_agent.runtime.spec import container_hash, docker_resources

RESIZED = ("cpu", "memory")


@dataclass(frozen=True, slots=True)
class PendingResize:
    """Why a resize is not allocated: `reason` is Deferred or Infeasible."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ResizeState:
    """The conditions of a resize: PodResizePending, and PodResizeInProgress with the last error of Docker."""

    pending: PendingResize | None = None
    in_progress: bool = False
    error: str = ""


NO_RESIZE = ResizeState()


@dataclass(frozen=True, slots=True)
class ContainerResize:
    """Resources for a running container. With `restarts`, they take effect by a restart."""

    container: RuntimeContainer
    resources: DockerResources
    restarts: bool


def resizable_containers(pod: Pod) -> tuple[Container, ...]:
    """Return the containers that a resize may change: the regular ones and the sidecars."""
    return (*sidecars(pod), *pod.spec.containers)


def with_resources(pod: Pod, other: Pod) -> Pod:
    """Return a pod with the resources that its containers have in another version of it."""
    resources = {container.name: container.resources for container in resizable_containers(other)}
    return _with_resources(pod, resources)


def has_resources_of(pod: Pod, other: Pod) -> bool:
    """Return whether the containers of two versions of a pod have the same resources."""
    return with_resources(pod, other) == pod


def allocated_pod(pod: Pod) -> Pod:
    """Return a pod with the resources of the containers' statuses, which an earlier agent process has written."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    resources = {
        status.name: replace(status.resources, requests=status.allocated_resources)
        for status in statuses
        if status.resources is not None and _is_valid(status)
    }
    return _with_resources(pod, resources)


def _is_valid(status: ContainerStatus) -> bool:
    """Return whether the quantities of a status can be read. Another client may have written them."""
    assert status.resources is not None
    try:
        for amount in (*status.resources.limits.values(), *status.allocated_resources.values()):
            quantity.parse(amount)
    except quantity.BadQuantity:
        return False
    return True


def _with_resources(pod: Pod, resources: dict[str, ResourceRequirements]) -> Pod:
    resizable = {container.name for container in resizable_containers(pod)}

    def changed(containers: tuple[Container, ...]) -> tuple[Container, ...]:
        return tuple(
            replace(container, resources=resources[container.name])
            if container.name in resizable and container.name in resources
            else container
            for container in containers
        )

    spec = replace(pod.spec, containers=changed(pod.spec.containers), init_containers=changed(pod.spec.init_containers))
    return replace(pod, spec=spec)


def resize_rejection(pod: Pod, node: Node | None, other_pods: Iterable[Pod]) -> PendingResize | None:
    """Return why the node does not allocate the resources of a pod; None if it does.

    A resize that no end of other pods makes possible is infeasible.
    """
    if node is None:
        return PendingResize("Deferred", "the node is not registered yet")
    capacity = allocatable(node)
    requests = {name: amount for name, amount in pod_requests(pod).items() if name in RESIZED}
    lacking = [
        f"{name}, requested: {requested}, capacity: {available}"
        for name, requested, _, available in insufficient_resources(requests, {}, capacity)
    ]
    if lacking:
        return PendingResize("Infeasible", f"Node didn't have enough capacity: {'; '.join(lacking)}")
    for name, requested, used, available in insufficient_resources(requests, total_requests(other_pods), capacity):
        quantities = f"requested: {requested}, used: {used}, capacity: {available}"
        return PendingResize("Deferred", f"Node didn't have enough resource: {name}, {quantities}")
    return None


def container_resizes(pod: Pod, runtime_pod: RuntimePod, cpu_cfs_quota: bool) -> Iterator[ContainerResize]:
    """Yield what is left to do, so that the running containers have the resources of the pod."""
    for container in resizable_containers(pod):
        newest = next(iter(runtime_pod.containers.get(container.name, ())), None)
        if newest is None or not newest.running or newest.labels.get(HASH) != container_hash(container):
            continue
        desired = docker_resources(container, cpu_cfs_quota)
        if newest.resources is not None and newest.resources != desired:
            yield ContainerResize(newest, desired, _restarts(container, newest.resources, desired))


def _restarts(container: Container, current: DockerResources, desired: DockerResources) -> bool:
    policies = {policy.resource_name: policy.restart_policy for policy in container.resize_policy}
    changed = set()
    if (current.cpu_shares, current.cpu_quota) != (desired.cpu_shares, desired.cpu_quota):
        changed.add("cpu")
    if current.memory != desired.memory:
        changed.add("memory")
    return any(policies.get(name) == "RestartContainer" for name in changed)
