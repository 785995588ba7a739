"""Renews the node's lease (kubelet: nodelease controller)."""

from __future__ import annotations

from datetime import datetime

from api.core.node import NODE_LEASES, Lease, LeaseSpec, Node
from api.meta.types import ObjectMeta, OwnerReference
from node_agent.node.node_status import NodeIdentity

RENEWALS_PER_LEASE = 4


def node_lease(identity: NodeIdentity, owner: Node | None, renew_seconds: float, now: datetime) -> Lease:
    """The sign of life of this node at a moment; it holds for several renewals."""
    moment = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    owners = (
        ()
        if owner is None
        else (OwnerReference(api_version="v1", kind="Node", name=owner.metadata.name, uid=owner.metadata.uid),)
    )
    return Lease(
        metadata=ObjectMeta(name=identity.name, namespace=NODE_LEASES, owner_references=owners),
        spec=LeaseSpec(
            holder_identity=identity.name,
            lease_duration_seconds=max(round(RENEWALS_PER_LEASE * renew_seconds), 1),
            renew_time=moment,
        ),
    )
