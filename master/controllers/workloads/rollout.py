"""A deployment and its replica sets on the way from one template to the next. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from api.meta.types import ObjectMeta
from master.kinds.deployment import Deployment
from master.kinds.replica_set import ReplicaSet
from master.kinds.workload import share

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
        return share(rolling.max_surge, self.replicas, up=True) if rolling else 0

    @property
    def unavailable(self) -> int:
        """How many pods may be missing on the way; with no surge at least one, or nothing would ever move."""
        rolling = self.deployment.spec.strategy.rolling_update
        part = share(rolling.max_unavailable, self.replicas, up=False) if rolling else 0
        return min(self.replicas, part or (0 if self.surge else 1))


def revision_of(meta: ObjectMeta) -> int:
    """The number of a revision, of a replica set or of a deployment; 0 if there is none."""
    text = meta.annotations.get(REVISION, "")
    return int(text) if text.isdecimal() else 0
