"""Removes dead containers, and detaches sandboxes that no longer exist from the pod network."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from node_agent.config import Settings
from node_agent.docker.client import DockerClient
from node_agent.network.plugin import PodNetwork
from node_agent.runtime.container import SANDBOX_ID, RuntimeContainer, RuntimePod, group_containers
from reconcile.loop import Loop, LoopTiming, retry_unexpected_errors

log = logging.getLogger(__name__)

GC_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ContainerPolicy:
    """The number and the age of dead containers that are kept.

    `per_container`: number for each container of a pod, at least one, because it holds the log and the restart count.
    `min_age`: time for which every dead container is kept.
    """

    per_container: int = 1
    min_age: timedelta = timedelta(0)


def containers_to_remove(
    containers: Iterable[RuntimeContainer], policy: ContainerPolicy, now: datetime, uids: Collection[str]
) -> tuple[RuntimeContainer, ...]:
    """Return the dead containers of these pods that the policy does not keep, then their unused sandboxes.

    The newest sandbox of a pod stays, and every sandbox that still has a container. Containers of other pods are
    removed together with their network, by the clean-up of orphans.
    """
    by_pod: dict[str, list[RuntimeContainer]] = {}
    for container in containers:
        by_pod.setdefault(container.pod_uid, []).append(container)
    runtime_pods = [group_containers(by_pod[uid]) for uid in sorted(by_pod.keys() & set(uids))]
    surplus = [
        container
        for pod in runtime_pods
        for container in _surplus(pod, policy)
        if _is_old_enough(container, policy, now)
    ]
    removed_ids = {container.id for container in surplus}
    sandboxes = [
        sandbox
        for pod in runtime_pods
        for sandbox in _empty_sandboxes(pod, removed_ids)
        if _is_old_enough(sandbox, policy, now)
    ]
    return (*surplus, *sandboxes)


def _surplus(pod: RuntimePod, policy: ContainerPolicy) -> list[RuntimeContainer]:
    surplus: list[RuntimeContainer] = []
    for history in pod.containers.values():
        dead = [container for container in history if container.exited]
        surplus += dead[policy.per_container :]
    return surplus


def _empty_sandboxes(pod: RuntimePod, removed_ids: Collection[str]) -> list[RuntimeContainer]:
    used_ids = {
        container.labels.get(SANDBOX_ID)
        for history in pod.containers.values()
        for container in history
        if container.id not in removed_ids
    }
    return [sandbox for sandbox in pod.sandboxes[1:] if sandbox.exited and sandbox.id not in used_ids]


def _is_old_enough(container: RuntimeContainer, policy: ContainerPolicy, now: datetime) -> bool:
    return container.exited_at is None or now - container.exited_at >= policy.min_age


class ContainerGC:
    """Removes dead containers of this node's pods in the background. `pods` are the UIDs of pods that have a worker."""

    def __init__(self, settings: Settings, docker: DockerClient, network: PodNetwork, pods: Collection[str]) -> None:
        self.loop = Loop(
            "dead containers", retry_unexpected_errors("garbage", self.collect), LoopTiming(resync=GC_SECONDS)
        )
        self._docker = docker
        self._network = network
        self._pods = pods
        self._policy = ContainerPolicy(
            settings.maximum_dead_containers_per_container, timedelta(seconds=settings.minimum_container_ttl_seconds)
        )

    async def collect(self) -> None:
        """Remove the dead containers that the policy does not keep. Raises DriverError."""
        containers = await self._docker.list_containers()
        for container in containers_to_remove(containers, self._policy, datetime.now(UTC), self._pods):
            fields = {"container": container.name, "uid": container.pod_uid, "id": container.id[:12]}
            log.info("removing dead container", extra=fields)
            if container.is_sandbox:
                await self._network.detach(container.id)
            await self._docker.remove(container.id)


class SandboxGC:
    """Detaches sandboxes that Docker no longer has from the pod network, in the background (CNI: GC)."""

    def __init__(self, docker: DockerClient, network: PodNetwork) -> None:
        self.loop = Loop("lost sandboxes", self.collect, LoopTiming(resync=GC_SECONDS))
        self._docker = docker
        self._network = network

    async def collect(self) -> None:
        """Detach the sandboxes that this agent attached and that Docker no longer has. Raises NotReady.

        The network is read before Docker: a sandbox that the network lists was created earlier, so Docker lists it
        too unless it is gone. In the other order, a sandbox that is just being created would count as lost.
        """
        attached = await self._network.list_sandboxes()
        if not attached:
            return
        for sandbox in sorted(attached - await self._docker.list_sandboxes()):
            log.info("detaching lost sandbox", extra={"sandbox": sandbox[:12]})
            await self._network.detach(sandbox)
