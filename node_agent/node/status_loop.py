"""Registers the node and keeps its status up to date; checks Docker and the network."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from api.client.client import AlreadyExists, Client, ClientError, Conflict, NotFound
from api.client.informer import Informer
from api.core.events import reference
from api.core.node import NODE_LEASES, ContainerImage, Lease, Node
from api.meta.types import ObjectReference
from node_agent.config import Settings
from node_agent.docker.client import DockerClient
from node_agent.event_recorder import EventRecorder
from node_agent.eviction.thresholds import Pressure
from node_agent.network.plugin import PodNetwork
from node_agent.node import host_facts
from node_agent.node import node_status as reserved
from node_agent.node.lease import node_lease
from node_agent.node.node_status import (
    HostFacts,
    NodeHealth,
    NodeIdentity,
    condition_events,
    new_node,
    node_labels,
    node_status,
    node_status_patch,
    parse_taint,
    status_differs,
)
from reconcile.errors import DriverError, NotReady
from reconcile.loop import Loop, LoopTiming

log = logging.getLogger(__name__)

REPORT_SECONDS = 300.0
"""A status that has not changed is written again after this time."""


class NodeReporter:
    """`tell` tells an event about the node; `on_change` is called when the master shows the node differently."""

    def __init__(
        self,
        client: Client,
        identity: NodeIdentity,
        renew_seconds: float,
        tell: Callable[[ObjectReference, str, str], None],
        on_change: Callable[[], None],
    ) -> None:
        self.mirror = Informer(client, Node, field_selector=f"metadata.name={identity.name}", on_change=on_change)
        self.heart = Loop("lease", self._renew, LoopTiming(resync=renew_seconds, backoff_max=min(2.0, renew_seconds)))
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

    async def write(self, facts: HostFacts, health: NodeHealth, now: datetime) -> None:
        """Bring the master's Node up to date. Raises NotReady while the master is away."""
        try:
            node = self._known() or await self._register(facts, health, now)
            status = node_status(self._identity, facts, health, now, node.status.conditions)
            due = time.monotonic() - self._written_at >= REPORT_SECONDS
            if due or status_differs(status, node.status):
                name = self._identity.name
                self._node = await self._client.patch_status_strategically(Node, name, "", node_status_patch(status))
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

    async def _register(self, facts: HostFacts, health: NodeHealth, now: datetime) -> Node:
        try:
            node = await self._client.create(new_node(self._identity, facts, health, now))
        except AlreadyExists:
            node = await self._client.get(Node, self._identity.name)
            wanted = node_labels(self._identity, facts)
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

    def _introduce(self, node: Node, health: NodeHealth) -> None:
        """An agent that begins tells once of what its node has enough."""
        if self._introduced:
            return
        self._introduced = True
        self._tell(self._about(node), "Starting", "Starting podlane-node-agent.")
        for _, _, reason, _ in health.pressure.rows():
            told = reason.replace("Kubelet", "Node")
            self._tell(self._about(node), told, f"Node {self._identity.name} status is now: {told}")

    def _tell_changes(self, before: Node, after: Node) -> None:
        for reason, words in condition_events(before.status.conditions, after.status.conditions):
            self._tell(self._about(after), reason, f"Node {self._identity.name} status is now: {reason}{words}")

    def _about(self, node: Node) -> ObjectReference:
        """As kubectl describe looks for it: by the name, in place of the UID."""
        return replace(reference(node), uid=node.metadata.name)

    # --- the lease -------------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        """Once per pass. Raises NotReady."""
        wanted = node_lease(self._identity, self._node, self._renew_seconds, datetime.now(UTC))
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


RUNTIME_TIMEOUT_SECONDS = 30.0
"""Without an answer for so long a container runtime is taken for dead, as kubelet does."""


class RuntimeHealthCheck:
    """A question that hangs holds one thread, however often somebody looks."""

    def __init__(self, docker: DockerClient, seconds: float = RUNTIME_TIMEOUT_SECONDS) -> None:
        self._docker = docker
        self._seconds = seconds
        self._asked: asyncio.Task[tuple[str, tuple[ContainerImage, ...]]] | None = None
        self._until = 0.0

    async def take(self) -> tuple[str, tuple[ContainerImage, ...]]:
        """Docker's version and its images. Raises NotReady when it is away, or has not answered for so long."""
        now = asyncio.get_running_loop().time()
        if self._asked is None:
            self._asked = asyncio.create_task(self._ask())
            self._until = now + self._seconds
        await asyncio.wait((self._asked,), timeout=max(self._until - now, 0.0))
        if not self._asked.done():
            raise NotReady(f"Docker has not answered for {self._seconds:.0f} s")
        asked, self._asked = self._asked, None
        return asked.result()

    async def _ask(self) -> tuple[str, tuple[ContainerImage, ...]]:
        return await self._docker.version(), await self._docker.image_sizes()


NO_IMAGES: tuple[ContainerImage, ...] = ()

FAST_SECONDS, FAST_STEP_SECONDS = 120.0, 0.1
"""So long after a start, until the node is Ready for the first time, it is looked at again after each step."""


class NodeStatusLoop:
    """`unready` says why no pod can run here, empty when one can.

    `pressure` says what the node is short of. `on_change` is called when the node was looked at, and when the master
    shows another Node; `on_other_subnet` when the network gives pods other addresses than before.
    """

    def __init__(
        self,
        settings: Settings,
        client: Client,
        docker: DockerClient,
        network: PodNetwork,
        recorder: EventRecorder,
        pressure: Callable[[], Pressure],
        on_change: Callable[[], None],
        on_other_subnet: Callable[[], None],
    ) -> None:
        self.unready = "starting"
        self._client = client
        self._state_dir = Path(settings.state_dir)
        self._network = network
        self._pressure = pressure
        self._on_change = on_change
        self._on_other_subnet = on_other_subnet
        self._subnet = ""
        self._pulse = RuntimeHealthCheck(docker, min(RUNTIME_TIMEOUT_SECONDS, settings.runtime_request_timeout_seconds))
        self._fast_until = time.monotonic() + FAST_SECONDS
        self._identity = NodeIdentity(
            name=settings.node_name,
            address=settings.node_ip,
            max_pods=settings.max_pods,
            port=settings.port,
            taints=tuple(map(parse_taint, settings.register_with_taints)),
            reserved=reserved.parse_reserved(settings.kube_reserved, settings.system_reserved),
        )
        self.loop = Loop("node", self._beat, LoopTiming(resync=settings.heartbeat_seconds, backoff_max=2.0))
        every = settings.heartbeat_seconds
        self.report = NodeReporter(client, self._identity, every, recorder.about, self._node_changed)

    async def known(self) -> Node:
        """The Node as the master last told, or as this host would register."""
        if self.report.current is not None:
            return self.report.current
        facts = await asyncio.to_thread(host_facts.read_host_facts, self._state_dir, "", ())
        return new_node(self._identity, facts, NodeHealth(self.unready), datetime.now(UTC))

    async def fresh(self) -> Node | None:
        """The Node as the master has it now; None while it is away."""
        try:
            return await self._client.get(Node, self._identity.name)
        except ClientError:
            return None

    async def _beat(self) -> None:
        """Tell the master how this node is, and whether pods can run here."""
        version, images = "", NO_IMAGES
        try:
            version, images = await self._pulse.take()
            await self._follow_network()
            self.unready = ""
        except DriverError as error:
            self.unready = str(error)
        facts = await asyncio.to_thread(host_facts.read_host_facts, self._state_dir, version, images)
        await self.report.write(facts, NodeHealth(self.unready, self._pressure()), datetime.now(UTC))
        self._on_change()
        if not self.unready:
            self._fast_until = 0.0
        elif time.monotonic() < self._fast_until:
            asyncio.get_running_loop().call_later(FAST_STEP_SECONDS, self.loop.wake)
        else:
            raise NotReady(self.unready)

    def _node_changed(self) -> None:
        self.loop.wake()
        self._on_change()

    async def _follow_network(self) -> None:
        """Raises NotReady while pods can have none."""
        subnet = (await self._network.status()).subnet
        if self._subnet not in {"", subnet}:
            log.warning("this node has another subnet", extra={"subnet": subnet, "before": self._subnet})
            self._on_other_subnet()
        self._subnet = subnet
