"""Looks at this node again and again, and has the master told how it is and whether pods can run here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from api.client import Client, ClientError
from api.objects import ContainerImage, Node
from node_agent import reserved
from node_agent.drivers import host as directories
from node_agent.drivers.docker import Docker
from node_agent.eviction import Pressure
from node_agent.node import Health, Identity, new_node, parse_taint
from node_agent.node_report import NodeReport
from node_agent.pod_network import SandboxNetwork
from node_agent.pulse import SECONDS as PULSE_SECONDS
from node_agent.pulse import Pulse
from node_agent.recorder import Recorder
from node_agent.settings import Settings
from reconcile.errors import DriverError, NotReady
from reconcile.loop import Loop, Pace

log = logging.getLogger(__name__)

NO_IMAGES: tuple[ContainerImage, ...] = ()

FAST_SECONDS, FAST_STEP_SECONDS = 120.0, 0.1
"""So long after a start, until the node is Ready for the first time, it is looked at again after each step."""


class Heart:
    """`unready` says why no pod can run here, empty when one can.

    `pressure` says what the node is short of. `on_change` is called when the node was looked at, and when the master
    shows another Node; `on_other_subnet` when the network gives pods other addresses than before.
    """

    def __init__(
        self,
        settings: Settings,
        client: Client,
        docker: Docker,
        network: SandboxNetwork,
        recorder: Recorder,
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
        self._pulse = Pulse(docker, min(PULSE_SECONDS, settings.runtime_request_timeout_seconds))
        self._fast_until = time.monotonic() + FAST_SECONDS
        self._identity = Identity(
            name=settings.node_name,
            address=settings.node_ip,
            max_pods=settings.max_pods,
            port=settings.port,
            taints=tuple(map(parse_taint, settings.register_with_taints)),
            reserved=reserved.parse(settings.kube_reserved, settings.system_reserved),
        )
        self.loop = Loop("node", self._beat, Pace(resync=settings.heartbeat_seconds, last_retry=2.0))
        every = settings.heartbeat_seconds
        self.report = NodeReport(client, self._identity, every, recorder.about, self._node_changed)

    async def known(self) -> Node:
        """The Node as the master last told, or as this host would register."""
        if self.report.current is not None:
            return self.report.current
        facts = await asyncio.to_thread(directories.facts, self._state_dir, "", ())
        return new_node(self._identity, facts, Health(self.unready), datetime.now(UTC))

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
        facts = await asyncio.to_thread(directories.facts, self._state_dir, version, images)
        await self.report.write(facts, Health(self.unready, self._pressure()), datetime.now(UTC))
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
