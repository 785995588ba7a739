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
from reconcile.loop import Loop, LoopTiming, containing_bugs

log = logging.getLogger(__name__)

GC_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ContainerPolicy:
    """How many dead containers stay for each container of a pod, one at least: they hold logs and restart counts.

    One that ended less than `least_age` ago stays in any case.
    """

    per_container: int = 1
    least_age: timedelta = timedelta(0)


def containers_to_remove(
    found: Iterable[RuntimeContainer], policy: ContainerPolicy, now: datetime, pods: Collection[str]
) -> tuple[RuntimeContainer, ...]:
    """Containers first, then sandboxes, of these pods (UIDs) only: what other pods left is swept with their network.

    The newest sandbox of a pod stays, and every sandbox that still has a container.
    """
    by_pod: dict[str, list[RuntimeContainer]] = {}
    for one in found:
        by_pod.setdefault(one.uid, []).append(one)
    pods_here = [group_containers(by_pod[uid]) for uid in sorted(by_pod.keys() & set(pods))]
    containers = [one for pod in pods_here for one in _surplus(pod, policy) if _is_old(one, policy, now)]
    going = {one.id for one in containers}
    sandboxes = [one for pod in pods_here for one in _empty_sandboxes(pod, going) if _is_old(one, policy, now)]
    return (*containers, *sandboxes)


def _surplus(pod: RuntimePod, policy: ContainerPolicy) -> list[RuntimeContainer]:
    ended = ([one for one in history if one.exited] for history in pod.containers.values())
    return [one for dead in ended for one in dead[policy.per_container :]]


def _empty_sandboxes(pod: RuntimePod, going: Collection[str]) -> list[RuntimeContainer]:
    inside = {
        one.labels.get(SANDBOX_ID) for history in pod.containers.values() for one in history if one.id not in going
    }
    return [one for one in pod.sandboxes[1:] if one.exited and one.id not in inside]


def _is_old(one: RuntimeContainer, policy: ContainerPolicy, now: datetime) -> bool:
    return one.exited_at is None or now - one.exited_at >= policy.least_age


class ContainerGC:
    """Removes dead containers of this node's pods in the background. `pods` are the UIDs of pods that have a worker."""

    def __init__(self, settings: Settings, docker: DockerClient, network: PodNetwork, pods: Collection[str]) -> None:
        self.loop = Loop("dead containers", containing_bugs("garbage", self.collect), LoopTiming(resync=GC_SECONDS))
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
            fields = {"container": container.name, "uid": container.uid, "id": container.id[:12]}
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
