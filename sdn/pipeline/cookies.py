"""Cookies of flows: the owner of a flow, and whether the flow drops packets. Pure."""

from __future__ import annotations

from zlib import crc32

from sdn.model.flow import Action, Flow
from sdn.model.match import Match
from sdn.pipeline.tables import Priority, Table
from sdn.topology import Peer, Pod

NODE_COOKIE = 1 << 32
"""Owners in the upper half of a cookie: 1 the node itself, 2 a peer, 3 a pod, 4 Docker, 5 services; the lower half
tells which."""

POD_COOKIES, DOCKER_COOKIE = 3 << 32, 4 << 32
SERVICE_COOKIE = 5 << 32

DROP_BIT = 1 << 40
"""Set in the cookie of every row that drops, so that the switch can be asked for the counters of these alone."""


def is_service_flow(row: Flow) -> bool:
    """Return True if the flow belongs to services."""
    return (row.cookie & ~DROP_BIT) >> 32 == SERVICE_COOKIE >> 32


def peer_cookie(peer: Peer) -> int:
    """The mark on a peer's rows."""
    return 2 << 32 | crc32(peer.name.encode())


def pod_cookie(pod: Pod) -> int:
    """The mark on a pod's rows."""
    return POD_COOKIES | int(pod.address)


def make_flow(table: Table, priority: Priority, match: Match, *actions: Action, cookie: int = NODE_COOKIE) -> Flow:
    """A row named by the words of the pipeline."""
    return Flow(int(table), int(priority), match, actions, cookie if actions else cookie | DROP_BIT)
