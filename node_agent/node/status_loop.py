"""Keeps the Node object's status up to date; checks Docker and the pod network."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime
from pathlib import Path

from api.core.node import ContainerImage
from api.network.attach import NetworkStatus
from node_agent.config import Settings
from node_agent.docker.client import DockerClient
from node_agent.eviction.thresholds import NodePressure
from node_agent.network.plugin import PodNetwork
from node_agent.node import host_facts
from node_agent.node.node_status import NodeHealth
from node_agent.node.registered_node import RegisteredNode
from reconcile.errors import DriverError, NotReady
from reconcile.listeners import Listeners
from reconcile.loop import Loop, LoopTiming

log = logging.getLogger(__name__)

RUNTIME_TIMEOUT_SECONDS = 30.0
"""Time without a response after which the container runtime counts as down (kubelet: maxWaitForContainerRuntime)."""

NO_IMAGES: tuple[ContainerImage, ...] = ()

FAST_CHECK_SECONDS = 0.1
"""Interval of the checks after a start, until the node is Ready for the first time."""

FAST_CHECKS_LIMIT_SECONDS = 120.0
"""Time after a start at which the checks return to their usual interval although the node is not Ready."""


class RuntimeHealthCheck:
    """Checks whether Docker answers.

    Only one check is in progress at a time, so that a Docker that hangs occupies one thread. A caller waits until
    `seconds` after the start of the check.
    """

    def __init__(self, docker: DockerClient, seconds: float = RUNTIME_TIMEOUT_SECONDS) -> None:
        self._docker = docker
        self._seconds = seconds
        self._request: asyncio.Task[tuple[str, tuple[ContainerImage, ...]]] | None = None
        self._deadline = 0.0

    async def check(self) -> tuple[str, tuple[ContainerImage, ...]]:
        """Return Docker's version and its images. Raises NotReady if Docker does not answer in time."""
        now = asyncio.get_running_loop().time()
        if self._request is None:
            self._request = asyncio.create_task(self._read())
            self._deadline = now + self._seconds
        await asyncio.wait((self._request,), timeout=max(self._deadline - now, 0.0))
        if not self._request.done():
            raise NotReady(f"Docker has not answered for {self._seconds:.0f} s")
        result = self._request.result
        self._request = None
        return result()

    async def _read(self) -> tuple[str, tuple[ContainerImage, ...]]:
        return await self._docker.version(), await self._docker.list_named_images()


class NodeStatusLoop:
    """Observes the node and writes its status.

    `not_ready_reason` is empty if pods can run. `subnet_changed` notifies when the pod network assigns this node
    another subnet, so that every pod needs another address.
    """

    def __init__(
        self,
        settings: Settings,
        docker: DockerClient,
        network: PodNetwork,
        node: RegisteredNode,
        pressure: NodePressure,
    ) -> None:
        self.not_ready_reason = "starting"
        self.subnet_changed = Listeners()
        self.loop = Loop("node", self._sync_status, LoopTiming(resync=settings.heartbeat_seconds, backoff_max=2.0))
        self._state_dir = Path(settings.state_dir)
        self._network = network
        self._node = node
        self._pressure = pressure
        self._subnet = ""
        self._runtime = RuntimeHealthCheck(
            docker, min(RUNTIME_TIMEOUT_SECONDS, settings.runtime_request_timeout_seconds)
        )
        self._fast_until = time.monotonic() + FAST_CHECKS_LIMIT_SECONDS

    async def _sync_status(self) -> None:
        """Check Docker and the network, and write the node's status. Raises NotReady."""
        version = ""
        images = NO_IMAGES
        network = None
        try:
            version, images = await self._runtime.check()
            network = await self._check_network()
            self.not_ready_reason = ""
        except DriverError as error:
            self.not_ready_reason = str(error)
        facts = await asyncio.to_thread(host_facts.read_host_facts, self._state_dir, version, images)
        health = NodeHealth(self.not_ready_reason, self._pressure.current, network)
        await self._node.update(facts, health, datetime.now(UTC))
        if not self.not_ready_reason:
            self._fast_until = 0.0
        elif time.monotonic() < self._fast_until:
            asyncio.get_running_loop().call_later(FAST_CHECK_SECONDS, self.loop.wake)
        else:
            raise NotReady(self.not_ready_reason)

    async def _check_network(self) -> NetworkStatus:
        """Return the status of the network, and notify if the subnet has changed.

        Raises NotReady if pods cannot be attached.
        """
        status = await self._network.status()
        subnet = status.subnet
        if self._subnet not in {"", subnet}:
            log.warning("node subnet changed", extra={"subnet": subnet, "before": self._subnet})
            self.subnet_changed.notify()
        self._subnet = subnet
        return status
