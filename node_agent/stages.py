"""Which containers of a pod have their turn: init containers one after the other, sidecars, then the others. Pure.

An init container has to end well before the next has its turn, a sidecar only has to
be started (its hook, its startup probe). Once one of the pod's own
containers has been tried in a sandbox, this sandbox is done with init containers for good.
"""

from __future__ import annotations

from dataclasses import dataclass

from api.objects import Container as Wish
from api.objects import EphemeralContainer, Pod
from api.resources import is_sidecar
from node_agent.observed import SANDBOX_ID, Container, PodContainers
from node_agent.progress import NOTHING, Progress
from reconcile.errors import Refused


@dataclass(frozen=True, slots=True)
class Stage:
    """The containers that are to run now, or to have run, in the order of their start."""

    due: tuple[Wish, ...]
    initialized: bool


def sidecars(pod: Pod) -> tuple[Wish, ...]:
    """The init containers that keep running."""
    return tuple(one for one in pod.spec.init_containers if is_sidecar(one))


def ends_before_others(pod: Pod, wish: Wish) -> bool:
    """Whether it is an init container that is no sidecar."""
    return not is_sidecar(wish) and any(one.name == wish.name for one in pod.spec.init_containers)


def stage(pod: Pod, seen: PodContainers, sandbox: Container | None, progress: Progress = NOTHING) -> Stage:
    """What has its turn in this sandbox, or in a new one when there is None."""
    due: list[Wish] = []
    if not has_begun(pod, seen, sandbox):
        for wish in pod.spec.init_containers:
            newest = _inside(seen.containers.get(wish.name, ()), sandbox)
            if is_sidecar(wish):
                due.append(wish)
                if newest is None or not progress.is_started(wish, newest):
                    return Stage(tuple(due), initialized=False)
            elif newest is None or not (newest.ended and newest.succeeded):
                return Stage((*due, wish), initialized=False)
    return Stage((*sidecars(pod), *pod.spec.containers), initialized=True)


def has_begun(pod: Pod, seen: PodContainers, sandbox: Container | None) -> bool:
    """Whether one of the pod's own containers was tried in this sandbox."""
    tried = (_inside(seen.containers.get(wish.name, ()), sandbox) for wish in pod.spec.containers)
    return any(one is not None and not one.unborn for one in tried)


def restart_policy(pod: Pod, wish: Wish) -> str:
    """The policy that holds for one container.

    A sidecar always comes back, an init container until it ends well, an ephemeral one never.
    """
    if isinstance(wish, EphemeralContainer):
        return "Never"
    if any(one.name == wish.name for one in pod.spec.init_containers):
        if is_sidecar(wish):
            return "Always"
        return "Never" if pod.spec.restart_policy == "Never" else "OnFailure"
    return pod.spec.restart_policy


def failed_for_good(pod: Pod, seen: PodContainers) -> bool:
    """Whether an init container has failed that may not be tried again."""
    if pod.spec.restart_policy != "Never":
        return False
    histories = (seen.containers.get(one.name, ()) for one in pod.spec.init_containers if not is_sidecar(one))
    return any(history[0].ended and not history[0].succeeded for history in histories if history)


def target_of(wish: Wish, seen: PodContainers) -> str:
    """The container whose processes an ephemeral one is to see; empty when it has none. Raises Refused."""
    if not isinstance(wish, EphemeralContainer) or not wish.target_container_name:
        return ""
    history = seen.containers.get(wish.target_container_name, ())
    if not history or not history[0].running:
        raise Refused(f'unable to find target container "{wish.target_container_name}": it does not run')
    return history[0].id


def _inside(history: tuple[Container, ...], sandbox: Container | None) -> Container | None:
    newest = history[0] if history else None
    if newest is None or sandbox is None or newest.labels.get(SANDBOX_ID) != sandbox.id:
        return None
    return newest
