"""Answers the NodeQuery objects of this node: traces, captures and reports."""

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
from reconcile.icmp import IcmpEcho
from reconcile.loop import Loop, LoopTiming
from sdn.cniserver.attacher import PodAttacher
from sdn.drivers.diagnostics import OvsAppctl, capture_packets
from sdn.metrics import Drift
from sdn.model.host import BRIDGE
from sdn.network_state import NetworkState
from sdn.proxy.proxier import Proxier
from sdn.query import trace
from sdn.query.reports import network_report, services_report
from sdn.topology import NodeNetwork, gateway_of

log = logging.getLogger(__name__)

ECHO_TIMEOUT_SECONDS = 1.0


class NodeQueryHandler:
    """Answers NodeQuery objects concurrently, so that a trace does not wait for a long capture."""

    def __init__(
        self,
        client: Client,
        node_name: str,
        *,
        state: NetworkState,
        attacher: PodAttacher,
        drift: Drift,
        appctl: OvsAppctl,
        proxier: Proxier,
    ) -> None:
        self._loop = Loop("queries", self._start_pending, LoopTiming())
        self._informer = Informer(
            client,
            NodeQuery,
            field_selector=f"spec.nodeName={node_name}",
            on_change=self._loop.wake,
            optional=True,
            accepts=lambda query: query.spec.node_name == node_name,
        )
        self._client = client
        self._state = state
        self._attacher = attacher
        self._drift = drift
        self._appctl = appctl
        self._proxier = proxier
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Answer queries until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._informer.run())
                tasks.create_task(self._loop.run())
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def _start_pending(self) -> None:
        """Start a task for each new query.

        A task is kept until the informer shows its answer, so that no query is answered twice.
        """
        pending = {query.metadata.uid: query for query in self._informer.items.values() if not query.status.answered}
        self._tasks = {uid: task for uid, task in self._tasks.items() if uid in pending or not task.done()}
        for uid in pending.keys() - self._tasks.keys():
            self._tasks[uid] = asyncio.create_task(self._handle(pending[uid]))

    async def _handle(self, query: NodeQuery) -> None:
        try:
            await self._write_status(query, await self._answer(query))
        except NotFound:
            return
        except ApiError as error:
            await self._write_status(query, NodeQueryStatus(error=f"the master refused the answer: {error}"))

    async def _write_status(self, query: NodeQuery, status: NodeQueryStatus) -> None:
        try:
            await self._client.update_status(replace(query, status=replace(status, answered=True)))
        except Unreachable as error:
            log.warning("query not answered", extra={"query": query.metadata.name, "error": error})
            # The informer lists the query again when the master is back, and then it is answered anew.
            self._tasks.pop(query.metadata.uid, None)

    async def _answer(self, query: NodeQuery) -> NodeQueryStatus:
        network, spec = self._state.network, query.spec
        if spec.report:
            return NodeQueryStatus(report=await self._report(network))
        if network is None:
            return NodeQueryStatus(error=self._state.not_ready_reason)
        try:
            if spec.services is not None:
                return NodeQueryStatus(services=self._services(spec.services))
            if spec.capture is not None:
                device = self._attacher.host_interface_of(IPv4Address(spec.capture.pod))
                return NodeQueryStatus(pcap=await capture_packets(device, spec.capture.packets, spec.capture.seconds))
            request = spec.trace or TraceRequest(enters="node", source="", target="")
            return NodeQueryStatus(trace=await self.trace(request, network))
        except (trace.InvalidTrace, DriverError) as error:
            return NodeQueryStatus(error=str(error))

    def _services(self, request: ServicesRequest) -> ServicesResult:
        """Return the ports that this node proxies. Raises NotReady until the first pass of the proxier."""
        if self._proxier.service_map.config is None:
            raise NotReady(f"no services yet: {self._proxier.not_ready_reason}")
        return services_report(request, self._proxier.service_map.states)

    async def trace(self, request: TraceRequest, network: NodeNetwork) -> TraceResult:
        """Return what the switch does with a packet. Raises InvalidTrace and DriverError."""

        async def trace_packet(packet: TraceRequest) -> TraceResult:
            output = await self._appctl.trace(BRIDGE, trace.trace_request(packet, network))
            return trace.parse_trace(output, packet, network)

        services, connection = self._proxier.service_map, None
        if services.config is not None:
            connection = trace.service_connection(request, services.config, services.ports.values(), services.states)
        if connection is None:
            return await trace_packet(request)
        return await trace.trace_service_connection(request, network, connection, trace_packet)

    async def _report(self, network: NodeNetwork | None) -> NetworkReport:
        attached_pods = self._attacher.attached_pods() if network is not None else ()
        report = network_report(self._state, len(attached_pods), self._drift.count)
        if network is None:
            return report
        return replace(report, round_trips=await self._round_trips(network))

    async def _round_trips(self, network: NodeNetwork) -> dict[str, float]:
        """Return the round trip time to the gateway of each peer in milliseconds, -1 if it does not answer."""
        peers = sorted(network.peers)
        async with IcmpEcho(network.node.gateway) as echo:
            times = await asyncio.gather(
                *(echo.milliseconds(str(gateway_of(peer.subnet)), ECHO_TIMEOUT_SECONDS) for peer in peers)
            )
        return {
            peer.name: -1.0 if milliseconds is None else milliseconds
            for peer, milliseconds in zip(peers, times, strict=True)
        }
