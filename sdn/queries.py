"""Answers what administrators ask this node's network: NodeQuery objects of the master."""

from __future__ import annotations

import asyncio
import logging

from msgspec.structs import replace

from api.client import Client, ClientError, NotFound
from api.mirror import Mirror
from api.queries import NetworkReport, NodeQuery, NodeQueryStatus, TraceQuestion
from reconcile.errors import DriverError, NotReady
from reconcile.loop import Loop, Pace
from sdn import trace
from sdn.drivers.echo import Echo
from sdn.drivers.unixctl import Control
from sdn.network import Network
from sdn.pipeline import BRIDGE
from sdn.view import Peer, View

log = logging.getLogger(__name__)

ECHO_SECONDS = 1.0


class Queries:
    """Run `loop` and `mirror` beside the network."""

    def __init__(self, client: Client, node: str, network: Network, control: Control) -> None:
        self.loop = Loop("queries", self._answer_all, Pace())
        self.mirror = Mirror(client, NodeQuery, field_selector=f"spec.nodeName={node}", on_change=self.loop.wake)
        self._client = client
        self._network = network
        self._control = control

    async def _answer_all(self) -> None:
        waiting = [query for query in self.mirror.items.values() if not query.status.answered]
        for query in waiting:
            status = await self._answer(query)
            try:
                await self._client.update_status(replace(query, status=replace(status, answered=True)))
            except NotFound:
                continue
            except ClientError as error:
                raise NotReady(str(error)) from None

    async def _answer(self, query: NodeQuery) -> NodeQueryStatus:
        view = self._network.view
        if query.spec.trace is None:
            return NodeQueryStatus(report=await self._report(view))
        if view is None:
            return NodeQueryStatus(error=self._network.unready)
        try:
            return await self._trace(query.spec.trace, view)
        except (trace.Unaskable, DriverError) as error:
            return NodeQueryStatus(error=str(error))

    async def _trace(self, asked: TraceQuestion, view: View) -> NodeQueryStatus:
        text = await self._control.trace(BRIDGE, trace.question(asked, view))
        return NodeQueryStatus(trace=trace.answer(text, view))

    async def _report(self, view: View | None) -> NetworkReport:
        known = self._network.report()
        if view is None:
            return known
        return replace(known, round_trips=await self._round_trips(view))

    async def _round_trips(self, view: View) -> dict[str, float]:
        peers = sorted(view.peers)
        async with Echo(view.node.gateway) as echo:
            times = await asyncio.gather(*(echo.milliseconds(_gateway(peer), ECHO_SECONDS) for peer in peers))
        return {peer.name: -1.0 if took is None else took for peer, took in zip(peers, times, strict=True)}


def _gateway(peer: Peer) -> str:
    return str(peer.subnet.network_address + 1)
