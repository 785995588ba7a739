"""StatefulSets: pods with stable names and storage, created, deleted and replaced in order. Pure.

Pods are identified by name, so there is never more than one of an identity: the next is created when the previous one
is gone from the store. In order means: a pod is created when all before it are available; the last one is deleted
first, and is the first to get a new template.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from api.core.events import WARNING, reference
from api.core.pod import FINAL_PHASES, Pod
from api.core.storage import PersistentVolumeClaim
from api.meta.selectors import LabelSelector, selector
from api.meta.types import Object, ObjectMeta, OwnerReference
from master.controllers import events
from master.controllers.actions import Action, Create, Delete, Update, Warn
from master.controllers.context import Lister
from master.controllers.workloads import history as revisions
from master.controllers.workloads.history import HASH_LABEL
from master.controllers.workloads.pod_control import (
    MAX_PODS_PER_PASS,
    OwnerIndex,
    claim_pods,
    is_available,
    pod_from_template,
    ready_since,
    should_replace,
)
from master.resources.metadata import controller_of
from master.resources.pod_template import PodTemplateSpec
from master.resources.stateful_sets import (
    DELETE,
    PARALLEL,
    ROLLING_UPDATE,
    ControllerRevision,
    StatefulSet,
    StatefulSetStatus,
    with_claims,
)

CONTROLLER = "statefulset-controller"
_ORDINAL = re.compile(r"0|[1-9][0-9]{0,9}")
NAME_LABEL, ORDINAL_LABEL = "statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"


def reconcile(
    sets: Iterable[StatefulSet],
    pods: Iterable[Pod],
    claims: Iterable[PersistentVolumeClaim],
    kept: Sequence[ControllerRevision],
    now: datetime.datetime,
) -> Iterator[Action]:
    """Everything that is to be written for these stateful sets."""
    everything = tuple(pods)
    kin, names = OwnerIndex(everything), frozenset((pod.metadata.namespace, pod.metadata.name) for pod in everything)
    held = {(claim.metadata.namespace, claim.metadata.name): claim for claim in claims}
    for one in sets:
        able = [pod for pod in kin.near(one) if ordinal_of(one, pod) is not None or controller_of(pod.metadata)]
        found = claim_pods(one, selector(one.spec.selector or LabelSelector()), able)
        yield from found.handed
        if not found.handed:
            yield from _sync(one, found.mine, names, held, kept, now)


def ordinal_of(owner: StatefulSet, pod: Pod) -> int | None:
    """The number of a pod of this set; None if it has not the name of one."""
    prefix, _, number = pod.metadata.name.rpartition("-")
    return int(number) if prefix == owner.metadata.name and _ORDINAL.fullmatch(number) else None


def _sync(
    owner: StatefulSet,
    pods: tuple[Pod, ...],
    names: frozenset[tuple[str, str]],
    claims: Mapping[tuple[str, str], PersistentVolumeClaim],
    kept: Sequence[ControllerRevision],
    now: datetime.datetime,
) -> Iterator[Action]:
    used = {pod.metadata.labels.get(HASH_LABEL, "") for pod in pods} | {owner.status.current_revision}
    history = revisions.revision_history(owner, kept, used)
    update = history.current
    if update is None:
        yield Update(replace(owner, status=replace(owner.status, collision_count=history.collisions)), owner)
        return
    current = next((one for one in history.old if one.metadata.name == owner.status.current_revision), update)
    stand = _StatefulSetState(owner, pods, names, claims, current, update, now)
    if owner.metadata.deletion_timestamp is None:
        yield from history.writes
        yield from stand.steps()
        yield from stand.claims_in_hand()
    if stand.status != owner.status:
        yield Update(replace(owner, status=stand.status), owner)


@dataclass(frozen=True)
class _StatefulSetState:
    """A stateful set as it stands. `names` are (namespace, name) of all pods; `current` is the revision from which
    pods are made below the partition, `update` that of its newest template.
    """

    owner: StatefulSet
    pods: tuple[Pod, ...]
    names: frozenset[tuple[str, str]]
    claims: Mapping[tuple[str, str], PersistentVolumeClaim]
    current: ControllerRevision
    update: ControllerRevision
    now: datetime.datetime

    @property
    def _first(self) -> int:
        return self.owner.spec.ordinals.start if self.owner.spec.ordinals is not None else 0

    @property
    def _numbers(self) -> range:
        """Those of the pods that there are to be."""
        return range(self._first, self._first + (self.owner.spec.replicas or 0))

    @cached_property
    def _by_number(self) -> Mapping[int, Pod]:
        found = ((ordinal_of(self.owner, pod), pod) for pod in self.pods)
        return {number: pod for number, pod in found if number is not None}

    @property
    def _in_order(self) -> bool:
        return self.owner.spec.pod_management_policy != PARALLEL

    @property
    def _partition(self) -> int:
        """Below it a pod is made from the old template."""
        rolling = self.owner.spec.update_strategy.rolling_update
        return self._first + ((rolling.partition or 0) if rolling is not None else 0)

    def _runs(self, pod: Pod) -> bool:
        return pod.status.phase == "Running" and ready_since(pod) is not None

    def _serves(self, pod: Pod) -> bool:
        available = is_available(pod, self.owner.spec.min_ready_seconds, self.now)
        return self._runs(pod) and available and not pod.metadata.deletion_timestamp

    # --- the next step ------------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Action]:
        """In order the first that is due, otherwise all that are."""
        steps = 0
        for number in self._numbers:
            step, goes_on = self._kept(number)
            yield from step
            steps += bool(step)
            if (self._in_order and not goes_on) or steps >= MAX_PODS_PER_PASS:
                return
        for number in sorted((one for one in self._by_number if one not in self._numbers), reverse=True):
            pod = self._by_number[number]
            before = [lower for lower in self._by_number if lower < number]
            if not pod.metadata.deletion_timestamp and (not self._in_order or all(map(self._is_no_hindrance, before))):
                yield from self._ended(pod)
            if self._in_order:
                return
        if self.owner.spec.update_strategy.type == ROLLING_UPDATE:
            yield from self._rolled()

    def _is_no_hindrance(self, number: int) -> bool:
        """Whether a later pod may go: this one serves, or it has ended and will not be made anew."""
        pod = self._by_number[number]
        return self._serves(pod) or (number not in self._numbers and pod.status.phase in FINAL_PHASES)

    def _kept(self, number: int) -> tuple[list[Action], bool]:
        """What is missing of one identity, and whether the next may follow."""
        pod = self._by_number.get(number)
        if pod is None:
            return self._made(number), False
        if pod.metadata.deletion_timestamp is None and pod.status.phase in FINAL_PHASES:
            return (self._replaced(pod) if should_replace(pod, self.now) else []), False
        return self._claimed(number), self._serves(pod)

    def _rolled(self) -> Iterator[Action]:
        """The last pod that is of an older template goes, when all after it serve."""
        for number in reversed(range(max(self._first, self._partition), self._numbers.stop)):
            pod = self._by_number.get(number)
            if pod is None or pod.metadata.deletion_timestamp or pod.status.phase in FINAL_PHASES:
                return
            if self._revision(pod) != self.update.metadata.name:
                yield from self._ended(pod)
                return
            if not self._serves(pod):
                return

    def _replaced(self, pod: Pod) -> list[Action]:
        words = f"StatefulSet {self.owner.metadata.namespace}/{self.owner.metadata.name} is recreating failed Pod "
        about, words = reference(self.owner), words + pod.metadata.name
        return [Delete(pod), events.event_about(about, WARNING, "RecreatingFailedPod", words, CONTROLLER, self.now)]

    def _ended(self, pod: Pod) -> list[Action]:
        return [Delete(pod), events.deleted(self.owner, pod, CONTROLLER, self.now)]

    # --- an identity --------------------------------------------------------------------------------------------------

    def _name(self, number: int) -> str:
        return f"{self.owner.metadata.name}-{number}"

    def _revision(self, pod: Pod) -> str:
        return pod.metadata.labels.get(HASH_LABEL, "")

    def _made(self, number: int) -> list[Action]:
        """The pod, with claims that are missing; nothing while something else is in the way of its name or claims."""
        name = self._name(number)
        if (self.owner.metadata.namespace, name) in self.names:
            why = f"the pod {name} is not of StatefulSet {self.owner.metadata.name}, which cannot make its own"
            return [Warn(why, about=f"{self.owner.metadata.namespace}/{name}")]
        found = (self._claim(claim) for _, claim in self._claim_names(number))
        if any(claim is not None and claim.metadata.deletion_timestamp for claim in found):
            return []
        return [*self._claimed(number), Create(self._pod(number), CONTROLLER)]

    def _pod(self, number: int) -> Pod:
        rolls = self.owner.spec.update_strategy.type == ROLLING_UPDATE
        revision = self.current if rolls and number < self._partition else self.update
        template = self.owner.spec.template if revision is self.update else self._old_template
        name = self._name(number)
        labels = {
            **template.metadata.labels,
            HASH_LABEL: revision.metadata.name,
            NAME_LABEL: name,
            ORDINAL_LABEL: str(number),
        }
        spec = with_claims(template.spec, self._claim_names(number))
        spec = replace(spec, hostname=name, subdomain=self.owner.spec.service_name)
        return pod_from_template(replace(template, spec=spec), self.owner, name=name, generate_name="", labels=labels)

    @property
    def _old_template(self) -> PodTemplateSpec:
        return revisions.template_of(self.current) or self.owner.spec.template

    # --- its storage --------------------------------------------------------------------------------------------------

    def _claim_names(self, number: int) -> list[tuple[str, str]]:
        """(name of the template, name of the claim)."""
        names = (claim.metadata.name for claim in self.owner.spec.volume_claim_templates)
        return [(name, f"{name}-{self._name(number)}") for name in names]

    def _claim(self, name: str) -> PersistentVolumeClaim | None:
        return self.claims.get((self.owner.metadata.namespace, name))

    def _claimed(self, number: int) -> list[Action]:
        """The claims of an identity that are missing."""
        made: list[Action] = []
        for template, (_, name) in zip(self.owner.spec.volume_claim_templates, self._claim_names(number), strict=True):
            if self._claim(name) is None:
                labels = {**template.metadata.labels, **(self.owner.spec.selector or LabelSelector()).match_labels}
                meta = ObjectMeta(
                    name=name,
                    namespace=self.owner.metadata.namespace,
                    labels=labels,
                    annotations=template.metadata.annotations,
                    owner_references=self._claim_owners(number),
                )
                made.append(Create(replace(template, metadata=meta), owner=self.owner))
        return made

    def _claim_owners(self, number: int) -> tuple[OwnerReference, ...]:
        """With whom a claim goes: with the set, with the pod that is no longer wished for, or with nobody."""
        policy, pod = self.owner.spec.persistent_volume_claim_retention_policy, self._by_number.get(number)
        if number not in self._numbers and policy.when_scaled == DELETE:
            return (_owner_reference(pod),) if pod is not None else ()
        return (_owner_reference(self.owner),) if policy.when_deleted == DELETE else ()

    def claims_in_hand(self) -> Iterator[Update]:
        """Claims of pods that are there, in the hands of those with whom they go."""
        uids = {self.owner.metadata.uid, *(pod.metadata.uid for pod in self.pods)}
        for number in self._by_number:
            for _, name in self._claim_names(number):
                claim = self._claim(name)
                if claim is None:
                    continue
                others = (row for row in claim.metadata.owner_references if row.uid not in uids)
                owners = (*others, *self._claim_owners(number))
                if owners != claim.metadata.owner_references:
                    yield Update(replace(claim, metadata=replace(claim.metadata, owner_references=owners)), claim)

    # --- what it tells ------------------------------------------------------------------------------------------------

    @cached_property
    def status(self) -> StatefulSetStatus:
        """The numbers; when all pods are of the newest template, that is the current one."""
        standing = [pod for pod in self.pods if not pod.metadata.deletion_timestamp]
        ready = sum(map(self._runs, self.pods))
        updated = sum(self._revision(pod) == self.update.metadata.name for pod in standing)
        done = self.owner.spec.update_strategy.type == ROLLING_UPDATE and updated == len(self.pods) == ready
        current = self.update if done else self.current
        return replace(
            self.owner.status,
            observed_generation=self.owner.metadata.generation,
            replicas=len(self.pods),
            ready_replicas=ready,
            available_replicas=sum(map(self._serves, self.pods)),
            current_replicas=sum(self._revision(pod) == current.metadata.name for pod in standing),
            updated_replicas=updated,
            current_revision=current.metadata.name,
            update_revision=self.update.metadata.name,
        )


def _owner_reference(owner: Object) -> OwnerReference:
    return OwnerReference(
        api_version=owner.API_VERSION, kind=owner.KIND, name=owner.metadata.name, uid=owner.metadata.uid
    )


def sync_stateful_sets(lister: Lister) -> Iterable[Action]:
    """Reconcile all StatefulSets."""
    if not (found := lister.list("StatefulSet")):
        return ()
    claims, kept = lister.list("PersistentVolumeClaim"), lister.list("ControllerRevision")
    return reconcile(found, lister.list("Pod"), claims, kept, lister.now)


STATEFUL_SET_KINDS = ("StatefulSet", "ControllerRevision", "PersistentVolumeClaim", "Pod")
