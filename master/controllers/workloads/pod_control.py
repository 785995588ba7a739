"""What controllers of pods share: claim, adopt, release, create and rank pods; template hash. Pure.

A pod belongs to the owner that its controller reference names. A pod without owner that has the labels is adopted. A
pod that lost the labels is released.
"""

from __future__ import annotations

import datetime
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

import msgspec
from msgspec.structs import replace

from api.core.pod import FINAL_PHASES, Pod
from api.meta.selectors import Selector
from api.meta.types import O, Object, ObjectMeta
from master.controllers.actions import Update
from master.registry.decoding import NAME_LETTERS
from master.resources.metadata import controller_of, controller_reference, parse_time
from master.resources.pod_template import PodTemplateSpec

HASH_LABEL = "pod-template-hash"
HASH_LENGTH = 10


def without_hash(template: PodTemplateSpec) -> PodTemplateSpec:
    """The template without the label that names it."""
    labels = {key: value for key, value in template.metadata.labels.items() if key != HASH_LABEL}
    return replace(template, metadata=replace(template.metadata, labels=labels))


def template_hash(template: PodTemplateSpec, collisions: int) -> str:
    """The same whenever the template is the same; `collisions` tells apart what has the same name by chance."""
    content = msgspec.json.encode((without_hash(template), collisions), order="deterministic")
    number = int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
    letters = []
    for _ in range(HASH_LENGTH):
        number, digit = divmod(number, len(NAME_LETTERS))
        letters.append(NAME_LETTERS[digit])
    return "".join(letters)


MAX_PODS_PER_PASS = 500
"""Pods that one pass makes or ends for one owner."""

RETRY_SECONDS = 10.0
"""How old a pod must be in which nothing ever ran before it is replaced."""

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASE_ORDER = {"Pending": 0, "": 0, "Unknown": 1, "Running": 2}


# --- which count ------------------------------------------------------------------------------------------------------


def is_active(pod: Pod) -> bool:
    """Whether a pod counts: it neither ended nor is about to."""
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in FINAL_PHASES


def ready_since(pod: Pod) -> datetime.datetime | None:
    """Since when a pod is ready, if it does not say so since ever; None if it is not."""
    row = next((row for row in pod.status.conditions if row.type == "Ready" and row.status == "True"), None)
    return None if row is None else parse_time(row.last_transition_time) or EPOCH


def is_available(pod: Pod, min_ready_seconds: int, now: datetime.datetime) -> bool:
    """Whether a pod has been ready for long enough."""
    since = ready_since(pod)
    return since is not None and (now - since).total_seconds() >= min_ready_seconds


def ended_at(pod: Pod) -> datetime.datetime | None:
    """When the last container of a pod ended; without one, when the pod was last heard of."""
    rows = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    ends = [parse_time(row.state.terminated.finished_at) for row in rows if row.state.terminated]
    told = [parse_time(row.last_transition_time) for row in pod.status.conditions if row.type == "Ready"]
    known = [moment for moment in ends if moment is not None] or [moment for moment in told if moment is not None]
    return max(known, default=parse_time(pod.metadata.creation_timestamp))


def should_replace(pod: Pod, now: datetime.datetime) -> bool:
    """Whether one that has ended is to be replaced: one in which nothing ever ran not before it is some seconds old, so
    that nothing spins where a node refuses every one.
    """
    made = parse_time(pod.metadata.creation_timestamp)
    ran = bool(pod.status.container_statuses)
    return ran or made is None or (now - made).total_seconds() >= RETRY_SECONDS


# --- whose they are ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimedPods:
    """Pods of one owner, as they will be, and those of them and of others that change hands."""

    mine: tuple[Pod, ...]
    handed: tuple[Update, ...]

    @property
    def active(self) -> tuple[Pod, ...]:
        """Those that count."""
        return tuple(filter(is_active, self.mine))


class OwnerIndex(Generic[O]):
    """Objects by whose they are, so that an owner need not look at those of others."""

    def __init__(self, objects: Iterable[O]) -> None:
        self._owned: dict[str, list[O]] = defaultdict(list)
        self._orphans: dict[str, list[O]] = defaultdict(list)
        for item in objects:
            reference = controller_of(item.metadata)
            if reference is None:
                self._orphans[item.metadata.namespace].append(item)
            else:
                self._owned[reference.uid].append(item)

    def near(self, owner: Object) -> list[O]:
        """The objects of an owner, and those of its namespace that have none."""
        meta = owner.metadata
        return [*self._owned.get(meta.uid, ()), *self._orphans.get(meta.namespace, ())]


def claim_pods(
    owner: Object, wanted: Selector, pods: Iterable[Pod], mark: Callable[[Pod], Pod] | None = None
) -> ClaimedPods:
    """Which of the pods of its namespace belong to an owner; `mark` is what else happens to one that it adopts."""
    mine: list[Pod] = []
    handed: list[Update] = []
    ending = owner.metadata.deletion_timestamp is not None
    for pod in pods:
        reference, fits = controller_of(pod.metadata), wanted.matches(pod.metadata.labels)
        if reference is not None and reference.uid == owner.metadata.uid:
            if fits:
                mine.append(pod)
            elif not ending:
                handed.append(Update(_release(pod, owner), pod))
        elif reference is None and fits and not ending and is_active(pod):
            adopted = _adopt(pod, owner)
            adopted = adopted if mark is None else mark(adopted)
            handed.append(Update(adopted, pod))
            mine.append(adopted)
    return ClaimedPods(tuple(mine), tuple(handed))


def _release(pod: Pod, owner: Object) -> Pod:
    rows = tuple(row for row in pod.metadata.owner_references if row.uid != owner.metadata.uid)
    return replace(pod, metadata=replace(pod.metadata, owner_references=rows))


def _adopt(pod: Pod, owner: Object) -> Pod:
    rows = (*pod.metadata.owner_references, controller_reference(owner))
    return replace(pod, metadata=replace(pod.metadata, owner_references=rows))


def pod_from_template(template: PodTemplateSpec, owner: Object, **changes: Any) -> Pod:
    """A pod of this owner; its name is completed when it is written. `changes` are of its metadata."""
    meta = template.metadata
    begun = ObjectMeta(
        generate_name=f"{owner.metadata.name}-",
        namespace=owner.metadata.namespace,
        labels=meta.labels,
        annotations=meta.annotations,
        finalizers=meta.finalizers,
        owner_references=(controller_reference(owner),),
    )
    return Pod(metadata=replace(begun, **changes), spec=template.spec)


# --- which go first ---------------------------------------------------------------------------------------------------


def deletion_order(pods: Iterable[Pod]) -> list[Pod]:
    """Sorted: the pod that matters least comes first."""
    found = tuple(pods)
    mates: dict[str, int] = defaultdict(int)
    for pod in found:
        mates[pod.spec.node_name] += 1
    return sorted(found, key=lambda pod: _deletion_rank(pod, mates))


def _deletion_rank(pod: Pod, mates: Mapping[str, int]) -> tuple[object, ...]:
    """The smallest goes first: not placed, not running, not ready, cheap, crowded, young, often restarted."""
    since, made = ready_since(pod), parse_time(pod.metadata.creation_timestamp)
    return (
        bool(pod.spec.node_name),
        _PHASE_ORDER.get(pod.status.phase, 2),
        since is not None,
        _deletion_cost(pod),
        -mates[pod.spec.node_name],
        -(since.timestamp() if since else 0.0),
        -max((row.restart_count for row in pod.status.container_statuses), default=0),
        -(made.timestamp() if made else 0.0),
        pod.metadata.name,
    )


def _deletion_cost(pod: Pod) -> int:
    try:
        return int(pod.metadata.annotations.get(DELETION_COST, "0"))
    except ValueError:
        return 0
