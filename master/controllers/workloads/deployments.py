"""Deployments: rollout from one template to the next by ReplicaSets, and status. Pure."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from api.core.events import NORMAL, object_reference
from api.core.pod import FINAL_PHASES, Pod
from api.meta.selectors import LabelSelector, compile_selector
from api.meta.types import ObjectMeta
from master.controllers import events
from master.controllers.actions import Action, Create, Failed, ForceDelete, Update, WriteAction, isolate_errors
from master.controllers.context import Lister
from master.controllers.workloads.pod_control import HASH_LABEL, OwnerIndex, template_hash, without_hash
from master.resources.deployments import (
    RECREATE,
    Deployment,
    DeploymentCondition,
    DeploymentStatus,
    ReplicaSet,
    ReplicaSetSpec,
)
from master.resources.metadata import controller_of, controller_reference, format_time, parse_time, whole_number
from master.resources.pod_template import REPLICA_FAILURE, int_or_percent

CONTROLLER = "deployment-controller"
AVAILABLE, PROGRESSING = "Available", "Progressing"
TIMED_OUT = "ProgressDeadlineExceeded"
REVISION = "deployment.kubernetes.io/revision"
DESIRED_ANNOTATION = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS_ANNOTATION = "deployment.kubernetes.io/max-replicas"
NOT_COPIED = frozenset(
    ("kubectl.kubernetes.io/last-applied-configuration", REVISION, DESIRED_ANNOTATION, MAX_REPLICAS_ANNOTATION)
)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A Deployment and its ReplicaSets: `new` has its template, `old` are the others, oldest first."""

    deployment: Deployment
    new: ReplicaSet | None
    old: tuple[ReplicaSet, ...]

    @property
    def replica_sets(self) -> tuple[ReplicaSet, ...]:
        """Return all ReplicaSets."""
        return (*self.old, self.new) if self.new is not None else self.old

    @property
    def replicas(self) -> int:
        """Return the desired number of pods."""
        return self.deployment.spec.replicas or 0

    @property
    def max_surge(self) -> int:
        """Return how many pods beyond the desired number a rolling update may create."""
        rolling = self.deployment.spec.strategy.rolling_update
        return int_or_percent(rolling.max_surge, self.replicas, up=True) if rolling else 0

    @property
    def max_unavailable(self) -> int:
        """Return how many pods may be missing in a rolling update; without a surge at least one."""
        rolling = self.deployment.spec.strategy.rolling_update
        count = int_or_percent(rolling.max_unavailable, self.replicas, up=False) if rolling else 0
        return min(self.replicas, count or (0 if self.max_surge else 1))


def revision_of(meta: ObjectMeta) -> int:
    """Return the revision of a ReplicaSet or Deployment; 0 if it has none."""
    text = meta.annotations.get(REVISION, "")
    return whole_number(text) or 0


def reconcile(
    deployments: Iterable[Deployment], replica_sets: Sequence[ReplicaSet], pods: Iterable[Pod], now: datetime.datetime
) -> Iterator[WriteAction | Failed]:
    """Yield the writes for these deployments."""
    pods, index = tuple(pods), OwnerIndex(replica_sets)

    def sync_deployment(deployment: Deployment) -> Iterator[WriteAction]:
        owned, adopted = _owned_replica_sets(deployment, index.candidates(deployment))
        yield from adopted
        if adopted:
            return
        rollout = _sorted(deployment, owned)
        actions = [] if deployment.metadata.deletion_timestamp else list(_sync(rollout, replica_sets, pods, now))
        yield from actions
        if not any(isinstance(action, Update) and action.before is deployment for action in actions):
            yield from status_update(rollout, now)

    return isolate_errors(deployments, sync_deployment)


def _owned_replica_sets(
    deployment: Deployment, replica_sets: Iterable[ReplicaSet]
) -> tuple[list[ReplicaSet], list[Update]]:
    label_selector = compile_selector(deployment.spec.selector or LabelSelector())
    owned, adopted = [], []
    for replica_set in replica_sets:
        reference = controller_of(replica_set.metadata)
        if reference is not None and reference.uid == deployment.metadata.uid:
            owned.append(replica_set)
        elif (
            reference is None
            and label_selector.matches(replica_set.metadata.labels)
            and not replica_set.metadata.deletion_timestamp
            and not deployment.metadata.deletion_timestamp
        ):
            owners = (*replica_set.metadata.owner_references, controller_reference(deployment))
            adopted.append(
                Update(
                    replace(replica_set, metadata=replace(replica_set.metadata, owner_references=owners)), replica_set
                )
            )
    return owned, adopted


def _sorted(deployment: Deployment, replica_sets: Iterable[ReplicaSet]) -> Rollout:
    ordered = sorted(
        replica_sets, key=lambda replica_set: (replica_set.metadata.creation_timestamp or "", replica_set.metadata.name)
    )
    new = next(
        (
            replica_set
            for replica_set in ordered
            if without_hash(replica_set.spec.template) == without_hash(deployment.spec.template)
        ),
        None,
    )
    return Rollout(deployment, new, tuple(replica_set for replica_set in ordered if replica_set is not new))


# --- rollout ----------------------------------------------------------------------------------------------------------


def _sync(
    rollout: Rollout, replica_sets: Sequence[ReplicaSet], pods: tuple[Pod, ...], now: datetime.datetime
) -> Iterator[WriteAction]:
    sizes = _desired_sizes(rollout, pods)
    deployment = rollout.deployment
    if rollout.new is None and not deployment.spec.paused and _may_create_new(rollout, pods):
        yield from _create_new_replica_set(rollout, replica_sets, sizes.pop("", 0), now)
    for replica_set in rollout.replica_sets:
        desired = _annotated(replica_set, rollout)
        desired = replace(
            desired, spec=replace(desired.spec, replicas=sizes.get(replica_set.metadata.uid, replica_set.spec.replicas))
        )
        if desired != replica_set:
            generation = replica_set.metadata.generation + (desired.spec != replica_set.spec)
            yield Update(replace(desired, metadata=replace(desired.metadata, generation=generation)), replica_set)
            yield from _with_replicas(
                deployment, replica_set.metadata.name, replica_set.spec.replicas or 0, desired.spec.replicas or 0, now
            )
    yield from _prune_history(rollout)


def _with_replicas(deployment: Deployment, name: str, old: int, new: int, now: datetime.datetime) -> Iterator[Create]:
    if old != new:
        message = f"Scaled {'up' if new > old else 'down'} replica set {name} from {old} to {new}"
        yield events.event_about(object_reference(deployment), NORMAL, "ScalingReplicaSet", message, CONTROLLER, now)


def _may_create_new(rollout: Rollout, pods: Iterable[Pod]) -> bool:
    """Return whether the new ReplicaSet may be created: with Recreate, when no old pod is left."""
    if rollout.deployment.spec.strategy.type != RECREATE:
        return True
    old_uids = {replica_set.metadata.uid for replica_set in rollout.old}
    owners = (controller_of(pod.metadata) for pod in pods if pod.status.phase not in FINAL_PHASES)
    return not any(owner is not None and owner.uid in old_uids for owner in owners)


def _desired_sizes(rollout: Rollout, pods: tuple[Pod, ...]) -> dict[str, int]:
    """Return the size of each ReplicaSet by uid; that of one that is to be created has the empty uid."""
    current = {replica_set.metadata.uid: replica_set.spec.replicas or 0 for replica_set in rollout.replica_sets}
    if rollout.deployment.spec.paused or _is_scaling_event(rollout):
        return current | _scale_proportionally(rollout, current)
    if rollout.deployment.spec.strategy.type == RECREATE:
        return _recreate(rollout, pods)
    return _rolling_update(rollout, current)


def _recreate(rollout: Rollout, pods: tuple[Pod, ...]) -> dict[str, int]:
    sizes = {replica_set.metadata.uid: 0 for replica_set in rollout.old}
    if _may_create_new(rollout, pods):
        sizes[rollout.new.metadata.uid if rollout.new else ""] = rollout.replicas
    return sizes


def _rolling_update(rollout: Rollout, current: Mapping[str, int]) -> dict[str, int]:
    """Return sizes of one step: scale up the new ReplicaSet as far as the surge allows; if it cannot grow, scale down
    the old ones.
    """
    new = rollout.new.metadata.uid if rollout.new else ""
    total, size = sum(current.values()), current.get(new, 0)
    grown = min(rollout.replicas, size + max(0, rollout.replicas + rollout.max_surge - total))
    if grown != size or rollout.new is None:
        return {**current, new: grown}
    return {**current, **_scale_down_old(rollout, dict(current))}


def _scale_down_old(rollout: Rollout, sizes: dict[str, int]) -> dict[str, int]:
    """Return the sizes with smaller old ReplicaSets: first by pods that are not available, then by available pods
    beyond the minimum.
    """
    min_available, new = rollout.replicas - rollout.max_unavailable, rollout.new
    new_missing = 0 if new is None else sizes[new.metadata.uid] - min(sizes[new.metadata.uid], _available_replicas(new))
    surplus = sum(sizes.values()) - min_available - new_missing
    for replica_set in rollout.old:
        unavailable = max(0, sizes[replica_set.metadata.uid] - _available_replicas(replica_set))
        removed = max(0, min(surplus, unavailable))
        sizes[replica_set.metadata.uid] -= removed
        surplus -= removed
    healthy = sum(
        min(sizes[replica_set.metadata.uid], _available_replicas(replica_set)) for replica_set in rollout.replica_sets
    )
    surplus = min(surplus, healthy - min_available)
    for replica_set in rollout.old:
        removed = max(0, min(surplus, sizes[replica_set.metadata.uid]))
        sizes[replica_set.metadata.uid] -= removed
        surplus -= removed
    return sizes


def _available_replicas(replica_set: ReplicaSet) -> int:
    return (
        replica_set.status.available_replicas
        if replica_set.status.observed_generation >= replica_set.metadata.generation
        else 0
    )


# --- proportional scaling ---------------------------------------------------------------------------------------------


def _is_scaling_event(rollout: Rollout) -> bool:
    """Return whether the number of pods has changed since the ReplicaSets were last scaled."""
    desired = str(rollout.replicas)
    active = [replica_set for replica_set in rollout.replica_sets if replica_set.spec.replicas]
    return any(replica_set.metadata.annotations.get(DESIRED_ANNOTATION, desired) != desired for replica_set in active)


def _scale_proportionally(rollout: Rollout, current: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes after each active ReplicaSet took its share of the change. The rounding error goes to the
    largest.
    """
    active = [replica_set for replica_set in rollout.replica_sets if replica_set.spec.replicas] or list(
        rollout.replica_sets[-1:]
    )
    if rollout.replicas == 0 or len(active) <= 1:
        return {replica_set.metadata.uid: rollout.replicas for replica_set in active}
    max_pods = rollout.replicas + rollout.max_surge
    difference = max_pods - sum(current.values())
    newest_first = active[::-1] if difference > 0 else active
    sizes: dict[str, int] = {}
    for replica_set in sorted(newest_first, key=lambda replica_set: -(replica_set.spec.replicas or 0)):
        size = replica_set.spec.replicas or 0
        share, rest = _proportion(replica_set, max_pods, sum(current.values())) - size, difference
        sizes[replica_set.metadata.uid] = size + (min(share, rest) if difference > 0 else max(share, rest))
        difference -= sizes[replica_set.metadata.uid] - size
    largest = next(iter(sizes))
    sizes[largest] = max(0, sizes[largest] + difference)
    return sizes


def _proportion(replica_set: ReplicaSet, max_pods: int, current_total: int) -> int:
    """Return the size of a ReplicaSet in proportion to `max_pods`."""
    text = replica_set.metadata.annotations.get(MAX_REPLICAS_ANNOTATION, "")
    old_max = whole_number(text) or current_total
    return (2 * (replica_set.spec.replicas or 0) * max_pods + old_max) // (2 * old_max)


# --- ReplicaSets ------------------------------------------------------------------------------------------------------


def _create_new_replica_set(
    rollout: Rollout, replica_sets: Iterable[ReplicaSet], size: int, now: datetime.datetime
) -> Iterator[WriteAction]:
    deployment = rollout.deployment
    collisions = deployment.status.collision_count or 0
    digest = template_hash(deployment.spec.template, collisions)
    name = f"{deployment.metadata.name}-{digest}"
    names = {
        replica_set.metadata.name
        for replica_set in replica_sets
        if replica_set.metadata.namespace == deployment.metadata.namespace
    }
    if name in names:
        status = replace(deployment.status, collision_count=collisions + 1)
        yield Update(replace(deployment, status=status), deployment)
        return
    template, label_selector = deployment.spec.template, deployment.spec.selector or LabelSelector()
    labels = {**template.metadata.labels, HASH_LABEL: digest}
    new = ReplicaSet(
        metadata=ObjectMeta(
            name=name,
            namespace=deployment.metadata.namespace,
            labels=labels,
            owner_references=(controller_reference(deployment),),
        ),
        spec=ReplicaSetSpec(
            replicas=size,
            min_ready_seconds=deployment.spec.min_ready_seconds,
            selector=replace(label_selector, match_labels={**label_selector.match_labels, HASH_LABEL: digest}),
            template=replace(template, metadata=replace(template.metadata, labels=labels)),
        ),
    )
    yield Create(_annotated(new, dataclasses.replace(rollout, new=new)))
    yield from _with_replicas(deployment, name, 0, size, now)


def _annotated(replica_set: ReplicaSet, rollout: Rollout) -> ReplicaSet:
    """Return the ReplicaSet with the annotations that `kubectl rollout` reads; the newest also gets those of the
    deployment.
    """
    counts = {
        DESIRED_ANNOTATION: str(rollout.replicas),
        MAX_REPLICAS_ANNOTATION: str(rollout.replicas + rollout.max_surge),
    }
    annotations = {**replica_set.metadata.annotations, **counts}
    min_ready = replica_set.spec.min_ready_seconds
    if replica_set is rollout.new:
        newest = max((revision_of(old.metadata) for old in rollout.old), default=0)
        revision = max(revision_of(replica_set.metadata), newest + 1)
        copied = {key: value for key, value in rollout.deployment.metadata.annotations.items() if key not in NOT_COPIED}
        annotations |= {**copied, REVISION: str(revision)}
        min_ready = rollout.deployment.spec.min_ready_seconds
    metadata = replace(replica_set.metadata, annotations=annotations)
    return replace(replica_set, metadata=metadata, spec=replace(replica_set.spec, min_ready_seconds=min_ready))


def _prune_history(rollout: Rollout) -> Iterator[ForceDelete]:
    """Yield the deletion of empty old ReplicaSets beyond the history limit."""
    limit = rollout.deployment.spec.revision_history_limit
    empty = [
        replica_set for replica_set in rollout.old if not replica_set.spec.replicas and not replica_set.status.replicas
    ]
    if limit is None or rollout.new is None:
        return
    oldest_first = sorted(empty, key=lambda replica_set: revision_of(replica_set.metadata))
    yield from (
        ForceDelete(replica_set)
        for replica_set in oldest_first[: max(0, len(oldest_first) - limit)]
        if not replica_set.metadata.deletion_timestamp
    )


# --- status -----------------------------------------------------------------------------------------------------------


def status_update(rollout: Rollout, now: datetime.datetime) -> Iterator[Update]:
    """Yield the deployment with its status and revision, if either changed."""
    old = rollout.deployment
    status = _with_counts(rollout)
    own_conditions = (_available_condition(rollout, status, now), _progressing_condition(rollout, status, now))
    own_types = {*(condition.type for condition in own_conditions), REPLICA_FAILURE}
    others = (condition for condition in old.status.conditions if condition.type not in own_types)
    status = replace(status, conditions=(*others, *own_conditions, *_failure_condition(rollout, now)))
    annotations = old.metadata.annotations
    if rollout.new is not None and revision_of(rollout.new.metadata):
        annotations = {**annotations, REVISION: rollout.new.metadata.annotations[REVISION]}
    new = replace(old, metadata=replace(old.metadata, annotations=annotations), status=status)
    if new != old:
        yield Update(new, old)


def _with_counts(rollout: Rollout) -> DeploymentStatus:
    total = sum(replica_set.status.replicas for replica_set in rollout.replica_sets)
    available = sum(replica_set.status.available_replicas for replica_set in rollout.replica_sets)
    return replace(
        rollout.deployment.status,
        observed_generation=rollout.deployment.metadata.generation,
        replicas=total,
        updated_replicas=rollout.new.status.replicas if rollout.new else 0,
        ready_replicas=sum(replica_set.status.ready_replicas for replica_set in rollout.replica_sets),
        available_replicas=available,
        unavailable_replicas=max(
            0, sum(replica_set.spec.replicas or 0 for replica_set in rollout.replica_sets) - available
        ),
    )


def _available_condition(rollout: Rollout, status: DeploymentStatus, now: datetime.datetime) -> DeploymentCondition:
    if status.available_replicas >= rollout.replicas - rollout.max_unavailable:
        content = ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    else:
        content = ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    return _new_condition(rollout, AVAILABLE, content, now)


def _progressing_condition(rollout: Rollout, status: DeploymentStatus, now: datetime.datetime) -> DeploymentCondition:
    old, spec = _old_condition(rollout, PROGRESSING), rollout.deployment.spec
    name = f'ReplicaSet "{rollout.new.metadata.name}"' if rollout.new else "Deployment"
    has_progressed = _status_counts(status) != _status_counts(rollout.deployment.status)
    if spec.paused:
        return _new_condition(rollout, PROGRESSING, ("Unknown", "DeploymentPaused", "Deployment is paused"), now)
    if _is_complete(rollout, status):
        content = ("True", "NewReplicaSetAvailable", f"{name} has successfully progressed.")
        return _new_condition(rollout, PROGRESSING, content, now, has_progressed=has_progressed)
    if old is not None and old.reason == TIMED_OUT and not has_progressed:
        return old
    since = parse_time(old.last_update_time) if old is not None else None
    is_late = since is not None and (now - since).total_seconds() >= (spec.progress_deadline_seconds or 0)
    if is_late and old is not None and not has_progressed and old.reason != "NewReplicaSetAvailable":
        return _new_condition(rollout, PROGRESSING, ("False", TIMED_OUT, f"{name} has timed out progressing."), now)
    return _new_condition(
        rollout,
        PROGRESSING,
        ("True", "ReplicaSetUpdated", f"{name} is progressing."),
        now,
        has_progressed=has_progressed,
    )


def _failure_condition(rollout: Rollout, now: datetime.datetime) -> Iterator[DeploymentCondition]:
    """Yield the condition of a ReplicaSet whose pods cannot be created, the newest first."""
    newest = (rollout.new,) if rollout.new else ()
    failures = (
        condition
        for replica_set in (*newest, *rollout.replica_sets)
        for condition in replica_set.status.conditions
        if condition.type == REPLICA_FAILURE
    )
    if (failure := next(failures, None)) is not None:
        yield _new_condition(rollout, REPLICA_FAILURE, (failure.status, failure.reason, failure.message), now)


def _is_complete(rollout: Rollout, status: DeploymentStatus) -> bool:
    return rollout.new is not None and _are_all_available(status, rollout.replicas)


def _are_all_available(status: DeploymentStatus, desired: int) -> bool:
    """Return whether all desired replicas are up to date and available, and there are no others."""
    return status.updated_replicas == status.replicas == status.available_replicas == desired


def _status_counts(status: DeploymentStatus) -> tuple[int, ...]:
    return (status.replicas, status.updated_replicas, status.ready_replicas, status.available_replicas)


def _old_condition(rollout: Rollout, condition_type: str) -> DeploymentCondition | None:
    return next(
        (condition for condition in rollout.deployment.status.conditions if condition.type == condition_type), None
    )


def _new_condition(
    rollout: Rollout,
    condition_type: str,
    content: tuple[str, str, str],
    now: datetime.datetime,
    has_progressed: bool = False,
) -> DeploymentCondition:
    """Return the condition. Its times are the old ones if its content is unchanged."""
    old, (status, reason, message) = _old_condition(rollout, condition_type), content
    is_same = old is not None and (old.status, old.reason, old.message) == content
    if old is not None and is_same and not has_progressed:
        return old
    last_transition = old.last_transition_time if old is not None and old.status == status else None
    return DeploymentCondition(
        type=condition_type,
        status=status,
        reason=reason,
        message=message,
        last_update_time=format_time(now),
        last_transition_time=last_transition or format_time(now),
    )


def deployments_await_time(lister: Lister) -> bool:
    """Return whether a rollout is not complete: pods become available, or its deadline passes."""
    return any(
        deployment.status.observed_generation != deployment.metadata.generation
        or not _are_all_available(deployment.status, deployment.spec.replicas or 0)
        for deployment in lister.list(Deployment)
    )


def sync_deployments(lister: Lister) -> Iterable[Action]:
    """Reconcile all Deployments."""
    deployments = lister.list(Deployment)
    return reconcile(deployments, lister.list(ReplicaSet), lister.list(Pod), lister.now) if deployments else ()
