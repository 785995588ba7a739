"""Cookies of flows: the owner of a flow, and whether the flow drops packets. Pure.

The upper half of a cookie has the category of the owner and the drop bit; the lower half tells owners of one category
apart.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple
from zlib import crc32

from sdn.model.flow import Action, BridgeLayout, Flow
from sdn.model.match import Match
from sdn.pipeline.renumbering import renumbered_flow, renumbered_group
from sdn.pipeline.tables import Priority, Table
from sdn.topology import Peer, Pod


class CookieCategory(IntEnum):
    """Categories of owners of flows."""

    NODE = 1
    PEER = 2
    POD = 3
    DOCKER = 4
    SERVICE = 5


class CookieOwner(NamedTuple):
    """Owner of a flow: its category, and a key that tells it apart.

    The key is the IP address of a pod, a hash of a peer's name, or the group id of a service port.
    """

    category: CookieCategory
    key: int


def make_cookie(category: CookieCategory, key: int = 0) -> int:
    """Return the cookie of an owner's flows."""
    return category << 32 | key


NODE_COOKIE = make_cookie(CookieCategory.NODE)
DOCKER_COOKIE = make_cookie(CookieCategory.DOCKER)

DROP_BIT = 1 << 40
"""Set in the cookies of all flows that drop packets, so that the counters of these flows alone can be read."""

_CATEGORIES = frozenset(CookieCategory)


def peer_cookie(peer: Peer) -> int:
    """Return the cookie of a peer's flows."""
    return make_cookie(CookieCategory.PEER, crc32(peer.name.encode()))


def pod_cookie(pod: Pod) -> int:
    """Return the cookie of a pod's flows."""
    return make_cookie(CookieCategory.POD, int(pod.address))


def service_cookie(group_id: int = 0) -> int:
    """Return the cookie of a service port's flows; 0 stands for flows that service ports share."""
    return make_cookie(CookieCategory.SERVICE, group_id)


def owner_of(cookie: int) -> CookieOwner | None:
    """Return the owner of a flow with this cookie, or None if the cookie is not ours."""
    category, key = (cookie & ~DROP_BIT) >> 32, cookie & 0xFFFFFFFF
    return CookieOwner(CookieCategory(category), key) if category in _CATEGORIES else None


def make_flow(table: Table, priority: Priority, match: Match, *actions: Action, cookie: int = NODE_COOKIE) -> Flow:
    """Return a flow of the pipeline. Without actions, its cookie gets the drop bit."""
    return Flow(int(table), int(priority), match, actions, cookie if actions else cookie | DROP_BIT)


class Partition(StrEnum):
    """The partitions of the bridge: flows that follow from the network, and those that follow from services."""

    NODE = "node"
    SERVICE = "service"


def is_service_flow(flow: Flow) -> bool:
    """Return True if the flow belongs to services."""
    return (flow.cookie & ~DROP_BIT) >> 32 == CookieCategory.SERVICE


def partition_of(flow: Flow) -> Partition:
    """Return the partition of a flow."""
    return Partition.SERVICE if is_service_flow(flow) else Partition.NODE


BRIDGE_LAYOUT = BridgeLayout(
    partition_of=partition_of,
    unknown_flows=Partition.NODE,
    groups=Partition.SERVICE,
    learned_table=Table.SESSION_AFFINITY,
    renumbered_flow=renumbered_flow,
    renumbered_group=renumbered_group,
)
