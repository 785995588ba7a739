"""Writes Events on pods and services whose packets this node drops: the flows of the datapath are read at times.

Nothing is added to the path of packets. Reading blocks the main thread of ovs-vswitchd, about 14 µs for each flow, so a
datapath with many flows is not read, and the others only for a thousandth of the time. ADR 0036 has the figures.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from ipaddress import IPv4Address
from typing import Generic

from msgspec.structs import replace

from api.client.client import Client
from api.client.warning_events import write_warning_once
from api.core.events import EventSource, object_reference
from api.core.pod import Pod
from api.meta.types import ObjectReference
from api.network.queries import TraceRequest, TraceResult
from reconcile.errors import DriverError
from sdn.cniserver.attacher import PodAttacher
from sdn.cniserver.pod_ports import PodIdentity
from sdn.drivers.diagnostics import OvsAppctl
from sdn.model.service_port import ServicePortInfo
from sdn.network_state import NetworkState
from sdn.pipeline.drops import DropReason
from sdn.proxy.service_map import ServiceMap
from sdn.proxy.service_ports import Key
from sdn.query.dropped_packets import (
    SENTENCES,
    DroppedPacket,
    P,
    RefusedPacket,
    datapath_size,
    dropped_packets,
    event_message,
    missing_port_message,
    refused_message,
    refused_packets,
    service_message,
)
from sdn.query.trace import InvalidTrace
from sdn.topology import GLOBAL_VNID, NodeNetwork, gateway_of

log = logging.getLogger(__name__)

COMPONENT, REASON = "podlane-sdn", "PacketsDropped"

SAMPLE_SECONDS = 10.0
"""Seconds between samples. The datapath keeps a flow about as long after its last packet."""

MAX_FLOWS = 5_000
"""Flows of a datapath that is read."""

PAUSE_FACTOR = 1_000.0
"""The pause after a sample is this many times as long as the sample took, if that is longer than SAMPLE_SECONDS."""

MAX_SECONDS_PER_FLOW = 1e-4
"""Seconds for which the switch is busy with one flow, at most. A dump that took longer has waited for the processor."""

MAX_TRACES, MAX_TRACES_PER_POD = 8, 2
"""Packets of one sample whose reason is looked up."""

MAX_EVENTS, MAX_EVENTS_PER_PROJECT, MAX_EVENTS_PER_POD, FORGET_SECONDS = 60, 12, 3, 3600.0
"""Events on senders that this node writes in FORGET_SECONDS, after which the API server has deleted an event. A project
gets its first one also when there are MAX_EVENTS."""

MAX_REFUSED_PER_POD = 1
"""Events on a receiver: there is only one text. The other limits are those of senders, and counted separately."""

RETRACE_SECONDS = 600.0
"""After this time, a packet whose reason makes no event is looked up again: its reason may be another one."""


def pause_after(seconds: float) -> float:
    """Return the seconds until the next sample, after one that kept the switch busy for `seconds`."""
    return max(SAMPLE_SECONDS, PAUSE_FACTOR * seconds)


Trace = Callable[[TraceRequest, NodeNetwork], Awaitable[TraceResult]]


class ReportedDrops(Generic[P]):
    """The packets that have an event or need none, and the limits of events. No project takes the events of another.

    A pod gets `events_per_pod` events in FORGET_SECONDS.
    """

    def __init__(self, events_per_pod: int) -> None:
        self._events_per_pod = events_per_pod
        self._reported: dict[P, float] = {}
        """Packet → time of its event."""
        self._dismissed: dict[P, float] = {}
        """Packet → time at which its reason was one without an event."""

    def select(self, packets: Iterable[P], now: float) -> list[P]:
        """Return the packets to look up now: none that has an event or needs none, and few of each pod and project.

        Projects of which fewer packets were looked up come first. A project without an event gets one, whatever others
        have.
        """
        self._reported = {packet: at for packet, at in self._reported.items() if now - at < FORGET_SECONDS}
        self._dismissed = {packet: at for packet, at in self._dismissed.items() if now - at < RETRACE_SECONDS}
        events, selected = Counter(packet.pod for packet in self._reported), Counter[object]()
        projects = Counter(packet.pod.namespace for packet in self._reported)
        looked_up = projects + Counter(packet.pod.namespace for packet in self._dismissed)
        chosen: list[P] = []
        for packet in sorted(packets, key=lambda packet: looked_up[packet.pod.namespace]):
            if len(chosen) == MAX_TRACES:
                break
            project = packet.pod.namespace
            is_full = len(self._reported) + len(chosen) >= MAX_EVENTS and projects[project]
            if is_full or packet in self._reported or packet in self._dismissed:
                continue
            limit = min(MAX_TRACES_PER_POD, self._events_per_pod - events[packet.pod])
            if selected[packet.pod] < limit and projects[project] < MAX_EVENTS_PER_PROJECT:
                selected[packet.pod] += 1
                projects[project] += 1
                chosen.append(packet)
        return chosen

    def add(self, packet: P, now: float) -> None:
        """Record that a packet has an event."""
        self._reported[packet] = now

    def dismiss(self, packet: P, now: float) -> None:
        """Record that a packet needs no event."""
        self._dismissed[packet] = now


class DropEvents:
    """Samples dropped packets until cancelled, and writes events. `trace` says what the switch does with a packet."""

    def __init__(
        self,
        client: Client,
        node_name: str,
        *,
        state: NetworkState,
        attacher: PodAttacher,
        appctl: OvsAppctl,
        trace: Trace,
        service_map: ServiceMap,
    ) -> None:
        self._client = client
        self._source = EventSource(component=COMPONENT, host=node_name)
        self._state = state
        self._attacher = attacher
        self._appctl = appctl
        self._trace = trace
        self._service_map = service_map
        self._dropped = ReportedDrops[DroppedPacket](MAX_EVENTS_PER_POD)
        self._refused = ReportedDrops[RefusedPacket](MAX_REFUSED_PER_POD)

    async def run(self) -> None:
        """Sample until cancelled."""
        pause = SAMPLE_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = SAMPLE_SECONDS
            try:
                pause = pause_after(await self._sample())
            except DriverError as error:
                log.debug("dropped packets not sampled", extra={"error": str(error)})

    async def _sample(self) -> float:
        """Read the flows, and report the packets. Return the seconds for which the switch was busy with it, at most."""
        network = self._state.network
        size = datapath_size(await self._appctl.datapaths())
        if network is None or size is None or size.flows > MAX_FLOWS:
            return 0.0
        start = time.monotonic()
        text = await self._appctl.datapath_flows(size.name)
        duration = min(time.monotonic() - start, MAX_SECONDS_PER_FLOW * size.flows)
        pods = self._attacher.pods_by_interface()
        refused: list[RefusedPacket] = []
        for packet in self._dropped.select(dropped_packets(text, pods), time.monotonic()):
            reason = await self._drop_reason(_packet_of_pod(packet), network)
            if reason not in SENTENCES:
                self._dropped.dismiss(packet, time.monotonic())
            elif await self._report(packet, reason, network):
                self._dropped.add(packet, time.monotonic())
                if reason == DropReason.OTHER_PROJECT.label:
                    refused += _refused_here(packet, pods.values(), network)
        refused += refused_packets(text, pods)
        for received in self._refused.select(refused, time.monotonic()):
            if not await self._is_refused(received, network):
                self._refused.dismiss(received, time.monotonic())
            elif await self._report_refused(received):
                self._refused.add(received, time.monotonic())
        return duration

    async def _is_refused(self, packet: RefusedPacket, network: NodeNetwork) -> bool:
        """Return whether the switch drops such a packet now because its receiver is of another project."""
        if packet.node == network.node.address:
            return True  # looked up for its sender
        request = _packet_from_tunnel(packet, network)
        return request is not None and await self._drop_reason(request, network) == DropReason.OTHER_PROJECT.label

    async def _drop_reason(self, request: TraceRequest, network: NodeNetwork) -> str:
        """Return why the switch drops such a packet now; empty if it does not."""
        try:
            result = await self._trace(request, network)
        except InvalidTrace:
            return ""
        return next((step.drop_reason for step in result.steps if step.drop_reason), "")

    async def _report(self, packet: DroppedPacket, reason: str, network: NodeNetwork) -> bool:
        """Write the events about a packet: on its sender, and on the service to which it was sent.

        Returns False if the API server could not be reached.
        """
        sender, port = _pod_reference(packet.pod), None
        if reason == DropReason.NO_SERVICE.label:
            port = self._service_port_at(packet.target)
        if port is None:
            return await self._write(sender, event_message(packet, reason))
        service = (port.key.namespace, port.key.service)
        is_usable = port.vnid == GLOBAL_VNID or _vnid_at(packet.pod.address, network) in (GLOBAL_VNID, port.vnid)
        message = missing_port_message(packet, service) if is_usable else event_message(packet, reason)
        about = self._service_reference(service)
        if not await self._write(sender, message):
            return False
        return about is None or await self._write(about, service_message(packet, service, is_usable=is_usable))

    def _service_port_at(self, address: IPv4Address) -> ServicePortInfo | None:
        """Return a port of the service that has this cluster IP."""
        return next((port for port in self._service_map.ports.values() if port.cluster_ip == address), None)

    def _service_reference(self, key: Key) -> ObjectReference | None:
        service = self._service_map.service(key)
        return None if service is None else replace(object_reference(service), resource_version="")

    async def _report_refused(self, packet: RefusedPacket) -> bool:
        """Write the event on the receiver of a packet. The log says for the administrator who sent it.

        Returns False if the API server could not be reached.
        """
        pod = packet.pod
        if not await self._write(_pod_reference(pod), refused_message(pod)):
            return False
        log.info(
            "packet of another project dropped",
            extra={"pod": f"{pod.namespace}/{pod.name}", "vnid": packet.vnid, "from": str(packet.node)},
        )
        return True

    async def _write(self, about: ObjectReference, message: str) -> bool:
        """Return False if the API server could not be reached."""
        return await write_warning_once(self._client, about, REASON, message, self._source)


def _packet_of_pod(packet: DroppedPacket) -> TraceRequest:
    address = str(packet.pod.address)
    return TraceRequest(
        enters="pod",
        source=address,
        sender=address,
        target=str(packet.target),
        protocol=packet.protocol,
        port=packet.port,
    )


def _packet_from_tunnel(packet: RefusedPacket, network: NodeNetwork) -> TraceRequest | None:
    """Return such a packet; None if its node is not of the cluster any more. Which pod sent it does not matter."""
    for peer in network.peers:
        if peer.address == packet.node:
            return TraceRequest(
                enters="tunnel",
                source=str(gateway_of(peer.subnet)),
                target=str(packet.pod.address),
                tunnel_source=str(peer.address),
                vnid=packet.vnid,
            )
    return None


def _refused_here(packet: DroppedPacket, pods: Iterable[PodIdentity], network: NodeNetwork) -> Iterator[RefusedPacket]:
    """Yield a packet between two pods of this node as its receiver sees it."""
    for pod in pods:
        if pod.address == packet.target:
            yield RefusedPacket(pod, network.node.address, _vnid_at(packet.pod.address, network))


def _vnid_at(address: IPv4Address, network: NodeNetwork) -> int:
    """Return the VNID of a pod of this node that has one."""
    return next(pod.vnid for pod in network.pods if pod.address == address)


def _pod_reference(pod: PodIdentity) -> ObjectReference:
    return ObjectReference(
        api_version=Pod.API_VERSION, kind=Pod.KIND, namespace=pod.namespace, name=pod.name, uid=pod.uid
    )
