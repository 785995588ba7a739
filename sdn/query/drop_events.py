"""Writes an Event on a pod whose packets this node drops: the flows of the datapath are read from time to time.

Nothing is added to the path of packets. Reading blocks the main thread of ovs-vswitchd, about 14 µs for each flow, so a
datapath with many flows is not read, and the others only for a thousandth of the time. ADR 0036 has the figures.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from api.client.client import Client
from api.client.warning_events import write_warning_once
from api.core.events import EventSource
from api.core.pod import Pod
from api.meta.types import ObjectReference
from api.network.queries import TraceRequest, TraceResult
from reconcile.errors import DriverError
from sdn.cniserver.attacher import PodAttacher
from sdn.drivers.diagnostics import OvsAppctl
from sdn.network_state import NetworkState
from sdn.query.dropped_packets import (
    SENTENCES,
    DroppedPacket,
    datapath_size,
    dropped_packets,
    event_message,
)
from sdn.query.trace import InvalidTrace
from sdn.topology import NodeNetwork

log = logging.getLogger(__name__)

COMPONENT, REASON = "podlane-sdn", "PacketsDropped"

SAMPLE_SECONDS = 10.0
"""Seconds between samples. The datapath keeps a flow about as long after its last packet."""

MAX_FLOWS = 5_000
"""Flows of a datapath that is read."""

PAUSE_FACTOR = 1_000.0
"""The pause after a sample is this many times as long as the sample took, if that is longer than SAMPLE_SECONDS."""

MAX_TRACES, MAX_TRACES_PER_POD = 8, 2
"""Packets of one sample whose reason is looked up."""

MAX_EVENTS, MAX_EVENTS_PER_PROJECT, MAX_EVENTS_PER_POD, FORGET_SECONDS = 60, 12, 3, 3600.0
"""Events that this node writes in FORGET_SECONDS, after which the API server has deleted an event."""

RETRACE_SECONDS = 600.0
"""After this time, a packet whose reason makes no event is looked up again: its reason may be another one."""


def pause_after(seconds: float) -> float:
    """Return the seconds until the next sample, after one that kept the switch busy for `seconds`."""
    return max(SAMPLE_SECONDS, PAUSE_FACTOR * seconds)


Trace = Callable[[TraceRequest, NodeNetwork], Awaitable[TraceResult]]


class ReportedDrops:
    """The packets that have an event or need none, and the limits of events. No project takes the events of another."""

    def __init__(self) -> None:
        self._reported: dict[DroppedPacket, float] = {}
        """Packet → time of its event."""
        self._dismissed: dict[DroppedPacket, float] = {}
        """Packet → time at which its reason was one without an event."""

    def select(self, packets: Iterable[DroppedPacket], now: float) -> list[DroppedPacket]:
        """Return the packets to look up now: none that has an event or needs none, and few of each pod and project."""
        self._reported = {packet: at for packet, at in self._reported.items() if now - at < FORGET_SECONDS}
        self._dismissed = {packet: at for packet, at in self._dismissed.items() if now - at < RETRACE_SECONDS}
        events, selected = Counter(packet.pod for packet in self._reported), Counter[object]()
        projects = Counter(packet.pod.namespace for packet in self._reported)
        chosen: list[DroppedPacket] = []
        for packet in packets:
            if len(chosen) == MAX_TRACES or len(self._reported) + len(chosen) >= MAX_EVENTS:
                break
            if packet in self._reported or packet in self._dismissed:
                continue
            project = packet.pod.namespace
            limit = min(MAX_TRACES_PER_POD, MAX_EVENTS_PER_POD - events[packet.pod])
            if selected[packet.pod] < limit and projects[project] < MAX_EVENTS_PER_PROJECT:
                selected[packet.pod] += 1
                projects[project] += 1
                chosen.append(packet)
        return chosen

    def add(self, packet: DroppedPacket, now: float) -> None:
        """Record that a packet has an event."""
        self._reported[packet] = now

    def dismiss(self, packet: DroppedPacket, now: float) -> None:
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
    ) -> None:
        self._client = client
        self._source = EventSource(component=COMPONENT, host=node_name)
        self._state = state
        self._attacher = attacher
        self._appctl = appctl
        self._trace = trace
        self._reported = ReportedDrops()

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
        """Read the flows, and report the packets. Return the seconds for which the switch was busy with it."""
        network = self._state.network
        size = datapath_size(await self._appctl.datapaths())
        if network is None or size is None or size.flows > MAX_FLOWS:
            return 0.0
        start = time.monotonic()
        text = await self._appctl.datapath_flows(size.name)
        duration = time.monotonic() - start
        packets = dropped_packets(text, self._attacher.pods_by_interface())
        for packet in self._reported.select(packets, time.monotonic()):
            reason = await self._drop_reason(packet, network)
            if reason not in SENTENCES:
                self._reported.dismiss(packet, time.monotonic())
            elif await self._write(packet, event_message(packet, reason)):
                self._reported.add(packet, time.monotonic())
        return duration

    async def _drop_reason(self, packet: DroppedPacket, network: NodeNetwork) -> str:
        """Return why the switch drops such a packet now; empty if it does not."""
        address = str(packet.pod.address)
        request = TraceRequest(
            enters="pod",
            source=address,
            sender=address,
            target=str(packet.target),
            protocol=packet.protocol,
            port=packet.port,
        )
        try:
            result = await self._trace(request, network)
        except InvalidTrace:
            return ""
        return next((step.drop_reason for step in result.steps if step.drop_reason), "")

    async def _write(self, packet: DroppedPacket, message: str) -> bool:
        """Return False if the API server could not be reached."""
        pod = packet.pod
        about = ObjectReference(
            api_version=Pod.API_VERSION, kind=Pod.KIND, namespace=pod.namespace, name=pod.name, uid=pod.uid
        )
        return await write_warning_once(self._client, about, REASON, message, self._source)
