"""Which mirror pods to make and to delete, so that the master shows the static pods that run here. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from api.objects import Node, Pod
from api.static_pods import CONFIG_MIRROR, is_mirror, mirror_pod
from node_agent.sources.reading import name_of


@dataclass(frozen=True, slots=True)
class Shown:
    """What is here: static pods by UID, those that have a worker, whether that has just begun or is about to end, and
    those that only wait to have one. `complete`: every source has spoken, and what they said has been taken up.
    """

    running: Mapping[str, Pod]
    waiting: frozenset[str]
    complete: bool


@dataclass(frozen=True, slots=True)
class Make:
    """Create this object."""

    mirror: Pod


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete this object at once."""

    mirror: Pod


def plan(here: Shown, held: Iterable[Pod], node: Node) -> Iterator[Make | Drop]:
    """What to do, given the pods of this node that the master holds.

    A mirror that somebody deletes, that shows an earlier form of the pod or belonged to an earlier Node of this name
    goes, and is made anew when it is gone; one that shows nothing goes for good. Pods that are no mirrors are left
    alone, even if they have the name of a static pod.
    """
    objects = {name_of(pod): pod for pod in held}
    for pod in objects.values():
        if is_mirror(pod) and not _holds(pod, here, node):
            yield Drop(pod)
    for pod in here.running.values():
        if name_of(pod) not in objects:
            yield Make(mirror_pod(pod, node))


def _holds(mirror: Pod, here: Shown, node: Node) -> bool:
    shows = mirror.metadata.annotations[CONFIG_MIRROR]
    if shows in here.running or shows in here.waiting:
        owners = [owner.uid for owner in mirror.metadata.owner_references]
        return owners == [node.metadata.uid] and not mirror.metadata.deletion_timestamp
    return not here.complete
