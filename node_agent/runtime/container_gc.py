"""Removes dead containers and detaches sandboxes that are gone."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from node_agent.docker.client import DockerClient
from node_agent.network.plugin import PodNetwork
from node_agent.runtime.container import SANDBOX_ID, RuntimeContainer, RuntimePod, group_containers


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
    ended = ([one for one in history if one.ended] for history in pod.containers.values())
    return [one for dead in ended for one in dead[policy.per_container :]]


def _empty_sandboxes(pod: RuntimePod, going: Collection[str]) -> list[RuntimeContainer]:
    inside = {
        one.labels.get(SANDBOX_ID) for history in pod.containers.values() for one in history if one.id not in going
    }
    return [one for one in pod.sandboxes[1:] if one.ended and one.id not in inside]


def _is_old(one: RuntimeContainer, policy: ContainerPolicy, now: datetime) -> bool:
    return one.ended_at is None or now - one.ended_at >= policy.least_age


log = logging.getLogger(__name__)


async def detach_lost(docker: DockerClient, network: PodNetwork) -> None:
    """Detach what is attached on our behalf and whose sandbox Docker no longer has. Raises NotReady.

    The network is asked first: a sandbox that it names has been made before, so Docker, asked afterwards, knows it
    unless it is gone. In the other order a sandbox that is just being made would look like a lost one.
    """
    attached = await network.sandboxes()
    if not attached:
        return
    for sandbox in sorted(attached - await docker.sandboxes()):
        log.info("detaching what a sandbox left behind", extra={"sandbox": sandbox[:12]})
        await network.detach(sandbox)
