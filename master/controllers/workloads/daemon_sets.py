"""DaemonSets: one pod on every matching node, replaced node by node when the template changes. Pure.

The scheduler binds the pods: each has a node affinity to the name of its node. A pass first repairs missing and
surplus pods, and only when there are none takes the next step to a new template.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from api.core import placement
from api.core.node import Node
from api.core.placement import (
    MEMORY_PRESSURE,
    NAME_FIELD,
    NOT_READY,
    UNREACHABLE,
    UNSCHEDULABLE,
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Toleration,
)
from api.core.pod import FINAL_PHASES, Pod, PodSpec
from api.meta.selectors import LabelSelector, compile_selector
from master.controllers import events
from master.controllers.actions import Action, Create, Delete, Failed, Update, WriteAction, isolate_errors
from master.controllers.context import Lister
from master.controllers.nodes.taints import NO_EXECUTE, NO_SCHEDULE, PRESSURE_TAINTS, effective_taints
from master.controllers.workloads.history import HASH_LABEL, hash_of, revision_history
from master.controllers.workloads.pod_control import (
    MAX_PODS_PER_PASS,
    OwnerIndex,
    claim_pods,
    is_available,
    pod_from_template,
    ready_since,
    should_replace,
)
from master.resources.daemon_sets import ROLLING_UPDATE, DaemonSet, DaemonSetStatus
from master.resources.pod_template import int_or_percent
from master.resources.stateful_sets import ControllerRevision

CONTROLLER = "daemonset-controller"

TOLERATED_TAINTS = (
    (NOT_READY, NO_EXECUTE),
    (UNREACHABLE, NO_EXECUTE),
    (PRESSURE_TAINTS["DiskPressure"], NO_SCHEDULE),
    (MEMORY_PRESSURE, NO_SCHEDULE),
    (PRESSURE_TAINTS["PIDPressure"], NO_SCHEDULE),
    (UNSCHEDULABLE, NO_SCHEDULE),
)
"""(key, effect) of the taints that every pod of a DaemonSet tolerates."""


def reconcile(
    daemon_sets: Iterable[DaemonSet],
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    stored_revisions: Sequence[ControllerRevision],
    now: datetime.datetime,
) -> Iterator[WriteAction | Failed]:
    """Yield the writes for these DaemonSets."""
    index, all_nodes = OwnerIndex(pods), tuple(nodes)

    def sync_daemon_set(daemon_set: DaemonSet) -> Iterator[WriteAction]:
        claimed = claim_pods(
            daemon_set, compile_selector(daemon_set.spec.selector or LabelSelector()), index.candidates(daemon_set)
        )
        yield from claimed.ownership_changes
        if not claimed.ownership_changes:
            yield from _sync(daemon_set, all_nodes, claimed.owned, stored_revisions, now)

    return isolate_errors(daemon_sets, sync_daemon_set)


def _sync(
    owner: DaemonSet,
    nodes: Sequence[Node],
    pods: tuple[Pod, ...],
    stored_revisions: Sequence[ControllerRevision],
    now: datetime.datetime,
) -> Iterator[WriteAction]:
    used_revisions = {f"{owner.metadata.name}-{pod.metadata.labels.get(HASH_LABEL, '')}" for pod in pods}
    history = revision_history(owner, stored_revisions, used_revisions)
    state = _DaemonSetState(owner, nodes, pods, "" if history.current is None else hash_of(history.current), now)
    if owner.metadata.deletion_timestamp is None:
        yield from history.actions
        if history.current is not None:
            yield from state.repair() or state.roll()
    status = replace(state.status, collision_count=history.collisions)
    if status != owner.status:
        yield Update(replace(owner, status=status), owner)


# --- nodes ------------------------------------------------------------------------------------------------------------


def pod_spec(spec: PodSpec, node: str) -> PodSpec:
    """Return the spec of a pod for this node, with its node affinity and the tolerations of DaemonSets."""
    own_tolerations = [Toleration(key=key, operator="Exists", effect=effect) for key, effect in TOLERATED_TAINTS]
    if spec.host_network:
        key = PRESSURE_TAINTS["NetworkUnavailable"]
        own_tolerations.append(Toleration(key=key, operator="Exists", effect=NO_SCHEDULE))
    requirement = NodeSelectorRequirement(key=NAME_FIELD, operator="In", values=(node,))
    required = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(requirement,)),))
    affinity = spec.affinity or Affinity()
    node_affinity = replace(
        affinity.node_affinity or NodeAffinity(), required_during_scheduling_ignored_during_execution=required
    )
    all_tolerations = (*spec.tolerations, *(added for added in own_tolerations if added not in spec.tolerations))
    return replace(spec, affinity=replace(affinity, node_affinity=node_affinity), tolerations=all_tolerations)


def node_of(pod: Pod) -> str:
    """Return the node of a pod, or the node that its affinity names."""
    if pod.spec.node_name or pod.spec.affinity is None or pod.spec.affinity.node_affinity is None:
        return pod.spec.node_name
    required = pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    for term in required.node_selector_terms if required is not None else ():
        for field in term.match_fields:
            if (field.key, field.operator, len(field.values)) == (NAME_FIELD, "In", 1):
                return field.values[0]
    return ""


def should_run(owner: DaemonSet, node: Node) -> tuple[bool, bool]:
    """Return whether a pod is to be created on a node, and whether an existing one may stay."""
    spec, name = owner.spec.template.spec, node.metadata.name
    if spec.node_name not in ("", name) or not placement.matches_node(spec, name, node.metadata.labels):
        return False, False
    tolerant, taints = pod_spec(spec, name), effective_taints(node)
    may_stay = placement.find_untolerated_taint(tolerant, taints, (NO_EXECUTE,)) is None
    return may_stay and placement.find_untolerated_taint(tolerant, taints, (NO_SCHEDULE,)) is None, may_stay


# --- state ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _DaemonSetState:
    """A DaemonSet with its pods and nodes; `current` is the hash of its newest template."""

    owner: DaemonSet
    nodes: Sequence[Node]
    pods: tuple[Pod, ...]
    current: str
    now: datetime.datetime

    @cached_property
    def by_node(self) -> Mapping[str, list[Pod]]:
        """Return the pods of each node, the oldest first."""
        pods_by_node: dict[str, list[Pod]] = defaultdict(list)
        for pod in sorted(self.pods, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name)):
            pods_by_node[node_of(pod)].append(pod)
        return pods_by_node

    @cached_property
    def runs_on(self) -> Mapping[str, tuple[bool, bool]]:
        """Return the result of `should_run` for each node."""
        return {node.metadata.name: should_run(self.owner, node) for node in self.nodes}

    @cached_property
    def desired_nodes(self) -> tuple[str, ...]:
        """Return the names of the nodes that are to have a pod."""
        return tuple(name for name, (runs, _) in sorted(self.runs_on.items()) if runs)

    def _is_new(self, pod: Pod) -> bool:
        return pod.metadata.labels.get(HASH_LABEL) == self.current

    def _is_available(self, pod: Pod) -> bool:
        return is_available(pod, self.owner.spec.min_ready_seconds, self.now)

    def _limits(self) -> tuple[int, int]:
        """Return on how many nodes the pod may be missing, and on how many there may be two."""
        rolling, node_count = self.owner.spec.update_strategy.rolling_update, len(self.desired_nodes)
        if self.owner.spec.update_strategy.type != ROLLING_UPDATE or rolling is None:
            return 0, 0
        return int_or_percent(rolling.max_unavailable, node_count, up=True), int_or_percent(
            rolling.max_surge, node_count, up=True
        )

    # --- repair -------------------------------------------------------------------------------------------------------

    def repair(self) -> list[WriteAction]:
        """Return writes for nodes without a pod, with too many, or with a terminated one."""
        surplus = [pod for name, pods in self.by_node.items() for pod in self._surplus(name, pods)]
        uncovered = [name for name in self.desired_nodes if name not in self.by_node]
        return [*self._creates(uncovered), *self._deletes(surplus)]

    def _creates(self, names: Iterable[str]) -> list[WriteAction]:
        template = self.owner.spec.template
        labels = {**template.metadata.labels, HASH_LABEL: self.current}
        return [
            Create(
                pod_from_template(replace(template, spec=pod_spec(template.spec, name)), self.owner, labels=labels),
                CONTROLLER,
            )
            for name in list(names)[:MAX_PODS_PER_PASS]
        ]

    def _deletes(self, pods: Iterable[Pod]) -> list[WriteAction]:
        actions: list[WriteAction] = []
        for pod in list(pods)[:MAX_PODS_PER_PASS]:
            actions += [Delete(pod), events.deleted(self.owner, pod, CONTROLLER, self.now)]
        return actions

    def _surplus(self, name: str, pods: list[Pod]) -> Iterator[Pod]:
        present = [pod for pod in pods if not pod.metadata.deletion_timestamp]
        if name not in self.runs_on:
            # A pod that waits for a missing node. Pods that ran there are deleted by pod garbage collection.
            yield from (pod for pod in present if not pod.spec.node_name)
            return
        if not self.runs_on[name][1]:
            yield from present
            return
        yield from (pod for pod in present if pod.status.phase in FINAL_PHASES and should_replace(pod, self.now))
        running = [pod for pod in present if pod.status.phase not in FINAL_PHASES]
        yield from self._duplicates(running)

    def _duplicates(self, running: list[Pod]) -> Iterator[Pod]:
        """Yield all pods of a node but the oldest. With a surge one of each template stays until the new one is
        available.
        """
        if not self._limits()[1]:
            yield from running[1:]
            return
        new, old = ([pod for pod in running if self._is_new(pod) is is_new] for is_new in (True, False))
        yield from (*new[1:], *old[1:])
        if new and old and (self._is_available(new[0]) or ready_since(old[0]) is None):
            yield old[0]

    # --- rolling update -----------------------------------------------------------------------------------------------

    def roll(self) -> list[WriteAction]:
        """Return the next step of a rolling update, within its limits."""
        if self.owner.spec.update_strategy.type != ROLLING_UPDATE:
            return []
        max_unavailable, max_surge = self._limits()
        pairs = {name: self._new_and_old(self.by_node.get(name, ())) for name in self.desired_nodes}
        if max_surge:
            surged = sum(new is not None and old is not None for new, old in pairs.values())
            old_only = {name: old for name, (new, old) in pairs.items() if old is not None and new is None}
            unavailable = [name for name, old in old_only.items() if not self._is_available(old)]
            available = [name for name in old_only if name not in unavailable]
            return self._creates([*unavailable, *available[: max(0, max_surge - surged)]])
        available_nodes = sum(
            any(pod is not None and self._is_available(pod) for pod in pair) for pair in pairs.values()
        )
        old_pods = [old for _, old in pairs.values() if old is not None]
        unavailable_pods = [pod for pod in old_pods if not self._is_available(pod)]
        budget = max(0, max_unavailable - (len(self.desired_nodes) - available_nodes))
        return self._deletes([*unavailable_pods, *[pod for pod in old_pods if self._is_available(pod)][:budget]])

    def _new_and_old(self, pods: Iterable[Pod]) -> tuple[Pod | None, Pod | None]:
        """Return the pod of a node with the newest template, and one with an older."""
        running = [pod for pod in pods if not pod.metadata.deletion_timestamp and pod.status.phase not in FINAL_PHASES]
        new = next(filter(self._is_new, running), None)
        return new, next((pod for pod in running if not self._is_new(pod)), None)

    # --- status -------------------------------------------------------------------------------------------------------

    @cached_property
    def status(self) -> DaemonSetStatus:
        """Return the status, counted over the oldest pod of each node."""
        oldest = {name: pods[0] for name, pods in self.by_node.items()}
        scheduled = [oldest[name] for name in self.desired_nodes if name in oldest]
        available = sum(map(self._is_available, scheduled))
        return replace(
            self.owner.status,
            desired_number_scheduled=len(self.desired_nodes),
            current_number_scheduled=len(scheduled),
            number_misscheduled=sum(name in self.runs_on and name not in self.desired_nodes for name in oldest),
            number_ready=sum(ready_since(pod) is not None for pod in scheduled),
            updated_number_scheduled=sum(map(self._is_new, scheduled)),
            number_available=available,
            number_unavailable=len(self.desired_nodes) - available,
            observed_generation=self.owner.metadata.generation,
        )


def daemon_sets_await_time(lister: Lister) -> bool:
    """Return whether pods of a DaemonSet are not available, or become so with time (minReadySeconds)."""
    return any(
        daemon_set.spec.min_ready_seconds
        or daemon_set.status.number_available != daemon_set.status.desired_number_scheduled
        for daemon_set in lister.list(DaemonSet)
    )


def sync_daemon_sets(lister: Lister) -> Iterable[Action]:
    """Reconcile all DaemonSets."""
    if not (daemon_sets := lister.list(DaemonSet)):
        return ()
    return reconcile(daemon_sets, lister.list(Node), lister.list(Pod), lister.list(ControllerRevision), lister.now)
