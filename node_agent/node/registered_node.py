"""The Node object of this host: registration, status writes, and the copy that the API server returned last."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from api.client.client import AlreadyExists, Client, ClientError, NotFound
from api.client.informer import Informer
from api.core.events import object_reference
from api.core.node import Node
from node_agent.event_recorder import EventRecorder
from node_agent.node import host_facts
from node_agent.node.node_status import (
    HostFacts,
    NodeHealth,
    NodeIdentity,
    condition_events,
    new_node,
    node_labels,
    node_status,
    node_status_patch,
    status_differs,
)
from reconcile.errors import NotReady
from reconcile.listeners import Listeners

log = logging.getLogger(__name__)

REPORT_SECONDS = 300.0
"""Time after which an unchanged status is written again (kubelet: nodeStatusReportFrequency)."""


class RegisteredNode:
    """The Node object of this host on the API server.

    `registered` notifies after the object was created or found at the start. `changed` notifies when the informer
    receives another version of it.
    """

    def __init__(self, client: Client, identity: NodeIdentity, state_dir: Path, events: EventRecorder) -> None:
        self.registered = Listeners()
        self.changed = Listeners()
        self.informer = Informer(
            client, Node, field_selector=f"metadata.name={identity.name}", on_change=self.changed.notify
        )
        self._client = client
        self._identity = identity
        self._state_dir = state_dir
        self._events = events
        self._node: Node | None = None
        self._written_at = float("-inf")
        self._start_events_recorded = False

    @property
    def current(self) -> Node | None:
        """The Node as the API server returned it last. None until it is registered."""
        return self._node

    async def cached(self) -> Node:
        """Return the Node as the API server returned it last, or as this host would register it."""
        if self._node is not None:
            return self._node
        facts = await asyncio.to_thread(host_facts.read_host_facts, self._state_dir, "", ())
        return new_node(self._identity, facts, NodeHealth("starting"), datetime.now(UTC))

    async def read(self) -> Node | None:
        """Read the Node from the API server. Return None if the API server does not answer."""
        try:
            return await self._client.get(Node, self._identity.name)
        except ClientError:
            return None

    async def update(self, facts: HostFacts, health: NodeHealth, now: datetime) -> None:
        """Register the Node if necessary, and write its status if it differs or is older than REPORT_SECONDS.

        Raises NotReady if the API server does not answer.
        """
        try:
            node = self._newest() or await self._register(facts, health, now)
            status = node_status(self._identity, facts, health, now, node.status.conditions)
            is_report_due = time.monotonic() - self._written_at >= REPORT_SECONDS
            if is_report_due or status_differs(status, node.status):
                name = self._identity.name
                self._node = await self._client.patch_status_strategically(Node, name, "", node_status_patch(status))
                self._written_at = time.monotonic()
                self._record_condition_changes(node, self._node)
        except NotFound:
            self._node = None
            raise NotReady("this node's object was deleted") from None
        except ClientError as error:
            raise NotReady(str(error)) from None

    def _newest(self) -> Node | None:
        """Return the newer one of the response to the last write and the informer's copy.

        Return None until this agent has registered the Node, and after the Node was deleted.
        """
        written = self._node
        received = self.informer.items.get(("", self._identity.name))
        if written is None or received is None:
            return None if self.informer.synced else written
        if int(written.metadata.resource_version) < int(received.metadata.resource_version):
            self._node = received
        return self._node

    async def _register(self, facts: HostFacts, health: NodeHealth, now: datetime) -> Node:
        """Create the Node, or adopt the existing one and correct its labels."""
        try:
            node = await self._client.create(new_node(self._identity, facts, health, now))
        except AlreadyExists:
            node = await self._client.get(Node, self._identity.name)
            labels = node_labels(self._identity, facts)
            if any(node.metadata.labels.get(key) != value for key, value in labels.items()):
                patch = {"metadata": {"labels": labels}}
                node = await self._client.patch(Node, self._identity.name, "", patch)
        else:
            log.info("node registered", extra={"node": self._identity.name, "address": self._identity.address})
        self._node = node
        self._record_start_events(node, health)
        info = node.status.node_info
        if info is not None and info.boot_id not in ("", facts.boot_id):
            message = f"Node {self._identity.name} has been rebooted, boot id: {facts.boot_id}"
            self._event(node, "Rebooted", message)
        self.registered.notify()
        return node

    def _record_start_events(self, node: Node, health: NodeHealth) -> None:
        """Record `Starting` and the node's pressure conditions once for each run of the agent."""
        if self._start_events_recorded:
            return
        self._start_events_recorded = True
        self._event(node, "Starting", "Starting podlane-node-agent.")
        for condition in health.pressure.conditions():
            reason = condition.reason.replace("Kubelet", "Node")
            self._event(node, reason, f"Node {self._identity.name} status is now: {reason}")

    def _record_condition_changes(self, before: Node, after: Node) -> None:
        for reason, suffix in condition_events(before.status.conditions, after.status.conditions):
            self._event(after, reason, f"Node {self._identity.name} status is now: {reason}{suffix}")

    def _event(self, node: Node, reason: str, message: str) -> None:
        # kubectl describe node selects events by the name of the node in place of its UID.
        self._events.event(replace(object_reference(node), uid=node.metadata.name), reason, message)
