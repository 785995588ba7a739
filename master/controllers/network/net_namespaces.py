"""NetNamespaces: a VNID for each namespace, changed on request and released with the namespace. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from api.core.node import Namespace
from api.meta.types import ObjectMeta
from api.network import types
from api.network.conflicts import conflicting_vnids
from api.network.types import (
    CHANGE_NETWORK,
    JOINED_ANNOTATION,
    PLUGIN_MULTITENANT,
    BadChangeNetwork,
    NetNamespace,
    vnid_owner,
)
from master.allocators import FIRST_VNID, GLOBAL_VNID, AllocatorCursor, allocate_vnids
from master.config import NetworkConfig
from master.controllers.actions import Action, Create, ForceDelete, Update, Warn, advance_cursor
from master.controllers.bootstrap import GLOBAL_NAMESPACE
from master.resources.namespaces import SYSTEM_NAMESPACES

_UNCHANGED = f"{GLOBAL_NAMESPACE} stays global: the whole cluster relies on it"


def reconcile_net_namespaces(
    wish: NetworkConfig, namespaces: Iterable[Namespace], found: Iterable[NetNamespace], cursor: AllocatorCursor
) -> Iterator[Action]:
    """A NetNamespace for every Namespace, and none for namespaces that are gone; with ovs-multitenant only.

    VNIDs that are freed in this pass rest: they count as used until the next one, and the cursor has passed them.
    """
    if wish.plugin_name != PLUGIN_MULTITENANT:
        return
    known = {lane.metadata.name: lane for lane in found}
    by_name = {namespace.metadata.name: namespace for namespace in namespaces}
    for name in sorted(known.keys() - by_name.keys()):
        yield ForceDelete(known[name])
    pool = _VNIDPool([lane.netid for lane in known.values()], cursor)
    kept = {name: lane for name, lane in known.items() if name in by_name}
    yield from _requests(kept, pool)
    wanting = [namespace for name, namespace in by_name.items() if name not in known]
    wanting.sort(key=lambda item: (item.metadata.creation_timestamp or "", item.metadata.name))
    projects = [item.metadata.name for item in wanting if item.metadata.name not in SYSTEM_NAMESPACES]
    for item in wanting:
        if item.metadata.name in SYSTEM_NAMESPACES:
            yield Create(_reconcile_namespace(item.metadata.name, GLOBAL_VNID))
    given = pool.take(len(projects))
    for name, vnid in zip(projects, given, strict=False):
        yield Create(_reconcile_namespace(name, vnid))
    for name in projects[len(given) :]:
        yield _exhausted(name)
    if pool.next != cursor.next:
        yield advance_cursor(cursor, pool.next)


class _VNIDPool:
    """VNIDs handed out in one pass."""

    def __init__(self, used: list[int], cursor: AllocatorCursor) -> None:
        self.next = cursor.next
        self._used = used

    def take(self, count: int) -> list[int]:
        """Fewer than `count` when no more are free."""
        given, self.next = allocate_vnids(count, self._used, self.next)
        self._used += given
        return given


def _reconcile_namespace(name: str, vnid: int) -> NetNamespace:
    return NetNamespace(metadata=ObjectMeta(name=name), netname=name, netid=vnid)


def _requests(kept: dict[str, NetNamespace], pool: _VNIDPool) -> Iterator[Action]:
    """What the annotations ask for, in the order of names; a later request sees what an earlier one was given."""
    vnids = {name: lane.netid for name, lane in kept.items()}
    owners = {name: vnid_owner(lane) for name, lane in kept.items()}
    for name, lane in sorted(kept.items()):
        if CHANGE_NETWORK not in lane.metadata.annotations:
            continue
        given = _requested_vnid(lane, vnids, pool)
        if isinstance(given, Warn):
            yield given
            continue
        target = types.parse_change_network(lane.metadata.annotations[CHANGE_NETWORK]).target
        if not target or given != vnids[name]:
            owners[name] = owners[target] if target and given != GLOBAL_VNID else name
        vnids[name] = given
        yield Update(_with_vnid(lane, given, owners[name]), lane)


def _with_vnid(lane: NetNamespace, vnid: int, owner: str) -> NetNamespace:
    """With another VNID, of a lane that is its own or another's; a request is taken away."""
    annotations = {
        key: text for key, text in lane.metadata.annotations.items() if key not in {CHANGE_NETWORK, JOINED_ANNOTATION}
    }
    if owner != lane.metadata.name:
        annotations[JOINED_ANNOTATION] = owner
    metadata = msgspec.structs.replace(lane.metadata, annotations=annotations)
    return msgspec.structs.replace(lane, metadata=metadata, netid=vnid)


def separate_duplicates(found: Iterable[NetNamespace], cursor: AllocatorCursor) -> Iterator[Action]:
    """Those who have the VNID of another lane, without having been joined to it, get one of their own.

    Who shares a lane with one of them on purpose goes with it.
    """
    known = {lane.metadata.name: lane for lane in found}
    strangers = conflicting_vnids(known.values())
    pool = _VNIDPool([lane.netid for lane in known.values()], cursor)
    fresh: dict[tuple[int, str], int] = {}
    for name, holder in sorted(strangers.items()):
        lane = known[name]
        key = lane.netid, vnid_owner(lane)
        if key not in fresh:
            if not (given := pool.take(1)):
                yield _exhausted(name)
                continue
            (fresh[key],) = given
        yield Warn(f"it had the VNID {lane.netid} of {holder}; it gets {fresh[key]}", f"netnamespace {name}")
        yield Update(msgspec.structs.replace(lane, netid=fresh[key]), lane)
    if pool.next != cursor.next:
        yield advance_cursor(cursor, pool.next)


def _requested_vnid(lane: NetNamespace, vnids: dict[str, int], pool: _VNIDPool) -> int | Warn:
    """The VNID that a request leads to, or why it leads to none yet."""
    name, text = lane.metadata.name, lane.metadata.annotations[CHANGE_NETWORK]
    try:
        request = types.parse_change_network(text)
    except BadChangeNetwork as error:
        return Warn(f"its request {text!r} is not carried out: {error}", f"netnamespace {name}")
    if name == GLOBAL_NAMESPACE and request.verb != "global":
        return Warn(f"its request {text!r} is not carried out: {_UNCHANGED}", f"netnamespace {name}")
    if request.verb == "global":
        return GLOBAL_VNID
    if request.verb == "isolate":
        return _own_vnid(name, vnids, pool)
    waits = Warn(f"it waits to join {request.target}, which does not exist", f"netnamespace {name}")
    return vnids.get(request.target, waits)


def _own_vnid(name: str, vnids: dict[str, int], pool: _VNIDPool) -> int | Warn:
    """The VNID of a project that shares it with nobody; its own, if that is so already."""
    if vnids[name] != GLOBAL_VNID and Counter(vnids.values())[vnids[name]] == 1:
        return vnids[name]
    fresh = pool.take(1)
    return fresh[0] if fresh else _exhausted(name)


def _exhausted(name: str) -> Warn:
    return Warn(f"all VNIDs from {FIRST_VNID} on are in use", f"namespace {name}")
