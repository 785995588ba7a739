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

from api.core.events import WARNING, object_reference
from api.core.pod import FINAL_PHASES, Pod
from api.core.storage import PersistentVolumeClaim
from api.meta.selectors import LabelSelector, compile_selector
from api.meta.types import Object, ObjectMeta, OwnerReference
from master.controllers import events
from master.controllers.actions import Action, Create, Delete, Update, Warn, isolate_errors
from master.controllers.context import Lister
from master.controllers.workloads.history import HASH_LABEL, revision_history, template_of
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
STATEFUL_SET_KINDS = ("StatefulSet", "ControllerRevision", "PersistentVolumeClaim", "Pod")
_ORDINAL = re.compile(r"0|[1-9][0-9]{0,9}")
NAME_LABEL, ORDINAL_LABEL = "statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"


def reconcile(
    stateful_sets: Iterable[StatefulSet],
    pods: Iterable[Pod],
    claims: Iterable[PersistentVolumeClaim],
    stored_revisions: Sequence[ControllerRevision],
    now: datetime.datetime,
) -> Iterator[Action]:
    """Yield the actions for these StatefulSets."""
    all_pods = tuple(pods)
    index, names = OwnerIndex(all_pods), frozenset((pod.metadata.namespace, pod.metadata.name) for pod in all_pods)
    claims_by_name = {(claim.metadata.namespace, claim.metadata.name): claim for claim in claims}

    def sync_stateful_set(stateful_set: StatefulSet) -> Iterator[Action]:
        candidates = [
            pod
            for pod in index.candidates(stateful_set)
            if ordinal_of(stateful_set, pod) is not None or controller_of(pod.metadata)
        ]
        claimed = claim_pods(stateful_set, compile_selector(stateful_set.spec.selector or LabelSelector()), candidates)
        yield from claimed.ownership_changes
        if not claimed.ownership_changes:
            yield from _sync(stateful_set, claimed.owned, names, claims_by_name, stored_revisions, now)

    return isolate_errors(stateful_sets, sync_stateful_set)


def ordinal_of(owner: StatefulSet, pod: Pod) -> int | None:
    """Return the ordinal of a pod of this set; None if its name is not one of the set's."""
    prefix, _, ordinal = pod.metadata.name.rpartition("-")
    return int(ordinal) if prefix == owner.metadata.name and _ORDINAL.fullmatch(ordinal) else None


def _sync(
    owner: StatefulSet,
    pods: tuple[Pod, ...],
    names: frozenset[tuple[str, str]],
    claims: Mapping[tuple[str, str], PersistentVolumeClaim],
    stored_revisions: Sequence[ControllerRevision],
    now: datetime.datetime,
) -> Iterator[Action]:
    used_revisions = {pod.metadata.labels.get(HASH_LABEL, "") for pod in pods} | {owner.status.current_revision}
    history = revision_history(owner, stored_revisions, used_revisions)
    update = history.current
    if update is None:
        yield Update(replace(owner, status=replace(owner.status, collision_count=history.collisions)), owner)
        return
    current = next(
        (revision for revision in history.old if revision.metadata.name == owner.status.current_revision), update
    )
    state = _StatefulSetState(owner, pods, names, claims, current, update, now)
    if owner.metadata.deletion_timestamp is None:
        yield from history.actions
        yield from state.next_steps()
        yield from state.claim_owner_updates()
    if state.status != owner.status:
        yield Update(replace(owner, status=state.status), owner)


@dataclass(frozen=True)
class _StatefulSetState:
    """A StatefulSet with its pods and claims. `names` are (namespace, name) of all pods. Pods below the partition are
    created from `current`, others from `update`, the revision of the newest template.
    """

    owner: StatefulSet
    pods: tuple[Pod, ...]
    names: frozenset[tuple[str, str]]
    claims: Mapping[tuple[str, str], PersistentVolumeClaim]
    current: ControllerRevision
    update: ControllerRevision
    now: datetime.datetime

    @property
    def _start(self) -> int:
        return self.owner.spec.ordinals.start if self.owner.spec.ordinals is not None else 0

    @property
    def _desired_ordinals(self) -> range:
        """Return the ordinals of the desired pods."""
        return range(self._start, self._start + (self.owner.spec.replicas or 0))

    @cached_property
    def _by_ordinal(self) -> Mapping[int, Pod]:
        ordinals = ((ordinal_of(self.owner, pod), pod) for pod in self.pods)
        return {ordinal: pod for ordinal, pod in ordinals if ordinal is not None}

    @property
    def _is_ordered(self) -> bool:
        return self.owner.spec.pod_management_policy != PARALLEL

    @property
    def _partition(self) -> int:
        """Return the ordinal below which pods have the old template."""
        rolling = self.owner.spec.update_strategy.rolling_update
        return self._start + ((rolling.partition or 0) if rolling is not None else 0)

    def _is_ready(self, pod: Pod) -> bool:
        return pod.status.phase == "Running" and ready_since(pod) is not None

    def _is_available(self, pod: Pod) -> bool:
        available = is_available(pod, self.owner.spec.min_ready_seconds, self.now)
        return self._is_ready(pod) and available and not pod.metadata.deletion_timestamp

    # --- next step ----------------------------------------------------------------------------------------------------

    def next_steps(self) -> Iterator[Action]:
        """Yield the next actions: if ordered, the first that is due, otherwise all that are."""
        count = 0
        for ordinal in self._desired_ordinals:
            actions, is_done = self._reconcile_ordinal(ordinal)
            yield from actions
            count += bool(actions)
            if (self._is_ordered and not is_done) or count >= MAX_PODS_PER_PASS:
                return
        for ordinal in sorted(
            (surplus for surplus in self._by_ordinal if surplus not in self._desired_ordinals), reverse=True
        ):
            pod = self._by_ordinal[ordinal]
            lower_ordinals = [lower for lower in self._by_ordinal if lower < ordinal]
            if not pod.metadata.deletion_timestamp and (
                not self._is_ordered or all(map(self._allows_deletion, lower_ordinals))
            ):
                yield from self._delete(pod)
            if self._is_ordered:
                return
        if self.owner.spec.update_strategy.type == ROLLING_UPDATE:
            yield from self._rolling_update()

    def _allows_deletion(self, ordinal: int) -> bool:
        """Return whether a pod with a higher ordinal may be deleted: this one is available, or it is terminated and
        will not be replaced.
        """
        pod = self._by_ordinal[ordinal]
        return self._is_available(pod) or (ordinal not in self._desired_ordinals and pod.status.phase in FINAL_PHASES)

    def _reconcile_ordinal(self, ordinal: int) -> tuple[list[Action], bool]:
        """Return the actions for one ordinal, and whether the next may follow."""
        pod = self._by_ordinal.get(ordinal)
        if pod is None:
            return self._create(ordinal), False
        if pod.metadata.deletion_timestamp is None and pod.status.phase in FINAL_PHASES:
            return (self._replace_failed(pod) if should_replace(pod, self.now) else []), False
        return self._create_claims(ordinal), self._is_available(pod)

    def _rolling_update(self) -> Iterator[Action]:
        """Yield the deletion of the last pod with an older template, if all after it are available."""
        for ordinal in reversed(range(max(self._start, self._partition), self._desired_ordinals.stop)):
            pod = self._by_ordinal.get(ordinal)
            if pod is None or pod.metadata.deletion_timestamp or pod.status.phase in FINAL_PHASES:
                return
            if self._revision(pod) != self.update.metadata.name:
                yield from self._delete(pod)
                return
            if not self._is_available(pod):
                return

    def _replace_failed(self, pod: Pod) -> list[Action]:
        message = f"StatefulSet {self.owner.metadata.namespace}/{self.owner.metadata.name} is recreating failed Pod "
        subject, message = object_reference(self.owner), message + pod.metadata.name
        return [Delete(pod), events.event_about(subject, WARNING, "RecreatingFailedPod", message, CONTROLLER, self.now)]

    def _delete(self, pod: Pod) -> list[Action]:
        return [Delete(pod), events.deleted(self.owner, pod, CONTROLLER, self.now)]

    # --- pods ---------------------------------------------------------------------------------------------------------

    def _name(self, ordinal: int) -> str:
        return f"{self.owner.metadata.name}-{ordinal}"

    def _revision(self, pod: Pod) -> str:
        return pod.metadata.labels.get(HASH_LABEL, "")

    def _create(self, ordinal: int) -> list[Action]:
        """Return the creates of a pod and its missing claims; none while another pod has its name or a claim is being
        deleted.
        """
        name = self._name(ordinal)
        if (self.owner.metadata.namespace, name) in self.names:
            text = f"the pod {name} is not of StatefulSet {self.owner.metadata.name}, which cannot make its own"
            return [Warn(text, about=f"{self.owner.metadata.namespace}/{name}")]
        claims = (self._claim(claim) for _, claim in self._claim_names(ordinal))
        if any(claim is not None and claim.metadata.deletion_timestamp for claim in claims):
            return []
        return [*self._create_claims(ordinal), Create(self._pod(ordinal), CONTROLLER)]

    def _pod(self, ordinal: int) -> Pod:
        is_rolling = self.owner.spec.update_strategy.type == ROLLING_UPDATE
        revision = self.current if is_rolling and ordinal < self._partition else self.update
        template = self.owner.spec.template if revision is self.update else self._old_template
        name = self._name(ordinal)
        labels = {
            **template.metadata.labels,
            HASH_LABEL: revision.metadata.name,
            NAME_LABEL: name,
            ORDINAL_LABEL: str(ordinal),
        }
        spec = with_claims(template.spec, self._claim_names(ordinal))
        spec = replace(spec, hostname=name, subdomain=self.owner.spec.service_name)
        return pod_from_template(replace(template, spec=spec), self.owner, name=name, generate_name="", labels=labels)

    @property
    def _old_template(self) -> PodTemplateSpec:
        return template_of(self.current) or self.owner.spec.template

    # --- claims -------------------------------------------------------------------------------------------------------

    def _claim_names(self, ordinal: int) -> list[tuple[str, str]]:
        """Return (name of the template, name of the claim) of each claim."""
        names = (claim.metadata.name for claim in self.owner.spec.volume_claim_templates)
        return [(name, f"{name}-{self._name(ordinal)}") for name in names]

    def _claim(self, name: str) -> PersistentVolumeClaim | None:
        return self.claims.get((self.owner.metadata.namespace, name))

    def _create_claims(self, ordinal: int) -> list[Action]:
        """Return the creates of the missing claims of an ordinal."""
        creates: list[Action] = []
        for template, (_, name) in zip(self.owner.spec.volume_claim_templates, self._claim_names(ordinal), strict=True):
            if self._claim(name) is None:
                labels = {**template.metadata.labels, **(self.owner.spec.selector or LabelSelector()).match_labels}
                meta = ObjectMeta(
                    name=name,
                    namespace=self.owner.metadata.namespace,
                    labels=labels,
                    annotations=template.metadata.annotations,
                    owner_references=self._claim_owners(ordinal),
                )
                creates.append(Create(replace(template, metadata=meta), owner=self.owner))
        return creates

    def _claim_owners(self, ordinal: int) -> tuple[OwnerReference, ...]:
        """Return the owners with which a claim is deleted: the set, the pod that is scaled down, or none."""
        policy, pod = self.owner.spec.persistent_volume_claim_retention_policy, self._by_ordinal.get(ordinal)
        if ordinal not in self._desired_ordinals and policy.when_scaled == DELETE:
            return (_owner_reference(pod),) if pod is not None else ()
        return (_owner_reference(self.owner),) if policy.when_deleted == DELETE else ()

    def claim_owner_updates(self) -> Iterator[Update]:
        """Yield updates of claims whose owners are not those of `_claim_owners`."""
        uids = {self.owner.metadata.uid, *(pod.metadata.uid for pod in self.pods)}
        for ordinal in self._by_ordinal:
            for _, name in self._claim_names(ordinal):
                claim = self._claim(name)
                if claim is None:
                    continue
                other_owners = (reference for reference in claim.metadata.owner_references if reference.uid not in uids)
                owners = (*other_owners, *self._claim_owners(ordinal))
                if owners != claim.metadata.owner_references:
                    yield Update(replace(claim, metadata=replace(claim.metadata, owner_references=owners)), claim)

    # --- status -------------------------------------------------------------------------------------------------------

    @cached_property
    def status(self) -> StatefulSetStatus:
        """Return the status. If all pods have the newest template, its revision becomes the current one."""
        remaining = [pod for pod in self.pods if not pod.metadata.deletion_timestamp]
        ready = sum(map(self._is_ready, self.pods))
        updated = sum(self._revision(pod) == self.update.metadata.name for pod in remaining)
        is_complete = self.owner.spec.update_strategy.type == ROLLING_UPDATE and updated == len(self.pods) == ready
        current = self.update if is_complete else self.current
        return replace(
            self.owner.status,
            observed_generation=self.owner.metadata.generation,
            replicas=len(self.pods),
            ready_replicas=ready,
            available_replicas=sum(map(self._is_available, self.pods)),
            current_replicas=sum(self._revision(pod) == current.metadata.name for pod in remaining),
            updated_replicas=updated,
            current_revision=current.metadata.name,
            update_revision=self.update.metadata.name,
        )


def _owner_reference(owner: Object) -> OwnerReference:
    return OwnerReference(
        api_version=owner.API_VERSION, kind=owner.KIND, name=owner.metadata.name, uid=owner.metadata.uid
    )


def stateful_sets_await_time(lister: Lister) -> bool:
    """Return whether pods of a StatefulSet are not available yet, or have failed."""
    return any(
        stateful_set.status.available_replicas != (stateful_set.spec.replicas or 0)
        for stateful_set in lister.list(StatefulSet)
    )


def sync_stateful_sets(lister: Lister) -> Iterable[Action]:
    """Reconcile all StatefulSets."""
    if not (stateful_sets := lister.list(StatefulSet)):
        return ()
    claims, stored_revisions = lister.list(PersistentVolumeClaim), lister.list(ControllerRevision)
    return reconcile(stateful_sets, lister.list(Pod), claims, stored_revisions, lister.now)
