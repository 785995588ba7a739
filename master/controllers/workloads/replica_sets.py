"""ReplicaSets and ReplicationControllers: the desired number of pods of a template. Pure.

The snapshot is the newest state, so it contains pods created a moment ago.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from api.core.pod import Pod
from api.meta.selectors import LabelSelector, Selector, compile_selector
from api.meta.types import Condition
from master.controllers import events
from master.controllers.actions import Action, Create, Delete, Failed, Update, WriteAction, isolate_errors
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
    """Return the selector of an owner."""
    label_selector = owner.spec.selector
    return compile_selector(
        label_selector
        if isinstance(label_selector, LabelSelector)
        else LabelSelector(match_labels=label_selector or {})
    )


def reconcile(
    owners: Iterable[Owner], pods: Iterable[Pod], now: datetime.datetime, create_errors: Mapping[str, str]
) -> Iterator[WriteAction | Failed]:
    """Yield the writes for these owners. `create_errors`: by uid, why pods of an owner could not be created."""
    index = OwnerIndex(pods)
    claimed_uids: set[str] = set()

    def sync_owner(owner: Owner) -> Iterator[WriteAction]:
        candidates = [pod for pod in index.candidates(owner) if pod.metadata.uid not in claimed_uids]
        claimed = claim_pods(owner, selector_of(owner), candidates)
        claimed_uids.update(update.object.metadata.uid for update in claimed.ownership_changes)
        yield from claimed.ownership_changes
        if owner.metadata.deletion_timestamp is None:
            yield from _scale(owner, claimed.active, now)
        yield from _update_status(owner, claimed.active, now, create_errors.get(owner.metadata.uid, ""))

    return isolate_errors(owners, sync_owner)


# --- scaling ----------------------------------------------------------------------------------------------------------


def _scale(owner: Owner, active: tuple[Pod, ...], now: datetime.datetime) -> Iterator[Create | Delete]:
    """Yield creates or deletes up to the desired number. A pod adopted in this pass is not deleted in it, because its
    newest state is not stored yet.
    """
    missing = (owner.spec.replicas or 0) - len(active)
    template = owner.spec.template
    if missing > 0 and template is not None:
        yield from (
            Create(pod_from_template(template, owner), by=_controller_name(owner))
            for _ in range(min(missing, MAX_PODS_PER_PASS))
        )
    elif missing < 0:
        deletable = [pod for pod in active if controller_of(pod.metadata) is not None]
        for pod in deletion_order(deletable)[: min(-missing, MAX_PODS_PER_PASS)]:
            yield Delete(pod)
            yield events.deleted(owner, pod, _controller_name(owner), now)


def _controller_name(owner: Owner) -> str:
    """Return the name of the controller in events."""
    return "replicaset-controller" if isinstance(owner, ReplicaSet) else "replication-controller"


# --- status -----------------------------------------------------------------------------------------------------------


def _update_status(
    owner: Owner, active: tuple[Pod, ...], now: datetime.datetime, create_error: str
) -> Iterator[Update]:
    template = owner.spec.template
    labels = (template.metadata.labels if template else {}).items()
    status = replace(
        owner.status,
        replicas=len(active),
        fully_labeled_replicas=sum(labels <= pod.metadata.labels.items() for pod in active),
        ready_replicas=sum(ready_since(pod) is not None for pod in active),
        available_replicas=sum(is_available(pod, owner.spec.min_ready_seconds, now) for pod in active),
        observed_generation=owner.metadata.generation,
        conditions=tuple(_conditions(owner, now, create_error)),
    )
    if status != owner.status:
        yield Update(replace(owner, status=status), owner)


def _conditions(owner: Owner, now: datetime.datetime, create_error: str) -> Iterator[Condition]:
    old = next((condition for condition in owner.status.conditions if condition.type == REPLICA_FAILURE), None)
    yield from (condition for condition in owner.status.conditions if condition is not old)
    if create_error and old is not None and old.message == create_error:
        yield old
    elif create_error:
        since = old.last_transition_time if old is not None else format_time(now)
        condition = Condition(type=REPLICA_FAILURE, status="True", reason="FailedCreate", message=create_error)
        yield replace(condition, last_transition_time=since)


REPLICA_KINDS = ("ReplicaSet", "ReplicationController")


def replicas_await_time(lister: Lister) -> bool:
    """Return whether pods of a ReplicaSet or ReplicationController are not available yet."""
    return any(
        owner.status.available_replicas != (owner.spec.replicas or 0)
        for kind in REPLICA_KINDS
        for owner in lister.list_kind(kind)
    )


def sync_replicas(lister: Lister) -> Iterable[Action]:
    """Reconcile all ReplicaSets and ReplicationControllers."""
    owners = [owner for kind in REPLICA_KINDS for owner in lister.list_kind(kind)]
    return reconcile(owners, lister.list(Pod), lister.now, lister.create_errors) if owners else ()
