"""Cookies of flows: the owner of a flow, and whether the flow drops packets. Pure.

The upper half of a cookie has the category of the owner (bits 32 to 39), the drop bit (40) and the drop reason (48 to
55, `drops.py`). The lower half tells owners of one category apart.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple
from zlib import crc32

from sdn.topology import AttachedPod, Peer, Pod


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


def pod_cookie(pod: Pod | AttachedPod) -> int:
    """Return the cookie of a pod's flows."""
    return make_cookie(CookieCategory.POD, int(pod.address))


def service_cookie(group_id: int = 0) -> int:
    """Return the cookie of a service port's flows; 0 stands for flows that service ports share."""
    return make_cookie(CookieCategory.SERVICE, group_id)


def category_of(cookie: int) -> int:
    """Return the category of a flow's owner, also one that is not ours."""
    return cookie >> 32 & 0xFF


def owner_of(cookie: int) -> CookieOwner | None:
    """Return the owner of a flow with this cookie, or None if its category is not ours."""
    category = category_of(cookie)
    return CookieOwner(CookieCategory(category), cookie & 0xFFFFFFFF) if category in _CATEGORIES else None
