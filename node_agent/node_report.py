"""Tells the master of this node: registers it, writes its status when it has changed, renews its lease."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from msgspec.structs import replace

from api.client import AlreadyExists, Client, ClientError, Conflict, NotFound
from api.events import reference
from api.leases import NODE_LEASES, Lease
from api.mirror import Mirror
from api.objects import Node
from api.value import ObjectReference
from node_agent.node import (
    Health,
    HostFacts,
    Identity,
    differs,
    labels,
    lease,
    new_node,
    node_status,
    status_patch,
    transitions,
)
from reconcile.errors import NotReady
from reconcile.loop import Loop, Pace

log = logging.getLogger(__name__)

REPORT_SECONDS = 300.0
"""A status that has not changed is written again after this time."""


class NodeReport:
    """`tell` tells an event about the node; `on_change` is called when the master shows the node differently."""

    def __init__(
        self,
        client: Client,
        identity: Identity,
        renew_seconds: float,
        tell: Callable[[ObjectReference, str, str], None],
        on_change: Callable[[], None],
    ) -> None:
        self.mirror = Mirror(client, Node, field_selector=f"metadata.name={identity.name}", on_change=on_change)
        self.heart = Loop("lease", self._renew, Pace(resync=renew_seconds, last_retry=min(2.0, renew_seconds)))
        self._client = client
        self._identity = identity
        self._renew_seconds = renew_seconds
        self._tell = tell
        self._node: Node | None = None
        self._written_at = float("-inf")
        self._lease: Lease | None = None
        self._introduced = False

    @property
    def current(self) -> Node | None:
        """The node as it is with the master, as far as is known."""
        return self._node

    async def write(self, facts: HostFacts, health: Health, now: datetime) -> None:
        """Bring the master's Node up to date. Raises NotReady while the master is away."""
        try:
            node = self._known() or await self._register(facts, health, now)
            status = node_status(self._identity, facts, health, now, node.status.conditions)
            due = time.monotonic() - self._written_at >= REPORT_SECONDS
            if due or differs(status, node.status):
                name = self._identity.name
                self._node = await self._client.patch_status_strategically(Node, name, "", status_patch(status))
                self._written_at = time.monotonic()
                self._tell_changes(node, self._node)
        except NotFound:
            self._node = None
            raise NotReady("this node's object is gone") from None
        except ClientError as error:
            raise NotReady(str(error)) from None

    def _known(self) -> Node | None:
        """The node as it is with the master: as we wrote it, or as somebody else has changed it since.

        None until this agent has registered it, and when it was deleted.
        """
        ours, shown = self._node, self.mirror.items.get(("", self._identity.name))
        if ours is None or shown is None:
            return None if self.mirror.synced else ours
        if int(ours.metadata.resource_version) < int(shown.metadata.resource_version):
            self._node = shown
        return self._node

    async def _register(self, facts: HostFacts, health: Health, now: datetime) -> Node:
        try:
            node = await self._client.create(new_node(self._identity, facts, health, now))
        except AlreadyExists:
            node = await self._client.get(Node, self._identity.name)
            wanted = labels(self._identity, facts)
            if any(node.metadata.labels.get(key) != value for key, value in wanted.items()):
                patch = {"metadata": {"labels": wanted}}
                node = await self._client.patch(Node, self._identity.name, "", patch)
        else:
            log.info("registered", extra={"node": self._identity.name, "address": self._identity.address})
            self.heart.wake()
        self._node = node
        self._introduce(node, health)
        info = node.status.node_info
        if info is not None and info.boot_id not in ("", facts.boot_id):
            words = f"Node {self._identity.name} has been rebooted, boot id: {facts.boot_id}"
            self._tell(self._about(node), "Rebooted", words)
        return node

    def _introduce(self, node: Node, health: Health) -> None:
        """An agent that begins tells once of what its node has enough."""
        if self._introduced:
            return
        self._introduced = True
        self._tell(self._about(node), "Starting", "Starting podlane-node-agent.")
        for _, _, reason, _ in health.pressure.rows():
            told = reason.replace("Kubelet", "Node")
            self._tell(self._about(node), told, f"Node {self._identity.name} status is now: {told}")

    def _tell_changes(self, before: Node, after: Node) -> None:
        for reason, words in transitions(before.status.conditions, after.status.conditions):
            self._tell(self._about(after), reason, f"Node {self._identity.name} status is now: {reason}{words}")

    def _about(self, node: Node) -> ObjectReference:
        """As kubectl describe looks for it: by the name, in place of the UID."""
        return replace(reference(node), uid=node.metadata.name)

    # --- the lease -------------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        """Once per pass. Raises NotReady."""
        wanted = lease(self._identity, self._node, self._renew_seconds, datetime.now(UTC))
        try:
            known = self._lease or await self._found_lease()
            if known is None:
                self._lease = await self._client.create(wanted)
                return
            owners = wanted.metadata.owner_references or known.metadata.owner_references
            metadata = replace(known.metadata, owner_references=owners)
            self._lease = await self._client.update(replace(wanted, metadata=metadata))
        except (Conflict, NotFound, AlreadyExists) as error:
            self._lease = None
            raise NotReady(f"lease: {error}") from None
        except ClientError as error:
            raise NotReady(f"lease: {error}") from None

    async def _found_lease(self) -> Lease | None:
        try:
            return await self._client.get(Lease, self._identity.name, NODE_LEASES)
        except NotFound:
            return None
