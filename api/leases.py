"""Leases: a sign of life that is cheap to renew (coordination.k8s.io). Pure."""

from __future__ import annotations

from api.objects import Object
from api.value import Value

NODE_LEASES = "kube-node-lease"
"""The namespace with one Lease for each node, named like it."""


class LeaseSpec(Value, frozen=True):
    """Held by `holder_identity` until `lease_duration_seconds` after `renew_time` (RFC 3339 with microseconds)."""

    holder_identity: str = ""
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class Lease(Object, frozen=True):
    """Who holds something, and since when it was last renewed."""

    API_VERSION = "coordination.k8s.io/v1"
    KIND = "Lease"

    spec: LeaseSpec = LeaseSpec()
