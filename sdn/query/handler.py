"""Answers NodeQuery objects of this node: traces, captures and reports."""

from __future__ import annotations

import asyncio
import logging
from ipaddress import IPv4Address

from msgspec.structs import replace

from api.client.client import ApiError, Client, NotFound, Unreachable
from api.client.informer import Informer
from api.network.queries import (
    NetworkReport,
    NodeQuery,
    NodeQueryStatus,
    ServicesRequest,
    ServicesResult,
    TraceRequest,
    TraceResult,
)
from reconcile.errors import DriverError, NotReady
from reconcile.loop import Loop, LoopTiming
from sdn.cniserver.attacher import PodAttacher
from sdn.drivers.diagnostics import IcmpEcho, OvsAppctl, capture_packets
from sdn.metrics import Drift
from sdn.model.host import BRIDGE
from sdn.network_state import NetworkState
from sdn.proxy.proxier import Proxier
from sdn.query import trace
from sdn.query.reports import network_report, services_report
from sdn.topology import NodeNetwork, Peer

log = logging.getLogger(__name__)

ECHO_SECONDS = 1.0


class NodeQueryHandler:
    """Answers beside one another: a capture takes its time, a trace does not wait for it."""

    def __init__(
        self,
        client: Client,
        node: str,
        *,
        state: NetworkState,
        attacher: PodAttacher,
        drift: Drift,
        control: OvsAppctl,
        proxier: Proxier,
    ) -> None:
        self._loop = Loop("queries", self._take_up, LoopTiming())
        self._mirror = Informer(
            client,
            NodeQuery,
            field_selector=f"spec.nodeName={node}",
            on_change=self._loop.wake,
            optional=True,
            accepts=lambda query: query.spec.node_name == node,
        )
        self._client = client
        self._state = state
        self._attacher = attacher
        self._drift = drift
        self._control = control
        self._proxier = proxier
        self._working: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._mirror.run())
                tasks.create_task(self._loop.run())
        finally:
            for task in self._working.values():
                task.cancel()

    async def _take_up(self) -> None:
        """A question is at work until the mirror shows its answer: it is not answered twice."""
        waiting = {query.metadata.uid: query for query in self._mirror.items.values() if not query.status.answered}
        self._working = {uid: task for uid, task in self._working.items() if uid in waiting or not task.done()}
        for uid in waiting.keys() - self._working.keys():
            self._working[uid] = asyncio.create_task(self._handle(waiting[uid]))

    async def _handle(self, query: NodeQuery) -> None:
        try:
            await self._write(query, await self._answer(query))
        except NotFound:
            return
        except ApiError as error:
            await self._write(query, NodeQueryStatus(error=f"the master refused the answer: {error}"))

    async def _write(self, query: NodeQuery, status: NodeQueryStatus) -> None:
        try:
            await self._client.update_status(replace(query, status=replace(status, answered=True)))
        except Unreachable as error:
            log.warning("a question is not answered", extra={"query": query.metadata.name, "error": error})
            self._working.pop(query.metadata.uid, None)  # to be asked again when the master is back

    async def _answer(self, query: NodeQuery) -> NodeQueryStatus:
        view, asked = self._state.network, query.spec
        if asked.report:
            return NodeQueryStatus(report=await self._report(view))
        if view is None:
            return NodeQueryStatus(error=self._state.not_ready_reason)
        try:
            if asked.services is not None:
                return NodeQueryStatus(services=self._services(asked.services))
            if asked.capture is not None:
                device = self._attacher.host_interface_of(IPv4Address(asked.capture.pod))
                return NodeQueryStatus(pcap=await capture_packets(device, asked.capture.packets, asked.capture.seconds))
            question = asked.trace or TraceRequest(enters="node", source="", target="")
            return NodeQueryStatus(trace=await self._trace(question, view))
        except (trace.InvalidTrace, DriverError) as error:
            return NodeQueryStatus(error=str(error))

    def _services(self, question: ServicesRequest) -> ServicesResult:
        """Return the ports that this node serves. Raises NotReady until the first pass of the proxy."""
        if self._proxier.config is None:
            raise NotReady(f"no services yet: {self._proxier.unready}")
        return services_report(question, self._proxier.services.served)

    async def _trace(self, asked: TraceRequest, view: NodeNetwork) -> TraceResult:
        async def ask(one: TraceRequest) -> TraceResult:
            return trace.parse_trace(await self._control.trace(BRIDGE, trace.trace_request(one, view)), view)

        config, services = self._proxier.config, self._proxier.services
        found = None
        if config is not None:
            found = trace.service_call(asked, view.node, config, services.ports.values(), services.served)
        return await (ask(asked) if found is None else trace.trace_service_call(asked, view, found, ask))

    async def _report(self, view: NodeNetwork | None) -> NetworkReport:
        attached = self._attacher.attached_pods() if view is not None else ()
        known = network_report(self._state, len(attached), self._drift.count)
        if view is None:
            return known
        return replace(known, round_trips=await self._round_trips(view))

    async def _round_trips(self, view: NodeNetwork) -> dict[str, float]:
        peers = sorted(view.peers)
        async with IcmpEcho(view.node.gateway) as echo:
            times = await asyncio.gather(*(echo.milliseconds(_gateway(peer), ECHO_SECONDS) for peer in peers))
        return {peer.name: -1.0 if took is None else took for peer, took in zip(peers, times, strict=True)}


def _gateway(peer: Peer) -> str:
    return str(peer.subnet.network_address + 1)
