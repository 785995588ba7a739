"""Random attempts of a pod to reach others through services, and which of them may succeed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from random import Random

from sdn.pipeline.tables import HAIRPIN_IP
from sdn.topology import GLOBAL_VNID, mac_of
from tests.testbed import frames
from tests.testbed.isolation.attempts import STRANGER, Attempt, ClusterLayout, Tunnel, may_reach
from tests.testbed.isolation.world import RunningPod

CALLER_PORT, BACKEND_PORT = 40000, 8080
_calls_begun = itertools.count()

Front = tuple[IPv4Address, int]


@dataclass(frozen=True, slots=True)
class OfferedService:
    """A service for UDP with one backend. `fronts` are its frontends by description.

    If `is_elsewhere` is True, the backend is not the named pod, but `Layout.outside`. `node_port` is a frontend at the
    address of every node, and none at the address of a gateway.
    """

    name: str
    project: str
    fronts: Mapping[str, Front]
    node_port: int
    backend: RunningPod
    is_elsewhere: bool = False

    def is_kept(self, vnids: Mapping[str, int]) -> bool:
        """Return whether the service may have the backend: no pod with another VNID."""
        return self.is_elsewhere or vnids[self.project] == vnids[self.backend.project]

    def arrives(self, layout: ClusterLayout, source: RunningPod) -> bool:
        """Return whether a packet of a pod to a frontend reaches the backend, according to the model."""
        vnid = layout.vnid(source)
        may_connect = may_reach(vnid, layout.vnids[self.project]) and self.is_kept(layout.vnids)
        return may_connect and (self.is_elsewhere or may_reach(vnid, layout.vnid(self.backend)))


def service_attempts(
    layout: ClusterLayout, offers: tuple[OfferedService, ...], source: RunningPod, dice: Random, many: int
) -> Iterator[Attempt]:
    """Yield `many` attempts of one pod, half of them honest. The backend of a service does not try that service."""
    others = [offer for offer in offers if offer.backend != source]
    for _ in range(many):
        offer = dice.choice(others)
        attempt = dice.choice((_call, _call, _call, _at_gateway, _borrowed, _answer, _tunnelled))
        yield attempt(layout, offer, source, dice)


def _call(layout: ClusterLayout, offer: OfferedService, source: RunningPod, dice: Random) -> Attempt:
    """Return a call to a frontend, from a new source port or from one that earlier calls used.

    An earlier call from that port may be of a client with another VNID. A connection to a backend that changes, or that
    is outside, keeps its old backend, so each of those calls is from a new port.
    """
    name, front = dice.choice(list(offer.fronts.items()))
    marker = frames.new_marker()
    is_known = offer.backend.project == offer.project != "default" and not offer.is_elsewhere
    source_port = CALLER_PORT if is_known and dice.random() < 0.5 else _unused()
    frame = _frame(layout, source, front, marker, source_port=source_port)
    return _attempt(f"a call at the {name}", offer, source, offer.arrives(layout, source), frame, marker)


def _at_gateway(layout: ClusterLayout, offer: OfferedService, source: RunningPod, dice: Random) -> Attempt:
    marker, node = frames.new_marker(), dice.choice(list(layout.gateways))
    frame = _frame(layout, source, (layout.gateways[node], offer.node_port), marker, source_port=_unused())
    return _attempt(f"a call at the node port at the gateway of {node}", offer, source, False, frame, marker)


def _borrowed(layout: ClusterLayout, offer: OfferedService, source: RunningPod, dice: Random) -> Attempt:
    """Return a call with the source address of a permitted client or of the service itself, or the hairpin address."""
    name, front = dice.choice([*offer.fronts.items(), ("hairpin address", (HAIRPIN_IP, BACKEND_PORT))])
    pods = [pod.address for pod in layout.pods.values() if pod != source]
    whose = dice.choice([*pods, HAIRPIN_IP, front[0], *layout.gateways.values(), *layout.addresses.values()])
    marker = frames.new_marker()
    frame = _frame(layout, source, front, marker, sender=whose)
    return _attempt(f"a call at the {name} from {whose}", offer, source, False, frame, marker)


def _answer(layout: ClusterLayout, offer: OfferedService, source: RunningPod, dice: Random) -> Attempt:
    """Return a packet from a backend's port to a client port, with the pod's own source address or a forged one.

    With its own address it is a packet like any other.
    """
    target = dice.choice([pod for pod in layout.pods.values() if pod != source])
    destination, marker = (target.address, CALLER_PORT), frames.new_marker()
    whose = dice.choice(
        (source.address, offer.backend.address, HAIRPIN_IP, *(front[0] for front in offer.fronts.values()))
    )
    friends = may_reach(layout.vnid(source), layout.vnid(target))
    frame = _frame(layout, source, destination, marker, sender=whose, source_port=BACKEND_PORT)
    return Attempt(f"an answer from {whose}", source, target, friends and whose == source.address, frame, marker)


def _tunnelled(layout: ClusterLayout, offer: OfferedService, source: RunningPod, dice: Random) -> Attempt:
    """Return a packet to a service through a tunnel. It arrives from no sender."""
    name, front = dice.choice([*offer.fronts.items(), ("hairpin address", (HAIRPIN_IP, BACKEND_PORT))])
    peers = [address for node, address in layout.addresses.items() if node != offer.backend.node]
    tunnel = Tunnel(dice.choice([*peers, STRANGER]), dice.choice((GLOBAL_VNID, layout.vnid(offer.backend))))
    marker = frames.new_marker()
    frame = _frame(layout, source, front, marker)
    return Attempt(f"a call at the {name} through a tunnel", source, offer.backend, False, frame, marker, tunnel=tunnel)


def _attempt(
    name: str, offer: OfferedService, source: RunningPod, arrives: bool, frame: bytes, marker: bytes
) -> Attempt:
    """Return an attempt. The frame of one that must not arrive may be seen in a tunnel, because its target node drops
    it.
    """
    text = f"{name} of {offer.name}"
    return Attempt(text, source, offer.backend, arrives, frame, marker, outside=arrives and offer.is_elsewhere)


def _unused() -> int:
    """Return a source port that no recent call used: a connection that was permitted keeps its source port."""
    return 10000 + next(_calls_begun) % 50000


def _frame(
    layout: ClusterLayout,
    source: RunningPod,
    destination: Front,
    marker: bytes,
    sender: IPv4Address | None = None,
    source_port: int = CALLER_PORT,
) -> bytes:
    address, port = destination
    body = frames.udp(sender or source.address, address, marker, port, source_port=source_port)
    return frames.ethernet(mac_of(layout.gateways[source.node]), source.mac, frames.IPV4, body)
