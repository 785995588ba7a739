"""Which pods of a node are evicted, as kubectl drain selects them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from api.core.pod import Pod
from api.validation.static_pods import CONFIG_MIRROR

FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """What a drain may do. `force`: delete pods that nothing creates again. The others are as in kubectl."""

    force: bool = False
    delete_emptydir_data: bool = False
    ignore_daemonsets: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """The pods to evict, those that stay, and why the drain may not begin."""

    evicted: tuple[Pod, ...]
    staying: tuple[Pod, ...]
    problems: tuple[str, ...]


def select(pods: Iterable[Pod], options: DrainOptions) -> Selection:
    """Return what a drain does with the pods of a node."""
    evicted: list[Pod] = []
    staying: list[Pod] = []
    daemons: list[Pod] = []
    bare: list[Pod] = []
    with_data: list[Pod] = []
    for pod in pods:
        is_finished = pod.status.phase in FINISHED
        if CONFIG_MIRROR in pod.metadata.annotations:
            staying.append(pod)
        elif controller_kind(pod) == "DaemonSet" and not is_finished:
            daemons.append(pod)
        else:
            evicted.append(pod)
            if not controller_kind(pod) and not is_finished:
                bare.append(pod)
            if not is_finished and any(volume.empty_dir is not None for volume in pod.spec.volumes):
                with_data.append(pod)
    refused = (
        (daemons, options.ignore_daemonsets, "are of DaemonSets, which start them again", "--ignore-daemonsets"),
        (bare, options.force, "have no controller that creates them again", "--force"),
        (with_data, options.delete_emptydir_data, "have data in emptyDir volumes", "--delete-emptydir-data"),
    )
    problems = tuple(
        f"{names(found)} {why}; {option} is accepted"
        for found, is_accepted, why, option in refused
        if found and not is_accepted
    )
    return Selection(tuple(evicted), (*staying, *daemons), problems)


def controller_kind(pod: Pod) -> str:
    """Return the kind of the controller of a pod, empty if it has none."""
    return next((owner.kind for owner in pod.metadata.owner_references if owner.controller), "")


def names(pods: Sequence[Pod]) -> str:
    """Return the names of pods with their namespaces, at most ten."""
    shown = ", ".join(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods[:10])
    return f"{shown} and {len(pods) - 10} more" if len(pods) > 10 else shown
