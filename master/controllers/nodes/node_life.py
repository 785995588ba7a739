"""Which nodes are lost, what becomes of their pods, and what time alone decides about them.

It remembers since when it has heard nothing of whom: a master that was away itself begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from master.controllers import happenings
from master.controllers.look import Look
from master.controllers.nodes import pod_garbage, silence, taint_evictions
from master.writing.outcomes import Outcome

log = logging.getLogger(__name__)

LOOKS_PER_GRACE = 8
"""How often, within the grace period of a node, its last report is looked at."""

LONGEST_REST = 30.0


class NodeLife:
    """`losses` and `evictions` belong to one pass, in this order."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._sightings: silence.Sightings = {}
        self._marks: taint_evictions.Marks | None = None
        self._looked_at = float("-inf")
        self._absences: dict[str, float] = {}
        self.resync = min(LONGEST_REST, grace / LOOKS_PER_GRACE)

    def losses(self, look: Look) -> Iterator[Outcome]:
        """Nodes that are silent, leases without a node, and pods whose node is gone."""
        now, nodes, pods, leases = look.env.steady(), look.all("Node"), look.all("Pod"), look.all("Lease")
        if silence.was_away(self._looked_at, now, self._grace):
            self._sightings, self._marks = {}, None
        self._looked_at = now
        self._sightings = silence.sightings(self._sightings, nodes, leases, now)
        self._absences = pod_garbage.absences(self._absences, nodes, pods, now)
        for change in silence.lost_nodes(nodes, self._sightings, self._grace, now, look.now):
            log.warning("node is lost", extra={"node": change.item.metadata.name, "silent_for": f"{self._grace:.0f}s"})
            yield change
            yield happenings.lost(change.before, look.now)
        yield from pod_garbage.orphaned(pods, self._absences, self._grace, now, look.now)
        yield from silence.orphaned_leases(nodes, leases)

    def evictions(self, look: Look) -> Iterator[Outcome]:
        """Pods that do not bear the taints of their node go."""
        now, nodes = look.env.steady(), look.all("Node")
        self._marks = taint_evictions.marks(self._marks, nodes, self._grace, now)
        yield from taint_evictions.evictions(nodes, look.all("Pod"), self._marks, now, look.now)
