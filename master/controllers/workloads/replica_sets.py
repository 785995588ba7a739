"""ReplicaSets and ReplicationControllers: the desired number of pods of a template. Pure.

The snapshot is the newest state, so it contains pods created a moment ago.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from api.core.pod import Pod
from api.meta.selectors import LabelSelector, Selector, selector
from api.meta.types import Condition
from master.controllers import events
from master.controllers.actions import Action, Create, Delete, Update, WriteAction
from master.controllers.context import Lister
from master.controllers.workloads.pod_control import (
    MAX_PODS_PER_PASS,
    OwnerIndex,
    claim_pods,
    deletion_order,
    is_available,
    pod_from_template,
    ready_since,
)
from master.resources.deployments import ReplicaSet, ReplicationController
from master.resources.metadata import controller_of, format_time
from master.resources.pod_template import REPLICA_FAILURE

Owner = ReplicaSet | ReplicationController


def selector_of(owner: Owner) -> Selector:
    """Which pods an owner takes for its own."""
    wish = owner.spec.selector
    return selector(wish if isinstance(wish, LabelSelector) else LabelSelector(match_labels=wish or {}))


def reconcile(
    owners: Iterable[Owner], pods: Iterable[Pod], now: datetime.datetime, refused: Mapping[str, str]
) -> Iterator[WriteAction]:
    """Everything that is to be written for these owners. `refused`: by uid, why an owner does not get its pods."""
    kin = OwnerIndex(pods)
    taken: set[str] = set()
    for owner in owners:
        near = [pod for pod in kin.near(owner) if pod.metadata.uid not in taken]
        found = claim_pods(owner, selector_of(owner), near)
        taken |= {change.item.metadata.uid for change in found.handed}
        yield from found.handed
        if owner.metadata.deletion_timestamp is None:
            yield from _scale(owner, found.active, now)
        yield from _update_status(owner, found.active, now, refused.get(owner.metadata.uid, ""))


# --- as many as wished ------------------------------------------------------------------------------------------------


def _scale(owner: Owner, active: tuple[Pod, ...], now: datetime.datetime) -> Iterator[Create | Delete]:
    """A pod that was adopted in this pass is not ended in it: its newest state is not in the store yet."""
    missing = (owner.spec.replicas or 0) - len(active)
    template = owner.spec.template
    if missing > 0 and template is not None:
        yield from (
            Create(pod_from_template(template, owner), by=_controller_name(owner))
            for _ in range(min(missing, MAX_PODS_PER_PASS))
        )
    elif missing < 0:
        known = [pod for pod in active if controller_of(pod.metadata) is not None]
        for pod in deletion_order(known)[: min(-missing, MAX_PODS_PER_PASS)]:
            yield Delete(pod)
            yield events.deleted(owner, pod, _controller_name(owner), now)


def _controller_name(owner: Owner) -> str:
    """As events name the controller that acts for it."""
    return "replicaset-controller" if isinstance(owner, ReplicaSet) else "replication-controller"


# --- what it tells ----------------------------------------------------------------------------------------------------


def _update_status(owner: Owner, active: tuple[Pod, ...], now: datetime.datetime, refused: str) -> Iterator[Update]:
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
        yield Update(replace(owner, status=status), owner)


def _conditions(owner: Owner, now: datetime.datetime, refused: str) -> Iterator[Condition]:
    old = next((row for row in owner.status.conditions if row.type == REPLICA_FAILURE), None)
    yield from (row for row in owner.status.conditions if row is not old)
    if refused and old is not None and old.message == refused:
        yield old
    elif refused:
        since = old.last_transition_time if old is not None else format_time(now)
        row = Condition(type=REPLICA_FAILURE, status="True", reason="FailedCreate", message=refused)
        yield replace(row, last_transition_time=since)


REPLICA_KINDS = ("ReplicaSet", "ReplicationController")


def sync_replicas(lister: Lister) -> Iterable[Action]:
    """Reconcile all ReplicaSets and ReplicationControllers."""
    owners = [item for kind in REPLICA_KINDS for item in lister.list(kind)]
    return reconcile(owners, lister.list("Pod"), lister.now, lister.create_errors) if owners else ()
