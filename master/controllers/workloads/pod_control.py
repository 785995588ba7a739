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
    """Return the template without its hash label."""
    labels = {key: value for key, value in template.metadata.labels.items() if key != HASH_LABEL}
    return replace(template, metadata=replace(template.metadata, labels=labels))


def template_hash(template: PodTemplateSpec, collisions: int) -> str:
    """Return the hash of a template. `collisions` tells apart templates with the same hash."""
    content = msgspec.json.encode((without_hash(template), collisions), order="deterministic")
    number = int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
    letters = []
    for _ in range(HASH_LENGTH):
        number, digit = divmod(number, len(NAME_LETTERS))
        letters.append(NAME_LETTERS[digit])
    return "".join(letters)


MAX_PODS_PER_PASS = 500
"""Pods created or deleted for one owner in one pass."""

RETRY_SECONDS = 10.0
"""Age of a pod whose containers never started, from which it is replaced."""

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASE_ORDER = {"Pending": 0, "": 0, "Unknown": 1, "Running": 2}


# --- active and available ---------------------------------------------------------------------------------------------


def is_active(pod: Pod) -> bool:
    """Return whether a pod counts: it is neither terminated nor being deleted."""
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in FINAL_PHASES


def ready_since(pod: Pod) -> datetime.datetime | None:
    """Return since when a pod is ready; None if it is not, EPOCH if the time is not known."""
    condition = next(
        (condition for condition in pod.status.conditions if condition.type == "Ready" and condition.status == "True"),
        None,
    )
    return None if condition is None else parse_time(condition.last_transition_time) or EPOCH


def is_available(pod: Pod, min_ready_seconds: int, now: datetime.datetime) -> bool:
    """Return whether a pod has been ready for `min_ready_seconds`."""
    since = ready_since(pod)
    return since is not None and (now - since).total_seconds() >= min_ready_seconds


def ended_at(pod: Pod) -> datetime.datetime | None:
    """Return when the last container of a pod ended; if that is not known, the last change of its readiness, or its
    creation.
    """
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    finished = [parse_time(status.state.terminated.finished_at) for status in statuses if status.state.terminated]
    ready_changes = [
        parse_time(condition.last_transition_time) for condition in pod.status.conditions if condition.type == "Ready"
    ]
    times = [time for time in finished if time is not None] or [time for time in ready_changes if time is not None]
    return max(times, default=parse_time(pod.metadata.creation_timestamp))


def should_replace(pod: Pod, now: datetime.datetime) -> bool:
    """Return whether a terminated pod should be replaced now. A pod whose containers never started is replaced only
    after RETRY_SECONDS, because a node that rejects every pod would otherwise cause a tight loop.
    """
    created = parse_time(pod.metadata.creation_timestamp)
    has_started = bool(pod.status.container_statuses)
    return has_started or created is None or (now - created).total_seconds() >= RETRY_SECONDS


# --- adoption and release ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimedPods:
    """The pods of an owner after adoption and release, and the updates of those that change owner."""

    owned: tuple[Pod, ...]
    ownership_changes: tuple[Update, ...]

    @property
    def active(self) -> tuple[Pod, ...]:
        """Return the pods that count."""
        return tuple(filter(is_active, self.owned))


class OwnerIndex(Generic[O]):
    """Objects by their controller, so that an owner reads only its own and orphans."""

    def __init__(self, objects: Iterable[O]) -> None:
        self._owned: dict[str, list[O]] = defaultdict(list)
        self._orphans: dict[str, list[O]] = defaultdict(list)
        for obj in objects:
            reference = controller_of(obj.metadata)
            if reference is None:
                self._orphans[obj.metadata.namespace].append(obj)
            else:
                self._owned[reference.uid].append(obj)

    def candidates(self, owner: Object) -> list[O]:
        """Return the objects of an owner, and those of its namespace without a controller."""
        meta = owner.metadata
        return [*self._owned.get(meta.uid, ()), *self._orphans.get(meta.namespace, ())]


def claim_pods(
    owner: Object, label_selector: Selector, pods: Iterable[Pod], on_adopt: Callable[[Pod], Pod] | None = None
) -> ClaimedPods:
    """Return which pods of its namespace belong to an owner. `on_adopt` changes a pod that is adopted."""
    owned: list[Pod] = []
    ownership_changes: list[Update] = []
    is_terminating = owner.metadata.deletion_timestamp is not None
    for pod in pods:
        reference, matches = controller_of(pod.metadata), label_selector.matches(pod.metadata.labels)
        if reference is not None and reference.uid == owner.metadata.uid:
            if matches:
                owned.append(pod)
            elif not is_terminating:
                ownership_changes.append(Update(_release(pod, owner), pod))
        elif reference is None and matches and not is_terminating and is_active(pod):
            adopted = _adopt(pod, owner)
            adopted = adopted if on_adopt is None else on_adopt(adopted)
            ownership_changes.append(Update(adopted, pod))
            owned.append(adopted)
    return ClaimedPods(tuple(owned), tuple(ownership_changes))


def _release(pod: Pod, owner: Object) -> Pod:
    references = tuple(reference for reference in pod.metadata.owner_references if reference.uid != owner.metadata.uid)
    return replace(pod, metadata=replace(pod.metadata, owner_references=references))


def _adopt(pod: Pod, owner: Object) -> Pod:
    references = (*pod.metadata.owner_references, controller_reference(owner))
    return replace(pod, metadata=replace(pod.metadata, owner_references=references))


def pod_from_template(template: PodTemplateSpec, owner: Object, **changes: Any) -> Pod:
    """Return a pod of an owner; its name is generated when it is created. `changes` are fields of its metadata."""
    meta = template.metadata
    initial = ObjectMeta(
        generate_name=f"{owner.metadata.name}-",
        namespace=owner.metadata.namespace,
        labels=meta.labels,
        annotations=meta.annotations,
        finalizers=meta.finalizers,
        owner_references=(controller_reference(owner),),
    )
    return Pod(metadata=replace(initial, **changes), spec=template.spec)


# --- order of deletion ------------------------------------------------------------------------------------------------


def deletion_order(pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods in the order of deletion."""
    candidates = tuple(pods)
    pods_by_node: dict[str, int] = defaultdict(int)
    for pod in candidates:
        pods_by_node[pod.spec.node_name] += 1
    return sorted(candidates, key=lambda pod: _deletion_rank(pod, pods_by_node))


def _deletion_rank(pod: Pod, pods_by_node: Mapping[str, int]) -> tuple[object, ...]:
    """Return the rank; the smallest is deleted first: not bound, not running, not ready, low cost, many on its node,
    young, often restarted.
    """
    ready, created = ready_since(pod), parse_time(pod.metadata.creation_timestamp)
    return (
        bool(pod.spec.node_name),
        _PHASE_ORDER.get(pod.status.phase, 2),
        ready is not None,
        _deletion_cost(pod),
        -pods_by_node[pod.spec.node_name],
        -(ready.timestamp() if ready else 0.0),
        -max((status.restart_count for status in pod.status.container_statuses), default=0),
        -(created.timestamp() if created else 0.0),
        pod.metadata.name,
    )


def _deletion_cost(pod: Pod) -> int:
    try:
        return int(pod.metadata.annotations.get(DELETION_COST, "0"))
    except ValueError:
        return 0
