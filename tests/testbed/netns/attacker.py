"""An attacker in every pod of a cluster and on every node's cable. It sends every attempt and listens everywhere.

Every frame has its own marker. So the attempt of a frame is known, however late it arrives.
"""

from __future__ import annotations

import itertools
import re
import select
import time
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from random import Random

from tests.testbed.frames import IPV4, marker_in, marker_number, new_marker
from tests.testbed.isolation.attempts import Attempt, ClusterLayout, Tunnel, attempts, frame_for_tunnel, permitted_frame
from tests.testbed.isolation.service_attempts import OfferedService, service_attempts
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.raw_socket import RawSocket

BURST = 24
"""Frames that one sender has on the way at a time: what all senders together do fits into the smallest socket buffer
on the way, that of Open vSwitch on a node's cable (212,992 bytes, and a frame takes up to 1,280)."""

CALLS = 16
"""So many times each pod tries to get at services."""

VXLAN_PORT = (4789).to_bytes(2, "big")
TRIES, PATIENCE_SECONDS = 5, 1.0


class Attacker:
    """An attacker. `differences` are lines for people, one for each attempt whose outcome differs from the model."""

    def __init__(self, cluster: PacketWorld, dice: Random) -> None:
        self.differences: dict[str, None] = {}
        self._dice = dice
        self._cluster = cluster
        self._cables = {name: RawSocket(None, node.veth) for name, node in cluster.nodes.items()}
        self._ears = {**{name: cluster.wire(name) for name in cluster.pods}, **self._cables}
        self._gateways = {name: cluster.gateway(name) for name in cluster.nodes}
        self._notes = _Notes()
        self._arrived: set[bytes] = set()

    def close(self) -> None:
        """Let go of the cables."""
        for cable in self._cables.values():
            cable.close()

    def attack(
        self,
        title: str,
        vnids: Mapping[str, int],
        offers: tuple[OfferedService, ...] = (),
        many: int = CALLS,
        *,
        with_forged: bool = True,
    ) -> None:
        """Send every attempt between every two pods of a cluster whose projects have these VNIDs, and call services.

        Without `with_forged`, frames whose outcome does not depend on VNIDs are not sent. The attack ends early if a
        permitted frame is lost for good, because a broken network hides violations.
        """
        self._arrived.clear()
        self._notes.open(title)
        pods = self._cluster.pods
        addresses = {name: node.address for name, node in self._cluster.nodes.items()}
        layout = ClusterLayout(pods, vnids, addresses, self._gateways, self._cluster.lab.site.outside)
        senders: dict[str, list[Attempt]] = {name: [] for name in self._ears}
        for source, target in itertools.permutations(pods.values(), 2):
            for attempt in attempts(layout, source, target, with_forged=with_forged):
                senders[_sender(attempt)].append(attempt)
        for source in pods.values() if offers else ():
            for attempt in service_attempts(layout, offers, source, self._dice, many):
                senders[_sender(attempt)].append(attempt)
        for begin in range(0, max(map(len, senders.values())), BURST):
            if not self._send(
                [next_attempt for queue in senders.values() for next_attempt in queue[begin : begin + BURST]]
            ):
                return

    def overruns(self) -> int:
        """Return the number of frames that the switches had no room for. A frame that the switch never saw tests
        nothing.
        """
        drops = re.compile(r"skmem:.*,d([0-9]+)\)")
        listed = (self._cluster.in_node(node, "ss", "--packet", "--memory", "--all") for node in self._cluster.nodes)
        return sum(int(count) for text in listed for count in drops.findall(text)) + self._cluster.lost_packets()

    def _send(self, burst: list[Attempt]) -> bool:
        """Send attempts until all permitted frames have arrived. Return False if they do not arrive.

        A switch drops frames for a tunnel while it resolves a neighbour or reads the kernel's routes again. Forbidden
        frames may be lost together with permitted ones, so all are sent again.
        """
        self._notes.add(burst)
        honest = {attempt.marker for attempt in burst if attempt.arrives}
        for _ in range(TRIES):
            fences = list(self._fences())
            self._notes.add(fences)
            for attempt in (*burst, *fences):
                for frame in attempt.frames:
                    self._ears[_sender(attempt)].send(self._wrapped(attempt, frame))
            wanted = honest | {fence.marker for fence in fences}
            if self._hear(wanted):
                return True
        for marker in wanted - self._arrived:
            self._record_difference(marker, "is lost")
        return False

    def _wrapped(self, attempt: Attempt, frame: bytes) -> bytes:
        if attempt.tunnel is None:
            return frame
        sender, vnid = attempt.tunnel.sender, attempt.tunnel.vnid
        return self._cluster.in_tunnel(sender, attempt.target.node, vnid, frame)

    def _fences(self) -> Iterator[Attempt]:
        """Sent last, from each sender to each node: when they have come, all that was sent before has been decided.

        Pods of `default` reach all and are reached by all.
        """
        pods = self._cluster.pods.values()
        admins = [pod for pod in pods if pod.project == "default"]
        for node in self._cluster.nodes:
            [near] = [pod for pod in admins if pod.node == node]
            [far] = [pod for pod in admins if pod.node != node]
            neighbour = next(pod for pod in pods if pod.node == node and pod != near)
            for source in pods:
                yield permitted_frame(source, near if source != near else neighbour)
            peer = Tunnel(self._cluster.node_address(far.node), 0)
            yield frame_for_tunnel(far, near, "through a tunnel", True, peer)

    def listen(self, seconds: float) -> None:
        """Take note of all that arrives, until nothing has for so long."""
        while self._take(seconds):
            pass

    def _hear(self, wanted: set[bytes]) -> bool:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while wanted - self._arrived:
            if not self._take(deadline - time.monotonic()):
                return False
        return True

    def _take(self, seconds: float) -> bool:
        """Whatever has come, or comes within this time; whether there was anything."""
        ready = select.select(list(self._ears.values()), [], [], max(0.0, seconds))[0]
        for name, wire in self._ears.items():
            if wire in ready:
                for frame in wire.received():
                    self._judge(name, frame)
        return bool(ready)

    def _judge(self, listener: str, frame: bytes) -> None:
        marker = marker_in(frame)
        attempt = self._notes.attempt(marker)
        if attempt is None:
            return
        if listener in self._cables:
            if not attempt.outside and _is_tunnelled(frame):
                return
            rightly = attempt.outside and attempt.arrives and listener == attempt.source.node
        elif listener == attempt.source.name:
            # An answer of the switch to an ARP request, of a pod to a ping, or of a kernel to a closed port.
            return
        else:
            rightly = attempt.arrives and not attempt.outside and listener == attempt.target.name
        if rightly:
            self._arrived.add(marker)
        else:
            self._record_difference(marker, f"gets through to {listener}")

    def _record_difference(self, marker: bytes, actual: str) -> None:
        attempt = self._notes.attempt(marker)
        assert attempt is not None
        self.differences[f"{attempt.describe(actual)}; {self._notes.title(marker)}"] = None


class _Notes:
    """The attempts by marker. Millions of attempts are of some thousand kinds, and each kind is stored once."""

    def __init__(self) -> None:
        self._first = marker_number(new_marker())
        self._kinds: dict[tuple[object, ...], Attempt] = {}
        self._tried: list[Attempt | None] = []
        self._begins: list[int] = []
        self._titles: list[str] = []

    def open(self, title: str) -> None:
        """Set the title of the following attempts."""
        self._begins.append(marker_number(new_marker()))
        self._titles.append(title)

    def add(self, tried: Iterable[Attempt]) -> None:
        """Take note of attempts."""
        for attempt in tried:
            key = (
                attempt.name,
                attempt.source.name,
                attempt.target.name,
                attempt.arrives,
                attempt.outside,
                attempt.tunnel,
            )
            if key not in self._kinds:
                self._kinds[key] = replace(attempt, frame=b"", marker=b"", first=b"")
            number = marker_number(attempt.marker) - self._first
            self._tried += [None] * (number + 1 - len(self._tried))
            self._tried[number] = self._kinds[key]

    def attempt(self, marker: bytes) -> Attempt | None:
        """Return the attempt with this marker, without its frame; None if the marker is foreign."""
        number = marker_number(marker) - self._first
        return self._tried[number] if 0 <= number < len(self._tried) else None

    def title(self, marker: bytes) -> str:
        """Under which title."""
        return self._titles[bisect(self._begins, marker_number(marker)) - 1]


def _sender(attempt: Attempt) -> str:
    """Return the sender: the pod itself, or the cable of the target's node."""
    return attempt.source.name if attempt.tunnel is None else attempt.target.node


def _is_tunnelled(frame: bytes) -> bool:
    """Return whether a frame is a VXLAN packet. The switch writes no IP options."""
    return frame[12:14] == IPV4.to_bytes(2, "big") and frame[23] == 17 and frame[36:38] == VXLAN_PORT
