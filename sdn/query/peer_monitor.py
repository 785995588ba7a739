"""Probes the tunnels to peers, a few at a time, so that a node reports which of them are lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

from api.client.client import Client, ClientError, NotFound
from api.core.node import Node
from reconcile.icmp import IcmpEcho
from reconcile.loop import Loop, LoopTiming
from sdn import metrics
from sdn.network_state import NetworkState
from sdn.query.peer_probes import PeerProbes
from sdn.topology import NodeNetwork, gateway_of

log = logging.getLogger(__name__)

ECHO_SECONDS = 1.0
"""Longest time for which a reply is waited for. A single packet may be lost: only several rounds make a loss."""

NODE_SECONDS = 60.0
"""Time after which the Node of a lost peer is read again."""


class PeerMonitor:
    """Sends echo requests from this node's gateway to those of peers, every `seconds`, and writes `state.lost_peers`.

    Neither the request nor the reply can be sent by a pod: the switch accepts the addresses of gateways from tunnels
    and from tun0 only. A peer whose Node is not Ready is not lost: its own condition says more.
    """

    def __init__(self, client: Client, state: NetworkState, seconds: float) -> None:
        self._client = client
        self._state = state
        self._probes = PeerProbes()
        self._seconds = seconds
        self._loop = Loop("peers", self._probe, LoopTiming(resync=seconds or 1.0, backoff_max=max(seconds, 1.0)))
        self._in_service: dict[str, tuple[float, bool]] = {}

    async def run(self) -> None:
        """Probe until cancelled; do nothing if the interval is 0."""
        if self._seconds:
            await self._loop.run()

    async def _probe(self) -> None:
        """Probe one sample of peers. Raises Refused."""
        network = self._state.network
        if network is None:
            return
        answered = await self._answers(network)
        self._probes.record(answered)
        lost = self._probes.lost
        if lost is not None:
            lost = await self._without_stopped_nodes(lost)
        if lost != self._state.lost_peers and (lost or self._state.lost_peers):
            log.warning("tunnels lost" if lost else "tunnels work again", extra={"peers": " ".join(lost or ())})
        self._state.lost_peers = lost
        metrics.LOST_PEERS.set(len(lost or ()))

    async def _answers(self, network: NodeNetwork) -> dict[str, bool]:
        gateways = {peer.name: str(gateway_of(peer.subnet)) for peer in network.peers}
        sample = self._probes.sample(gateways)
        if not sample:
            return {}
        async with IcmpEcho(network.node.gateway) as echo:
            seconds = min(ECHO_SECONDS, self._seconds)
            found = await asyncio.gather(*(echo.milliseconds(gateways[name], seconds) for name in sample))
        return {name: milliseconds is not None for name, milliseconds in zip(sample, found, strict=True)}

    async def _without_stopped_nodes(self, lost: Iterable[str]) -> tuple[str, ...]:
        """Return the lost peers whose Nodes are Ready, or not known."""
        now = time.monotonic()
        self._in_service = {name: self._in_service[name] for name in lost if name in self._in_service}
        for name in lost:
            if now >= self._in_service.get(name, (0.0, True))[0]:
                self._in_service[name] = (now + min(NODE_SECONDS, 10 * self._seconds), await self._is_in_service(name))
        return tuple(name for name in lost if self._in_service[name][1])

    async def _is_in_service(self, name: str) -> bool:
        try:
            node = await self._client.get(Node, name)
        except NotFound:
            return False
        except ClientError:
            return True
        return all(condition.status == "True" for condition in node.status.conditions if condition.type == "Ready")
