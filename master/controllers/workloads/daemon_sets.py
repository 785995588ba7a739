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
from api.meta.selectors import LabelSelector, selector
from master.controllers import events
from master.controllers.actions import Action, Create, Delete, Update, WriteAction
from master.controllers.context import Lister
from master.controllers.nodes.taints import NO_EXECUTE, NO_SCHEDULE, PRESSURE_TAINTS, effective_taints
from master.controllers.workloads import history as revisions
from master.controllers.workloads.history import HASH_LABEL, hash_of
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
"""(key, effect) of the taints that every pod of a daemon set tolerates."""


def reconcile(
    sets: Iterable[DaemonSet],
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    kept: Sequence[ControllerRevision],
    now: datetime.datetime,
) -> Iterator[WriteAction]:
    """Everything that is to be written for these daemon sets."""
    kin, places = OwnerIndex(pods), tuple(nodes)
    for one in sets:
        found = claim_pods(one, selector(one.spec.selector or LabelSelector()), kin.near(one))
        yield from found.handed
        if not found.handed:
            yield from _sync(one, places, found.mine, kept, now)


def _sync(
    owner: DaemonSet,
    nodes: Sequence[Node],
    pods: tuple[Pod, ...],
    kept: Sequence[ControllerRevision],
    now: datetime.datetime,
) -> Iterator[WriteAction]:
    used = {f"{owner.metadata.name}-{pod.metadata.labels.get(HASH_LABEL, '')}" for pod in pods}
    history = revisions.revision_history(owner, kept, used)
    stand = _DaemonSetState(owner, nodes, pods, "" if history.current is None else hash_of(history.current), now)
    if owner.metadata.deletion_timestamp is None:
        yield from history.writes
        if history.current is not None:
            yield from stand.mended() or stand.rolled()
    status = replace(stand.status, collision_count=history.collisions)
    if status != owner.status:
        yield Update(replace(owner, status=status), owner)


# --- which node -------------------------------------------------------------------------------------------------------


def pod_spec(spec: PodSpec, node: str) -> PodSpec:
    """For a pod that is to be on this node: the scheduler puts it there, though the node may be unwell."""
    bearing = [Toleration(key=key, operator="Exists", effect=effect) for key, effect in TOLERATED_TAINTS]
    if spec.host_network:
        key = PRESSURE_TAINTS["NetworkUnavailable"]
        bearing.append(Toleration(key=key, operator="Exists", effect=NO_SCHEDULE))
    row = NodeSelectorRequirement(key=NAME_FIELD, operator="In", values=(node,))
    required = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(row,)),))
    affinity = spec.affinity or Affinity()
    to_nodes = replace(
        affinity.node_affinity or NodeAffinity(), required_during_scheduling_ignored_during_execution=required
    )
    tolerations = (*spec.tolerations, *(one for one in bearing if one not in spec.tolerations))
    return replace(spec, affinity=replace(affinity, node_affinity=to_nodes), tolerations=tolerations)


def node_of(pod: Pod) -> str:
    """The node that a pod is on, or is meant for."""
    if pod.spec.node_name or pod.spec.affinity is None or pod.spec.affinity.node_affinity is None:
        return pod.spec.node_name
    required = pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    for term in required.node_selector_terms if required is not None else ():
        for row in term.match_fields:
            if (row.key, row.operator, len(row.values)) == (NAME_FIELD, "In", 1):
                return row.values[0]
    return ""


def should_run(owner: DaemonSet, node: Node) -> tuple[bool, bool]:
    """Whether a pod is to be made on a node, and whether one that is there may stay."""
    wish, name = owner.spec.template.spec, node.metadata.name
    if wish.node_name not in ("", name) or not placement.matches_node(wish, name, node.metadata.labels):
        return False, False
    bearing, taints = pod_spec(wish, name), effective_taints(node)
    stays = placement.find_untolerated_taint(bearing, taints, (NO_EXECUTE,)) is None
    return stays and placement.find_untolerated_taint(bearing, taints, (NO_SCHEDULE,)) is None, stays


# --- the next step ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _DaemonSetState:
    """A daemon set as it stands; `current` is the hash of its newest template."""

    owner: DaemonSet
    nodes: Sequence[Node]
    pods: tuple[Pod, ...]
    current: str
    now: datetime.datetime

    @cached_property
    def by_node(self) -> Mapping[str, list[Pod]]:
        """The pods of each node, the oldest first."""
        found: dict[str, list[Pod]] = defaultdict(list)
        for pod in sorted(self.pods, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name)):
            found[node_of(pod)].append(pod)
        return found

    @cached_property
    def fitness(self) -> Mapping[str, tuple[bool, bool]]:
        """What `suits` says of each node."""
        return {node.metadata.name: should_run(self.owner, node) for node in self.nodes}

    @cached_property
    def wanted(self) -> tuple[str, ...]:
        """The nodes that are to have a pod."""
        return tuple(name for name, (runs, _) in sorted(self.fitness.items()) if runs)

    def _is_new(self, pod: Pod) -> bool:
        return pod.metadata.labels.get(HASH_LABEL) == self.current

    def _serves(self, pod: Pod) -> bool:
        return is_available(pod, self.owner.spec.min_ready_seconds, self.now)

    def _bounds(self) -> tuple[int, int]:
        """On how many nodes the pod may be missing, and be there twice."""
        rolling, of = self.owner.spec.update_strategy.rolling_update, len(self.wanted)
        if self.owner.spec.update_strategy.type != ROLLING_UPDATE or rolling is None:
            return 0, 0
        return int_or_percent(rolling.max_unavailable, of, up=True), int_or_percent(rolling.max_surge, of, up=True)

    # --- what is missing or too many ----------------------------------------------------------------------------------

    def mended(self) -> list[WriteAction]:
        """Writes for nodes without a pod, with too many, or with one that has ended."""
        ended = [pod for name, pods in self.by_node.items() for pod in self._needless(name, pods)]
        bare = [name for name in self.wanted if name not in self.by_node]
        return [*self._made(bare), *self._ended(ended)]

    def _made(self, names: Iterable[str]) -> list[WriteAction]:
        template = self.owner.spec.template
        labels = {**template.metadata.labels, HASH_LABEL: self.current}
        return [
            Create(
                pod_from_template(replace(template, spec=pod_spec(template.spec, name)), self.owner, labels=labels),
                CONTROLLER,
            )
            for name in list(names)[:MAX_PODS_PER_PASS]
        ]

    def _ended(self, pods: Iterable[Pod]) -> list[WriteAction]:
        found: list[WriteAction] = []
        for pod in list(pods)[:MAX_PODS_PER_PASS]:
            found += [Delete(pod), events.deleted(self.owner, pod, CONTROLLER, self.now)]
        return found

    def _needless(self, name: str, pods: list[Pod]) -> Iterator[Pod]:
        there = [pod for pod in pods if not pod.metadata.deletion_timestamp]
        if name not in self.fitness:
            # A pod that waits for a node that is gone; one that ran there is somebody else's to clear away.
            yield from (pod for pod in there if not pod.spec.node_name)
            return
        if not self.fitness[name][1]:
            yield from there
            return
        yield from (pod for pod in there if pod.status.phase in FINAL_PHASES and should_replace(pod, self.now))
        live = [pod for pod in there if pod.status.phase not in FINAL_PHASES]
        yield from self._doubled(live)

    def _doubled(self, live: list[Pod]) -> Iterator[Pod]:
        """All but the oldest; on the way with a surge one of each template, until the new one serves."""
        if not self._bounds()[1]:
            yield from live[1:]
            return
        new, old = ([pod for pod in live if self._is_new(pod) is is_new] for is_new in (True, False))
        yield from (*new[1:], *old[1:])
        if new and old and (self._serves(new[0]) or ready_since(old[0]) is None):
            yield old[0]

    # --- from one template to the next --------------------------------------------------------------------------------

    def rolled(self) -> list[WriteAction]:
        """The next step, as far as the bounds allow."""
        if self.owner.spec.update_strategy.type != ROLLING_UPDATE:
            return []
        missing, surge = self._bounds()
        pairs = {name: self._pair(self.by_node.get(name, ())) for name in self.wanted}
        if surge:
            twice = sum(new is not None and old is not None for new, old in pairs.values())
            single = {name: old for name, (new, old) in pairs.items() if old is not None and new is None}
            sick = [name for name, old in single.items() if not self._serves(old)]
            well = [name for name in single if name not in sick]
            return self._made([*sick, *well[: max(0, surge - twice)]])
        serving = sum(any(pod is not None and self._serves(pod) for pod in pair) for pair in pairs.values())
        olds = [old for _, old in pairs.values() if old is not None]
        sick_pods = [pod for pod in olds if not self._serves(pod)]
        spare = max(0, missing - (len(self.wanted) - serving))
        return self._ended([*sick_pods, *[pod for pod in olds if self._serves(pod)][:spare]])

    def _pair(self, pods: Iterable[Pod]) -> tuple[Pod | None, Pod | None]:
        """The pod of a node from the newest template, and the one from an older."""
        live = [pod for pod in pods if not pod.metadata.deletion_timestamp and pod.status.phase not in FINAL_PHASES]
        new = next(filter(self._is_new, live), None)
        return new, next((pod for pod in live if not self._is_new(pod)), None)

    # --- what it tells ------------------------------------------------------------------------------------------------

    @cached_property
    def status(self) -> DaemonSetStatus:
        """The numbers, of the oldest pod of each node."""
        first = {name: pods[0] for name, pods in self.by_node.items()}
        there = [first[name] for name in self.wanted if name in first]
        available = sum(map(self._serves, there))
        return replace(
            self.owner.status,
            desired_number_scheduled=len(self.wanted),
            current_number_scheduled=len(there),
            number_misscheduled=sum(name in self.fitness and name not in self.wanted for name in first),
            number_ready=sum(ready_since(pod) is not None for pod in there),
            updated_number_scheduled=sum(map(self._is_new, there)),
            number_available=available,
            number_unavailable=len(self.wanted) - available,
            observed_generation=self.owner.metadata.generation,
        )


def sync_daemon_sets(lister: Lister) -> Iterable[Action]:
    """Reconcile all DaemonSets."""
    if not (found := lister.list("DaemonSet")):
        return ()
    return reconcile(found, lister.list("Node"), lister.list("Pod"), lister.list("ControllerRevision"), lister.now)
