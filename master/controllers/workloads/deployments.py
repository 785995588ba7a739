"""Deployments: which replica sets there are to be, and how large, on the way from one template to the next. Pure.

One pass takes the next step and no more; the replica sets' statuses, which change as pods become available, bring the
next one. As in Kubernetes: the number of pods stays between `replicas - maxUnavailable` and `replicas + maxSurge`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as replace_fields

from msgspec.structs import replace

from api.core.events import NORMAL, reference
from api.core.pod import FINAL_PHASES, Pod
from api.meta.selectors import LabelSelector, selector
from api.meta.types import ObjectMeta
from master.controllers import happenings
from master.controllers.dependents import controller_of, reference_to
from master.controllers.workloads.own_pods import Kin
from master.controllers.workloads.rollout import REVISION, Rollout, revision_of
from master.controllers.workloads.rollout_status import told
from master.controllers.workloads.template_hash import HASH_LABEL, bare, template_hash
from master.kinds.deployment import RECREATE, Deployment
from master.kinds.replica_set import ReplicaSet, ReplicaSetSpec
from master.writing.outcomes import Change, Drop, Make, Write

CONTROLLER = "deployment-controller"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MOST = "deployment.kubernetes.io/max-replicas"
NOT_COPIED = frozenset(("kubectl.kubernetes.io/last-applied-configuration", REVISION, DESIRED, MOST))


def passes(
    deployments: Iterable[Deployment], sets: Sequence[ReplicaSet], pods: Iterable[Pod], now: datetime.datetime
) -> Iterator[Write]:
    """Everything that is to be written for these deployments."""
    pods, kin = tuple(pods), Kin(sets)
    for deployment in deployments:
        mine, adopted = _mine(deployment, kin.near(deployment))
        yield from adopted
        if adopted:
            continue
        rollout = _sorted(deployment, mine)
        steps = [] if deployment.metadata.deletion_timestamp else list(_step(rollout, sets, pods, now))
        yield from steps
        if not any(isinstance(step, Change) and step.before is deployment for step in steps):
            yield from told(rollout, now)


def _mine(deployment: Deployment, sets: Iterable[ReplicaSet]) -> tuple[list[ReplicaSet], list[Change]]:
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
            owners = (*one.metadata.owner_references, reference_to(deployment))
            adopted.append(Change(replace(one, metadata=replace(one.metadata, owner_references=owners)), one))
    return mine, adopted


def _sorted(deployment: Deployment, sets: Iterable[ReplicaSet]) -> Rollout:
    ordered = sorted(sets, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name))
    new = next((one for one in ordered if bare(one.spec.template) == bare(deployment.spec.template)), None)
    return Rollout(deployment, new, tuple(one for one in ordered if one is not new))


# --- one step ---------------------------------------------------------------------------------------------------------


def _step(
    rollout: Rollout, sets: Sequence[ReplicaSet], pods: tuple[Pod, ...], now: datetime.datetime
) -> Iterator[Write]:
    sizes = _sizes(rollout, pods)
    deployment = rollout.deployment
    if rollout.new is None and not deployment.spec.paused and _may_begin(rollout, pods):
        yield from _begun(rollout, sets, sizes.pop("", 0), now)
    for one in rollout.all:
        wanted = _annotated(one, rollout)
        wanted = replace(wanted, spec=replace(wanted.spec, replicas=sizes.get(one.metadata.uid, one.spec.replicas)))
        if wanted != one:
            generation = one.metadata.generation + (wanted.spec != one.spec)
            yield Change(replace(wanted, metadata=replace(wanted.metadata, generation=generation)), one)
            yield from _scaled(deployment, one.metadata.name, one.spec.replicas or 0, wanted.spec.replicas or 0, now)
    yield from _forgotten(rollout)


def _scaled(deployment: Deployment, name: str, before: int, after: int, now: datetime.datetime) -> Iterator[Make]:
    if before != after:
        words = f"Scaled {'up' if after > before else 'down'} replica set {name} from {before} to {after}"
        yield happenings.told(reference(deployment), NORMAL, "ScalingReplicaSet", words, CONTROLLER, now)


def _may_begin(rollout: Rollout, pods: Iterable[Pod]) -> bool:
    """With Recreate no pod of the old may be left."""
    if rollout.deployment.spec.strategy.type != RECREATE:
        return True
    old = {one.metadata.uid for one in rollout.old}
    owners = (controller_of(pod.metadata) for pod in pods if pod.status.phase not in FINAL_PHASES)
    return not any(row is not None and row.uid in old for row in owners)


def _sizes(rollout: Rollout, pods: tuple[Pod, ...]) -> dict[str, int]:
    """The size of each replica set, by uid; that of one that is yet to be made has the empty uid."""
    now = {one.metadata.uid: one.spec.replicas or 0 for one in rollout.all}
    if rollout.deployment.spec.paused or _was_scaled(rollout):
        return now | _in_proportion(rollout, now)
    if rollout.deployment.spec.strategy.type == RECREATE:
        return _recreated(rollout, pods)
    return _rolled(rollout, now)


def _recreated(rollout: Rollout, pods: tuple[Pod, ...]) -> dict[str, int]:
    sizes = {one.metadata.uid: 0 for one in rollout.old}
    if _may_begin(rollout, pods):
        sizes[rollout.new.metadata.uid if rollout.new else ""] = rollout.replicas
    return sizes


def _rolled(rollout: Rollout, now: Mapping[str, int]) -> dict[str, int]:
    """Up with the new as far as the surge allows; if it cannot grow, down with the old as far as can be spared."""
    new = rollout.new.metadata.uid if rollout.new else ""
    total, size = sum(now.values()), now.get(new, 0)
    grown = min(rollout.replicas, size + max(0, rollout.replicas + rollout.surge - total))
    if grown != size or rollout.new is None:
        return {**now, new: grown}
    return {**now, **_shrunk(rollout, dict(now))}


def _shrunk(rollout: Rollout, sizes: dict[str, int]) -> dict[str, int]:
    """The old ones, smaller: first by pods that are not available anyway, then by as many as can be spared."""
    least, new = rollout.replicas - rollout.unavailable, rollout.new
    new_missing = 0 if new is None else sizes[new.metadata.uid] - min(sizes[new.metadata.uid], _available(new))
    spare = sum(sizes.values()) - least - new_missing
    for one in rollout.old:
        sick = max(0, sizes[one.metadata.uid] - _available(one))
        gone = max(0, min(spare, sick))
        sizes[one.metadata.uid] -= gone
        spare -= gone
    healthy = sum(min(sizes[one.metadata.uid], _available(one)) for one in rollout.all)
    spare = min(spare, healthy - least)
    for one in rollout.old:
        gone = max(0, min(spare, sizes[one.metadata.uid]))
        sizes[one.metadata.uid] -= gone
        spare -= gone
    return sizes


def _available(one: ReplicaSet) -> int:
    return one.status.available_replicas if one.status.observed_generation >= one.metadata.generation else 0


# --- another number on the way ----------------------------------------------------------------------------------------


def _was_scaled(rollout: Rollout) -> bool:
    """Whether the number of pods has changed since the replica sets were last sized."""
    wanted = str(rollout.replicas)
    sized = [one for one in rollout.all if one.spec.replicas]
    return any(one.metadata.annotations.get(DESIRED, wanted) != wanted for one in sized)


def _in_proportion(rollout: Rollout, now: Mapping[str, int]) -> dict[str, int]:
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
        part, left = _part(one, most, sum(now.values())) - size, change
        sizes[one.metadata.uid] = size + (min(part, left) if change > 0 else max(part, left))
        change -= sizes[one.metadata.uid] - size
    largest = next(iter(sizes))
    sizes[largest] = max(0, sizes[largest] + change)
    return sizes


def _part(one: ReplicaSet, most: int, total: int) -> int:
    """How large a replica set is among `most` pods that was as large as it is among those it was made for."""
    text = one.metadata.annotations.get(MOST, "")
    before = int(text) if text.isdecimal() and int(text) else total
    return (2 * (one.spec.replicas or 0) * most + before) // (2 * before)


# --- replica sets come and go -----------------------------------------------------------------------------------------


def _begun(rollout: Rollout, sets: Iterable[ReplicaSet], size: int, now: datetime.datetime) -> Iterator[Write]:
    deployment = rollout.deployment
    collisions = deployment.status.collision_count or 0
    digest = template_hash(deployment.spec.template, collisions)
    name = f"{deployment.metadata.name}-{digest}"
    taken = {one.metadata.name for one in sets if one.metadata.namespace == deployment.metadata.namespace}
    if name in taken:
        status = replace(deployment.status, collision_count=collisions + 1)
        yield Change(replace(deployment, status=status), deployment)
        return
    template, wish = deployment.spec.template, deployment.spec.selector or LabelSelector()
    labels = {**template.metadata.labels, HASH_LABEL: digest}
    made = ReplicaSet(
        metadata=ObjectMeta(
            name=name,
            namespace=deployment.metadata.namespace,
            labels=labels,
            owner_references=(reference_to(deployment),),
        ),
        spec=ReplicaSetSpec(
            replicas=size,
            min_ready_seconds=deployment.spec.min_ready_seconds,
            selector=replace(wish, match_labels={**wish.match_labels, HASH_LABEL: digest}),
            template=replace(template, metadata=replace(template.metadata, labels=labels)),
        ),
    )
    yield Make(_annotated(made, replace_fields(rollout, new=made)))
    yield from _scaled(deployment, name, 0, size, now)


def _annotated(one: ReplicaSet, rollout: Rollout) -> ReplicaSet:
    """With the numbers that `kubectl rollout` reads; of the newest also what the deployment is annotated with."""
    numbers = {DESIRED: str(rollout.replicas), MOST: str(rollout.replicas + rollout.surge)}
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


def _forgotten(rollout: Rollout) -> Iterator[Drop]:
    """Of the old ones that are empty, as many stay as the history is to have."""
    limit = rollout.deployment.spec.revision_history_limit
    empty = [one for one in rollout.old if not one.spec.replicas and not one.status.replicas]
    if limit is None or rollout.new is None:
        return
    ordered = sorted(empty, key=lambda one: revision_of(one.metadata))
    yield from (Drop(one) for one in ordered[: max(0, len(ordered) - limit)] if not one.metadata.deletion_timestamp)
