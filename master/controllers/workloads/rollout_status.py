"""What a deployment tells of its way: numbers, and the conditions that `kubectl rollout status` waits for. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from msgspec.structs import replace

from master.controllers.workloads.rollout import REVISION, Rollout, revision_of
from master.kinds.deployment import DeploymentCondition, DeploymentStatus
from master.kinds.kind import parse_time, show_time
from master.kinds.workload import REPLICA_FAILURE
from master.writing.outcomes import Change

AVAILABLE, PROGRESSING = "Available", "Progressing"
TIMED_OUT = "ProgressDeadlineExceeded"


def told(rollout: Rollout, now: datetime.datetime) -> Iterator[Change]:
    """The deployment with its newest status and the number of its revision, if either is news."""
    old = rollout.deployment
    status = _counted(rollout)
    rows = (_available(rollout, status, now), _progressing(rollout, status, now))
    mine = {*(row.type for row in rows), REPLICA_FAILURE}
    kept = (row for row in old.status.conditions if row.type not in mine)
    status = replace(status, conditions=(*kept, *rows, *_failures(rollout, now)))
    annotations = old.metadata.annotations
    if rollout.new is not None and revision_of(rollout.new.metadata):
        annotations = {**annotations, REVISION: rollout.new.metadata.annotations[REVISION]}
    new = replace(old, metadata=replace(old.metadata, annotations=annotations), status=status)
    if new != old:
        yield Change(new, old)


def _counted(rollout: Rollout) -> DeploymentStatus:
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


def _available(rollout: Rollout, status: DeploymentStatus, now: datetime.datetime) -> DeploymentCondition:
    if status.available_replicas >= rollout.replicas - rollout.unavailable:
        words = ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    else:
        words = ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    return _row(rollout, AVAILABLE, words, now)


def _progressing(rollout: Rollout, status: DeploymentStatus, now: datetime.datetime) -> DeploymentCondition:
    old, spec = _known(rollout, PROGRESSING), rollout.deployment.spec
    name = f'ReplicaSet "{rollout.new.metadata.name}"' if rollout.new else "Deployment"
    moved = _numbers(status) != _numbers(rollout.deployment.status)
    if spec.paused:
        return _row(rollout, PROGRESSING, ("Unknown", "DeploymentPaused", "Deployment is paused"), now)
    if _is_complete(rollout, status):
        done = ("True", "NewReplicaSetAvailable", f"{name} has successfully progressed.")
        return _row(rollout, PROGRESSING, done, now, moved=moved)
    if old is not None and old.reason == TIMED_OUT and not moved:
        return old
    since = parse_time(old.last_update_time) if old is not None else None
    late = since is not None and (now - since).total_seconds() >= (spec.progress_deadline_seconds or 0)
    if late and old is not None and not moved and old.reason != "NewReplicaSetAvailable":
        return _row(rollout, PROGRESSING, ("False", TIMED_OUT, f"{name} has timed out progressing."), now)
    return _row(rollout, PROGRESSING, ("True", "ReplicaSetUpdated", f"{name} is progressing."), now, moved=moved)


def _failures(rollout: Rollout, now: datetime.datetime) -> Iterator[DeploymentCondition]:
    """That of a replica set which does not get its pods, the newest one first."""
    newest = (rollout.new,) if rollout.new else ()
    rows = (row for one in (*newest, *rollout.all) for row in one.status.conditions if row.type == REPLICA_FAILURE)
    if (found := next(rows, None)) is not None:
        yield _row(rollout, REPLICA_FAILURE, (found.status, found.reason, found.message), now)


def _is_complete(rollout: Rollout, status: DeploymentStatus) -> bool:
    wanted = rollout.replicas
    numbers = (status.updated_replicas, status.replicas, status.available_replicas)
    return rollout.new is not None and numbers == (wanted, wanted, wanted)


def _numbers(status: DeploymentStatus) -> tuple[int, ...]:
    return (status.replicas, status.updated_replicas, status.ready_replicas, status.available_replicas)


def _known(rollout: Rollout, kind: str) -> DeploymentCondition | None:
    return next((row for row in rollout.deployment.status.conditions if row.type == kind), None)


def _row(
    rollout: Rollout, kind: str, words: tuple[str, str, str], now: datetime.datetime, moved: bool = False
) -> DeploymentCondition:
    """The condition; its times are the old ones where it says the same as before."""
    old, (status, reason, message) = _known(rollout, kind), words
    same = old is not None and (old.status, old.reason, old.message) == words
    if old is not None and same and not moved:
        return old
    kept = old.last_transition_time if old is not None and old.status == status else None
    return DeploymentCondition(
        type=kind,
        status=status,
        reason=reason,
        message=message,
        last_update_time=show_time(now),
        last_transition_time=kept or show_time(now),
    )
