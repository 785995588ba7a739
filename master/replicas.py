"""Replica sets and replication controllers: as many pods as wished, made from a template. Pure.

A pod belongs to the owner that its controller reference names. A pod with the right labels and no owner is adopted, one
that lost the labels is let go. The snapshot is the store itself, so a pod that was made a moment ago is already in it.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from api.label_selector import LabelSelector, selector
from api.objects import FINAL_PHASES, ObjectMeta, Pod
from api.selectors import Selector
from master.controllers import Change, End, Make, Write
from master.dependents import controller_of, reference_to
from master.kinds.kind import parse_time
from master.kinds.replica_set import ReplicaSet
from master.kinds.replication_controller import ReplicationController
from master.kinds.workload import PodTemplateSpec

Owner = ReplicaSet | ReplicationController

MOST_AT_ONCE = 500
"""Pods that one pass makes or ends for one owner."""

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASES = {"Pending": 0, "": 0, "Unknown": 1, "Running": 2}


def selector_of(owner: Owner) -> Selector:
    """Which pods an owner takes for its own."""
    wish = owner.spec.selector
    return selector(wish if isinstance(wish, LabelSelector) else LabelSelector(match_labels=wish or {}))


def is_active(pod: Pod) -> bool:
    """Whether a pod counts: it neither ended nor is about to."""
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in FINAL_PHASES


def ready_since(pod: Pod) -> datetime.datetime | None:
    """Since when a pod is ready; None if it is not."""
    row = next((row for row in pod.status.conditions if row.type == "Ready" and row.status == "True"), None)
    return None if row is None else parse_time(row.last_transition_time)


@dataclass(frozen=True, slots=True)
class Census:
    """Pods of one owner: those that count, and those that change hands."""

    active: tuple[Pod, ...]
    handed: tuple[Change, ...]


def passes(owners: Iterable[Owner], pods: Iterable[Pod], now: datetime.datetime) -> Iterator[Write]:
    """Everything that is to be written for these owners."""
    by_namespace: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        by_namespace[pod.metadata.namespace].append(pod)
    taken: set[str] = set()
    for owner in owners:
        found = census(owner, [pod for pod in by_namespace[owner.metadata.namespace] if pod.metadata.uid not in taken])
        taken |= {change.item.metadata.uid for change in found.handed}
        yield from found.handed
        if owner.metadata.deletion_timestamp is None:
            yield from _balanced(owner, found.active)
        yield from _told(owner, found.active, now)


def census(owner: Owner, pods: Iterable[Pod]) -> Census:
    """Which of the pods of its namespace belong to an owner."""
    wanted, mine, handed = selector_of(owner), [], []
    ending = owner.metadata.deletion_timestamp is not None
    for pod in pods:
        reference, fits = controller_of(pod.metadata), wanted.matches(pod.metadata.labels)
        if reference is not None and reference.uid == owner.metadata.uid:
            if fits:
                mine.append(pod)
            elif not ending:
                handed.append(Change(_let_go(pod, owner), pod))
        elif reference is None and fits and not ending and is_active(pod):
            adopted = _adopted(pod, owner)
            handed.append(Change(adopted, pod))
            mine.append(adopted)
    return Census(tuple(pod for pod in mine if is_active(pod)), tuple(handed))


def _let_go(pod: Pod, owner: Owner) -> Pod:
    rows = tuple(row for row in pod.metadata.owner_references if row.uid != owner.metadata.uid)
    return replace(pod, metadata=replace(pod.metadata, owner_references=rows))


def _adopted(pod: Pod, owner: Owner) -> Pod:
    rows = (*pod.metadata.owner_references, reference_to(owner))
    return replace(pod, metadata=replace(pod.metadata, owner_references=rows))


# --- as many as wished ------------------------------------------------------------------------------------------------


def _balanced(owner: Owner, active: tuple[Pod, ...]) -> Iterator[Make | End]:
    """A pod that was adopted in this pass is not ended in it: its newest state is not in the store yet."""
    missing = (owner.spec.replicas or 0) - len(active)
    template = owner.spec.template
    if missing > 0 and template is not None:
        yield from (Make(made_from(template, owner)) for _ in range(min(missing, MOST_AT_ONCE)))
    elif missing < 0:
        known = [pod for pod in active if controller_of(pod.metadata) is not None]
        mates = _mates(active)
        ranked = sorted(known, key=lambda pod: _rank(pod, mates))
        yield from (End(pod) for pod in ranked[: min(-missing, MOST_AT_ONCE)])


def made_from(template: PodTemplateSpec, owner: Owner) -> Pod:
    """A pod of this owner; its name is completed when it is written."""
    meta = template.metadata
    return Pod(
        metadata=ObjectMeta(
            generate_name=f"{owner.metadata.name}-",
            namespace=owner.metadata.namespace,
            labels=meta.labels,
            annotations=meta.annotations,
            finalizers=meta.finalizers,
            owner_references=(reference_to(owner),),
        ),
        spec=template.spec,
    )


def _mates(pods: Iterable[Pod]) -> Mapping[str, int]:
    found: dict[str, int] = defaultdict(int)
    for pod in pods:
        found[pod.spec.node_name] += 1
    return found


def _rank(pod: Pod, mates: Mapping[str, int]) -> tuple[object, ...]:
    """The smallest goes first: not placed, not running, not ready, cheap, crowded, young, often restarted."""
    since, made = ready_since(pod), parse_time(pod.metadata.creation_timestamp)
    return (
        bool(pod.spec.node_name),
        _PHASES.get(pod.status.phase, 2),
        since is not None,
        _cost(pod),
        -mates[pod.spec.node_name],
        -(since.timestamp() if since else 0.0),
        -max((row.restart_count for row in pod.status.container_statuses), default=0),
        -(made.timestamp() if made else 0.0),
        pod.metadata.name,
    )


def _cost(pod: Pod) -> int:
    try:
        return int(pod.metadata.annotations.get(DELETION_COST, "0"))
    except ValueError:
        return 0


# --- what it tells ----------------------------------------------------------------------------------------------------


def is_available(pod: Pod, min_ready_seconds: int, now: datetime.datetime) -> bool:
    """Whether a pod has been ready for long enough."""
    since = ready_since(pod)
    return since is not None and (now - since).total_seconds() >= min_ready_seconds


def _told(owner: Owner, active: tuple[Pod, ...], now: datetime.datetime) -> Iterator[Change]:
    template = owner.spec.template
    labels = (template.metadata.labels if template else {}).items()
    status = replace(
        owner.status,
        replicas=len(active),
        fully_labeled_replicas=sum(labels <= pod.metadata.labels.items() for pod in active),
        ready_replicas=sum(ready_since(pod) is not None for pod in active),
        available_replicas=sum(is_available(pod, owner.spec.min_ready_seconds, now) for pod in active),
        observed_generation=owner.metadata.generation,
    )
    if status != owner.status:
        yield Change(replace(owner, status=status), owner)
