"""Deployments: rollout from one template to the next by ReplicaSets, and status. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields

from msgspec.structs import replace

from api.core.events import NORMAL, reference
from api.core.pod import FINAL_PHASES, Pod
from api.meta.selectors import LabelSelector, selector
from api.meta.types import ObjectMeta
from master.controllers import events
from master.controllers.actions import Action, Create, ForceDelete, Update, WriteAction
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
from master.resources.metadata import controller_of, controller_reference, format_time, parse_time
from master.resources.pod_template import REPLICA_FAILURE, int_or_percent

REVISION = "deployment.kubernetes.io/revision"


@dataclass(frozen=True, slots=True)
class Rollout:
    """One deployment with its replica sets: `new` has its template, `old` are the others, oldest first."""

    deployment: Deployment
    new: ReplicaSet | None
    old: tuple[ReplicaSet, ...]

    @property
    def all(self) -> tuple[ReplicaSet, ...]:
        """Every replica set."""
        return (*self.old, self.new) if self.new is not None else self.old

    @property
    def replicas(self) -> int:
        """How many pods there are to be in the end."""
        return self.deployment.spec.replicas or 0

    @property
    def surge(self) -> int:
        """How many pods too many there may be on the way."""
        rolling = self.deployment.spec.strategy.rolling_update
        return int_or_percent(rolling.max_surge, self.replicas, up=True) if rolling else 0

    @property
    def unavailable(self) -> int:
        """How many pods may be missing on the way; with no surge at least one, or nothing would ever move."""
        rolling = self.deployment.spec.strategy.rolling_update
        part = int_or_percent(rolling.max_unavailable, self.replicas, up=False) if rolling else 0
        return min(self.replicas, part or (0 if self.surge else 1))


def revision_of(meta: ObjectMeta) -> int:
    """The number of a revision, of a replica set or of a deployment; 0 if there is none."""
    text = meta.annotations.get(REVISION, "")
    return int(text) if text.isdecimal() else 0


CONTROLLER = "deployment-controller"
DESIRED_ANNOTATION = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS_ANNOTATION = "deployment.kubernetes.io/max-replicas"
NOT_COPIED = frozenset(
    ("kubectl.kubernetes.io/last-applied-configuration", REVISION, DESIRED_ANNOTATION, MAX_REPLICAS_ANNOTATION)
)


def reconcile(
    deployments: Iterable[Deployment], sets: Sequence[ReplicaSet], pods: Iterable[Pod], now: datetime.datetime
) -> Iterator[WriteAction]:
    """Everything that is to be written for these deployments."""
    pods, kin = tuple(pods), OwnerIndex(sets)
    for deployment in deployments:
        mine, adopted = _owned_replica_sets(deployment, kin.near(deployment))
        yield from adopted
        if adopted:
            continue
        rollout = _sorted(deployment, mine)
        steps = [] if deployment.metadata.deletion_timestamp else list(_sync(rollout, sets, pods, now))
        yield from steps
        if not any(isinstance(step, Update) and step.before is deployment for step in steps):
            yield from status_update(rollout, now)


def _owned_replica_sets(deployment: Deployment, sets: Iterable[ReplicaSet]) -> tuple[list[ReplicaSet], list[Update]]:
    wanted = selector(deployment.spec.selector or LabelSelector())
    mine, adopted = [], []
    for one in sets:
        reference = controller_of(one.metadata)
        if reference is not None and reference.uid == deployment.metadata.uid:
            mine.append(one)
        elif (
            reference is None
            and wanted.matches(one.metadata.labels)
            and not one.metadata.deletion_timestamp
            and not deployment.metadata.deletion_timestamp
        ):
            owners = (*one.metadata.owner_references, controller_reference(deployment))
            adopted.append(Update(replace(one, metadata=replace(one.metadata, owner_references=owners)), one))
    return mine, adopted


def _sorted(deployment: Deployment, sets: Iterable[ReplicaSet]) -> Rollout:
    ordered = sorted(sets, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name))
    new = next(
        (one for one in ordered if without_hash(one.spec.template) == without_hash(deployment.spec.template)), None
    )
    return Rollout(deployment, new, tuple(one for one in ordered if one is not new))


# --- one step ---------------------------------------------------------------------------------------------------------


def _sync(
    rollout: Rollout, sets: Sequence[ReplicaSet], pods: tuple[Pod, ...], now: datetime.datetime
) -> Iterator[WriteAction]:
    sizes = _desired_sizes(rollout, pods)
    deployment = rollout.deployment
    if rollout.new is None and not deployment.spec.paused and _may_create_new(rollout, pods):
        yield from _create_new_replica_set(rollout, sets, sizes.pop("", 0), now)
    for one in rollout.all:
        wanted = _annotated(one, rollout)
        wanted = replace(wanted, spec=replace(wanted.spec, replicas=sizes.get(one.metadata.uid, one.spec.replicas)))
        if wanted != one:
            generation = one.metadata.generation + (wanted.spec != one.spec)
            yield Update(replace(wanted, metadata=replace(wanted.metadata, generation=generation)), one)
            yield from _with_replicas(
                deployment, one.metadata.name, one.spec.replicas or 0, wanted.spec.replicas or 0, now
            )
    yield from _prune_history(rollout)


def _with_replicas(
    deployment: Deployment, name: str, before: int, after: int, now: datetime.datetime
) -> Iterator[Create]:
    if before != after:
        words = f"Scaled {'up' if after > before else 'down'} replica set {name} from {before} to {after}"
        yield events.event_about(reference(deployment), NORMAL, "ScalingReplicaSet", words, CONTROLLER, now)


def _may_create_new(rollout: Rollout, pods: Iterable[Pod]) -> bool:
    """With Recreate no pod of the old may be left."""
    if rollout.deployment.spec.strategy.type != RECREATE:
        return True
    old = {one.metadata.uid for one in rollout.old}
    owners = (controller_of(pod.metadata) for pod in pods if pod.status.phase not in FINAL_PHASES)
    return not any(row is not None and row.uid in old for row in owners)


def _desired_sizes(rollout: Rollout, pods: tuple[Pod, ...]) -> dict[str, int]:
    """The size of each replica set, by uid; that of one that is yet to be made has the empty uid."""
    now = {one.metadata.uid: one.spec.replicas or 0 for one in rollout.all}
    if rollout.deployment.spec.paused or _is_scaling_event(rollout):
        return now | _scale_proportionally(rollout, now)
    if rollout.deployment.spec.strategy.type == RECREATE:
        return _recreate(rollout, pods)
    return _rolling_update(rollout, now)


def _recreate(rollout: Rollout, pods: tuple[Pod, ...]) -> dict[str, int]:
    sizes = {one.metadata.uid: 0 for one in rollout.old}
    if _may_create_new(rollout, pods):
        sizes[rollout.new.metadata.uid if rollout.new else ""] = rollout.replicas
    return sizes


def _rolling_update(rollout: Rollout, now: Mapping[str, int]) -> dict[str, int]:
    """Up with the new as far as the surge allows; if it cannot grow, down with the old as far as can be spared."""
    new = rollout.new.metadata.uid if rollout.new else ""
    total, size = sum(now.values()), now.get(new, 0)
    grown = min(rollout.replicas, size + max(0, rollout.replicas + rollout.surge - total))
    if grown != size or rollout.new is None:
        return {**now, new: grown}
    return {**now, **_scale_down_old(rollout, dict(now))}


def _scale_down_old(rollout: Rollout, sizes: dict[str, int]) -> dict[str, int]:
    """The old ones, smaller: first by pods that are not available anyway, then by as many as can be spared."""
    least, new = rollout.replicas - rollout.unavailable, rollout.new
    new_missing = 0 if new is None else sizes[new.metadata.uid] - min(sizes[new.metadata.uid], _available_replicas(new))
    spare = sum(sizes.values()) - least - new_missing
    for one in rollout.old:
        sick = max(0, sizes[one.metadata.uid] - _available_replicas(one))
        gone = max(0, min(spare, sick))
        sizes[one.metadata.uid] -= gone
        spare -= gone
    healthy = sum(min(sizes[one.metadata.uid], _available_replicas(one)) for one in rollout.all)
    spare = min(spare, healthy - least)
    for one in rollout.old:
        gone = max(0, min(spare, sizes[one.metadata.uid]))
        sizes[one.metadata.uid] -= gone
        spare -= gone
    return sizes


def _available_replicas(one: ReplicaSet) -> int:
    return one.status.available_replicas if one.status.observed_generation >= one.metadata.generation else 0


# --- another number on the way ----------------------------------------------------------------------------------------


def _is_scaling_event(rollout: Rollout) -> bool:
    """Whether the number of pods has changed since the replica sets were last sized."""
    wanted = str(rollout.replicas)
    sized = [one for one in rollout.all if one.spec.replicas]
    return any(one.metadata.annotations.get(DESIRED_ANNOTATION, wanted) != wanted for one in sized)


def _scale_proportionally(rollout: Rollout, now: Mapping[str, int]) -> dict[str, int]:
    """Every replica set that has pods takes its part of the change; what rounding leaves goes to the largest."""
    sized = [one for one in rollout.all if one.spec.replicas] or list(rollout.all[-1:])
    if rollout.replicas == 0 or len(sized) <= 1:
        return {one.metadata.uid: rollout.replicas for one in sized}
    most = rollout.replicas + rollout.surge
    change = most - sum(now.values())
    newest_first = sized[::-1] if change > 0 else sized
    sizes: dict[str, int] = {}
    for one in sorted(newest_first, key=lambda one: -(one.spec.replicas or 0)):
        size = one.spec.replicas or 0
        part, left = _proportion(one, most, sum(now.values())) - size, change
        sizes[one.metadata.uid] = size + (min(part, left) if change > 0 else max(part, left))
        change -= sizes[one.metadata.uid] - size
    largest = next(iter(sizes))
    sizes[largest] = max(0, sizes[largest] + change)
    return sizes


def _proportion(one: ReplicaSet, most: int, total: int) -> int:
    """How large a replica set is among `most` pods that was as large as it is among those it was made for."""
    text = one.metadata.annotations.get(MAX_REPLICAS_ANNOTATION, "")
    before = int(text) if text.isdecimal() and int(text) else total
    return (2 * (one.spec.replicas or 0) * most + before) // (2 * before)


# --- replica sets come and go -----------------------------------------------------------------------------------------


def _create_new_replica_set(
    rollout: Rollout, sets: Iterable[ReplicaSet], size: int, now: datetime.datetime
) -> Iterator[WriteAction]:
    deployment = rollout.deployment
    collisions = deployment.status.collision_count or 0
    digest = template_hash(deployment.spec.template, collisions)
    name = f"{deployment.metadata.name}-{digest}"
    taken = {one.metadata.name for one in sets if one.metadata.namespace == deployment.metadata.namespace}
    if name in taken:
        status = replace(deployment.status, collision_count=collisions + 1)
        yield Update(replace(deployment, status=status), deployment)
        return
    template, wish = deployment.spec.template, deployment.spec.selector or LabelSelector()
    labels = {**template.metadata.labels, HASH_LABEL: digest}
    made = ReplicaSet(
        metadata=ObjectMeta(
            name=name,
            namespace=deployment.metadata.namespace,
            labels=labels,
            owner_references=(controller_reference(deployment),),
        ),
        spec=ReplicaSetSpec(
            replicas=size,
            min_ready_seconds=deployment.spec.min_ready_seconds,
            selector=replace(wish, match_labels={**wish.match_labels, HASH_LABEL: digest}),
            template=replace(template, metadata=replace(template.metadata, labels=labels)),
        ),
    )
    yield Create(_annotated(made, replace_fields(rollout, new=made)))
    yield from _with_replicas(deployment, name, 0, size, now)


def _annotated(one: ReplicaSet, rollout: Rollout) -> ReplicaSet:
    """With the numbers that `kubectl rollout` reads; of the newest also what the deployment is annotated with."""
    numbers = {
        DESIRED_ANNOTATION: str(rollout.replicas),
        MAX_REPLICAS_ANNOTATION: str(rollout.replicas + rollout.surge),
    }
    annotations = {**one.metadata.annotations, **numbers}
    min_ready = one.spec.min_ready_seconds
    if one is rollout.new:
        newest = max((revision_of(old.metadata) for old in rollout.old), default=0)
        revision = max(revision_of(one.metadata), newest + 1)
        copied = {k: v for k, v in rollout.deployment.metadata.annotations.items() if k not in NOT_COPIED}
        annotations |= {**copied, REVISION: str(revision)}
        min_ready = rollout.deployment.spec.min_ready_seconds
    metadata = replace(one.metadata, annotations=annotations)
    return replace(one, metadata=metadata, spec=replace(one.spec, min_ready_seconds=min_ready))


def _prune_history(rollout: Rollout) -> Iterator[ForceDelete]:
    """Of the old ones that are empty, as many stay as the history is to have."""
    limit = rollout.deployment.spec.revision_history_limit
    empty = [one for one in rollout.old if not one.spec.replicas and not one.status.replicas]
    if limit is None or rollout.new is None:
        return
    ordered = sorted(empty, key=lambda one: revision_of(one.metadata))
    yield from (
        ForceDelete(one) for one in ordered[: max(0, len(ordered) - limit)] if not one.metadata.deletion_timestamp
    )


AVAILABLE, PROGRESSING = "Available", "Progressing"
TIMED_OUT = "ProgressDeadlineExceeded"


def status_update(rollout: Rollout, now: datetime.datetime) -> Iterator[Update]:
    """The deployment with its newest status and the number of its revision, if either is news."""
    old = rollout.deployment
    status = _with_counts(rollout)
    rows = (_available_condition(rollout, status, now), _progressing_condition(rollout, status, now))
    mine = {*(row.type for row in rows), REPLICA_FAILURE}
    kept = (row for row in old.status.conditions if row.type not in mine)
    status = replace(status, conditions=(*kept, *rows, *_failure_condition(rollout, now)))
    annotations = old.metadata.annotations
    if rollout.new is not None and revision_of(rollout.new.metadata):
        annotations = {**annotations, REVISION: rollout.new.metadata.annotations[REVISION]}
    new = replace(old, metadata=replace(old.metadata, annotations=annotations), status=status)
    if new != old:
        yield Update(new, old)


def _with_counts(rollout: Rollout) -> DeploymentStatus:
    total = sum(one.status.replicas for one in rollout.all)
    available = sum(one.status.available_replicas for one in rollout.all)
    return replace(
        rollout.deployment.status,
        observed_generation=rollout.deployment.metadata.generation,
        replicas=total,
        updated_replicas=rollout.new.status.replicas if rollout.new else 0,
        ready_replicas=sum(one.status.ready_replicas for one in rollout.all),
        available_replicas=available,
        unavailable_replicas=max(0, sum(one.spec.replicas or 0 for one in rollout.all) - available),
    )


def _available_condition(rollout: Rollout, status: DeploymentStatus, now: datetime.datetime) -> DeploymentCondition:
    if status.available_replicas >= rollout.replicas - rollout.unavailable:
        words = ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    else:
        words = ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    return _new_condition(rollout, AVAILABLE, words, now)


def _progressing_condition(rollout: Rollout, status: DeploymentStatus, now: datetime.datetime) -> DeploymentCondition:
    old, spec = _old_condition(rollout, PROGRESSING), rollout.deployment.spec
    name = f'ReplicaSet "{rollout.new.metadata.name}"' if rollout.new else "Deployment"
    moved = _status_counts(status) != _status_counts(rollout.deployment.status)
    if spec.paused:
        return _new_condition(rollout, PROGRESSING, ("Unknown", "DeploymentPaused", "Deployment is paused"), now)
    if _is_complete(rollout, status):
        done = ("True", "NewReplicaSetAvailable", f"{name} has successfully progressed.")
        return _new_condition(rollout, PROGRESSING, done, now, moved=moved)
    if old is not None and old.reason == TIMED_OUT and not moved:
        return old
    since = parse_time(old.last_update_time) if old is not None else None
    late = since is not None and (now - since).total_seconds() >= (spec.progress_deadline_seconds or 0)
    if late and old is not None and not moved and old.reason != "NewReplicaSetAvailable":
        return _new_condition(rollout, PROGRESSING, ("False", TIMED_OUT, f"{name} has timed out progressing."), now)
    return _new_condition(
        rollout, PROGRESSING, ("True", "ReplicaSetUpdated", f"{name} is progressing."), now, moved=moved
    )


def _failure_condition(rollout: Rollout, now: datetime.datetime) -> Iterator[DeploymentCondition]:
    """That of a replica set which does not get its pods, the newest one first."""
    newest = (rollout.new,) if rollout.new else ()
    rows = (row for one in (*newest, *rollout.all) for row in one.status.conditions if row.type == REPLICA_FAILURE)
    if (found := next(rows, None)) is not None:
        yield _new_condition(rollout, REPLICA_FAILURE, (found.status, found.reason, found.message), now)


def _is_complete(rollout: Rollout, status: DeploymentStatus) -> bool:
    wanted = rollout.replicas
    numbers = (status.updated_replicas, status.replicas, status.available_replicas)
    return rollout.new is not None and numbers == (wanted, wanted, wanted)


def _status_counts(status: DeploymentStatus) -> tuple[int, ...]:
    return (status.replicas, status.updated_replicas, status.ready_replicas, status.available_replicas)


def _old_condition(rollout: Rollout, kind: str) -> DeploymentCondition | None:
    return next((row for row in rollout.deployment.status.conditions if row.type == kind), None)


def _new_condition(
    rollout: Rollout, kind: str, words: tuple[str, str, str], now: datetime.datetime, moved: bool = False
) -> DeploymentCondition:
    """The condition; its times are the old ones where it says the same as before."""
    old, (status, reason, message) = _old_condition(rollout, kind), words
    same = old is not None and (old.status, old.reason, old.message) == words
    if old is not None and same and not moved:
        return old
    kept = old.last_transition_time if old is not None and old.status == status else None
    return DeploymentCondition(
        type=kind,
        status=status,
        reason=reason,
        message=message,
        last_update_time=format_time(now),
        last_transition_time=kept or format_time(now),
    )


def sync_deployments(lister: Lister) -> Iterable[Action]:
    """Reconcile all Deployments."""
    found = lister.list("Deployment")
    return reconcile(found, lister.list("ReplicaSet"), lister.list("Pod"), lister.now) if found else ()
