"""Renews the node's lease (kubelet: nodelease controller)."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import replace

from api.client.client import AlreadyExists, Client, ClientError, Conflict, NotFound
from api.core.node import NODE_LEASES, Lease, LeaseSpec, Node
from api.meta.types import ObjectMeta, OwnerReference
from node_agent.node.node_status import NodeIdentity
from node_agent.node.registered_node import RegisteredNode
from reconcile.errors import NotReady
from reconcile.loop import Loop, LoopTiming

RENEWALS_PER_LEASE = 4
BACKOFF_MAX_SECONDS = 2.0


def node_lease(identity: NodeIdentity, owner: Node | None, renew_seconds: float, now: datetime) -> Lease:
    """Return the lease of this node, renewed at `now`. It is valid for RENEWALS_PER_LEASE intervals of renewal."""
    owners: tuple[OwnerReference, ...] = ()
    if owner is not None:
        owners = (OwnerReference(api_version="v1", kind="Node", name=owner.metadata.name, uid=owner.metadata.uid),)
    return Lease(
        metadata=ObjectMeta(name=identity.name, namespace=NODE_LEASES, owner_references=owners),
        spec=LeaseSpec(
            holder_identity=identity.name,
            lease_duration_seconds=max(round(RENEWALS_PER_LEASE * renew_seconds), 1),
            renew_time=now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        ),
    )


class LeaseController:
    """Renews the lease of this node every `renew_seconds`. The Node object owns the lease."""

    def __init__(self, client: Client, identity: NodeIdentity, node: RegisteredNode, renew_seconds: float) -> None:
        self.loop = Loop(
            "lease",
            self._renew,
            LoopTiming(resync=renew_seconds, backoff_max=min(BACKOFF_MAX_SECONDS, renew_seconds)),
        )
        self._client = client
        self._identity = identity
        self._node = node
        self._renew_seconds = renew_seconds
        self._lease: Lease | None = None

    async def _renew(self) -> None:
        """Create or update the lease. Raises NotReady."""
        renewed = node_lease(self._identity, self._node.current, self._renew_seconds, datetime.now(UTC))
        try:
            current = self._lease or await self._read()
            if current is None:
                self._lease = await self._client.create(renewed)
                return
            owners = renewed.metadata.owner_references or current.metadata.owner_references
            metadata = replace(current.metadata, owner_references=owners)
            self._lease = await self._client.update(replace(renewed, metadata=metadata))
        except (Conflict, NotFound, AlreadyExists) as error:
            self._lease = None
            raise NotReady(f"lease: {error}") from None
        except ClientError as error:
            raise NotReady(f"lease: {error}") from None

    async def _read(self) -> Lease | None:
        try:
            return await self._client.get(Lease, self._identity.name, NODE_LEASES)
        except NotFound:
            return None
