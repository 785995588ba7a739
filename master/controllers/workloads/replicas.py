"""Replica sets and replication controllers: as many pods as wished, made from a template. Pure.

The snapshot is the store itself, so a pod that was made a moment ago is already in it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from api.core.pod import Pod
from api.meta.selectors import LabelSelector, Selector, selector
from api.meta.types import Condition
from master.controllers import happenings
from master.controllers.dependents import controller_of
from master.controllers.workloads.own_pods import (
    MOST_AT_ONCE,
    Kin,
    census,
    dispensable,
    is_available,
    made_from,
    ready_since,
)
from master.kinds.kind import show_time
from master.kinds.replica_set import ReplicaSet
from master.kinds.replication_controller import ReplicationController
from master.kinds.workload import REPLICA_FAILURE
from master.writing.outcomes import Change, End, Make, Write

Owner = ReplicaSet | ReplicationController


def selector_of(owner: Owner) -> Selector:
    """Which pods an owner takes for its own."""
    wish = owner.spec.selector
    return selector(wish if isinstance(wish, LabelSelector) else LabelSelector(match_labels=wish or {}))


def passes(
    owners: Iterable[Owner], pods: Iterable[Pod], now: datetime.datetime, refused: Mapping[str, str]
) -> Iterator[Write]:
    """Everything that is to be written for these owners. `refused`: by uid, why an owner does not get its pods."""
    kin = Kin(pods)
    taken: set[str] = set()
    for owner in owners:
        near = [pod for pod in kin.near(owner) if pod.metadata.uid not in taken]
        found = census(owner, selector_of(owner), near)
        taken |= {change.item.metadata.uid for change in found.handed}
        yield from found.handed
        if owner.metadata.deletion_timestamp is None:
            yield from _balanced(owner, found.active, now)
        yield from _told(owner, found.active, now, refused.get(owner.metadata.uid, ""))


# --- as many as wished ------------------------------------------------------------------------------------------------


def _balanced(owner: Owner, active: tuple[Pod, ...], now: datetime.datetime) -> Iterator[Make | End]:
    """A pod that was adopted in this pass is not ended in it: its newest state is not in the store yet."""
    missing = (owner.spec.replicas or 0) - len(active)
    template = owner.spec.template
    if missing > 0 and template is not None:
        yield from (Make(made_from(template, owner), by=_name_of(owner)) for _ in range(min(missing, MOST_AT_ONCE)))
    elif missing < 0:
        known = [pod for pod in active if controller_of(pod.metadata) is not None]
        for pod in dispensable(known)[: min(-missing, MOST_AT_ONCE)]:
            yield End(pod)
            yield happenings.ended(owner, pod, _name_of(owner), now)


def _name_of(owner: Owner) -> str:
    """As events name the controller that acts for it."""
    return "replicaset-controller" if isinstance(owner, ReplicaSet) else "replication-controller"


# --- what it tells ----------------------------------------------------------------------------------------------------


def _told(owner: Owner, active: tuple[Pod, ...], now: datetime.datetime, refused: str) -> Iterator[Change]:
    template = owner.spec.template
    labels = (template.metadata.labels if template else {}).items()
    status = replace(
        owner.status,
        replicas=len(active),
        fully_labeled_replicas=sum(labels <= pod.metadata.labels.items() for pod in active),
        ready_replicas=sum(ready_since(pod) is not None for pod in active),
        available_replicas=sum(is_available(pod, owner.spec.min_ready_seconds, now) for pod in active),
        observed_generation=owner.metadata.generation,
        conditions=tuple(_conditions(owner, now, refused)),
    )
    if status != owner.status:
        yield Change(replace(owner, status=status), owner)


def _conditions(owner: Owner, now: datetime.datetime, refused: str) -> Iterator[Condition]:
    old = next((row for row in owner.status.conditions if row.type == REPLICA_FAILURE), None)
    yield from (row for row in owner.status.conditions if row is not old)
    if refused and old is not None and old.message == refused:
        yield old
    elif refused:
        since = old.last_transition_time if old is not None else show_time(now)
        row = Condition(type=REPLICA_FAILURE, status="True", reason="FailedCreate", message=refused)
        yield replace(row, last_transition_time=since)
