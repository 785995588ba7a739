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
    CHANGE_NETWORK_ANNOTATION,
    JOINED_ANNOTATION,
    PLUGIN_MULTITENANT,
    BadChangeNetwork,
    NetNamespace,
    vnid_owner,
)
from master.allocators import FIRST_VNID, GLOBAL_VNID, AllocatorCursor, allocate_vnids
from master.config import NetworkConfig
from master.controllers.actions import Action, Create, ForceDelete, Update, Warn, advance_cursor, isolate_errors
from master.controllers.bootstrap import GLOBAL_NAMESPACE
from master.resources.namespaces import SYSTEM_NAMESPACES

_UNCHANGED = f"{GLOBAL_NAMESPACE} stays global: the whole cluster relies on it"


def reconcile(
    config: NetworkConfig,
    namespaces: Iterable[Namespace],
    net_namespaces: Iterable[NetNamespace],
    cursor: AllocatorCursor,
) -> Iterator[Action]:
    """Yield the writes for a NetNamespace of every Namespace, and none for missing ones; with ovs-multitenant only.

    VNIDs released in this pass count as used until the next one, and the cursor has passed them.
    """
    if config.plugin_name != PLUGIN_MULTITENANT:
        return
    existing = {net_namespace.metadata.name: net_namespace for net_namespace in net_namespaces}
    by_name = {namespace.metadata.name: namespace for namespace in namespaces}
    for name in sorted(existing.keys() - by_name.keys()):
        yield ForceDelete(existing[name])
    pool = _VNIDPool([net_namespace.netid for net_namespace in existing.values()], cursor)
    remaining = {name: net_namespace for name, net_namespace in existing.items() if name in by_name}
    yield from _requests(remaining, pool)
    new = [namespace for name, namespace in by_name.items() if name not in existing]
    new.sort(key=lambda namespace: (namespace.metadata.creation_timestamp or "", namespace.metadata.name))
    names = [namespace.metadata.name for namespace in new if namespace.metadata.name not in SYSTEM_NAMESPACES]
    for namespace in new:
        if namespace.metadata.name in SYSTEM_NAMESPACES:
            yield Create(_net_namespace(namespace.metadata.name, GLOBAL_VNID))
    vnids = pool.take(len(names))
    for name, vnid in zip(names, vnids, strict=False):
        yield Create(_net_namespace(name, vnid))
    for name in names[len(vnids) :]:
        yield _exhausted(name)
    if pool.next != cursor.next:
        yield advance_cursor(cursor, pool.next)


class _VNIDPool:
    """VNIDs allocated in one pass."""

    def __init__(self, used: list[int], cursor: AllocatorCursor) -> None:
        self.next = cursor.next
        self._used = used

    def take(self, count: int) -> list[int]:
        """Allocate VNIDs; fewer than `count` if no more are free."""
        vnids, self.next = allocate_vnids(count, self._used, self.next)
        self._used += vnids
        return vnids


def _net_namespace(name: str, vnid: int) -> NetNamespace:
    return NetNamespace(metadata=ObjectMeta(name=name), netname=name, netid=vnid)


def _requests(net_namespaces: dict[str, NetNamespace], pool: _VNIDPool) -> Iterator[Action]:
    """Yield the updates that the annotations request, in the order of names. A later request sees the result of an
    earlier one.
    """
    vnids = {name: net_namespace.netid for name, net_namespace in net_namespaces.items()}
    owners = {name: vnid_owner(net_namespace) for name, net_namespace in net_namespaces.items()}

    def carry_out(net_namespace: NetNamespace) -> Iterator[Action]:
        name = net_namespace.metadata.name
        vnid = _requested_vnid(net_namespace, vnids, pool)
        if isinstance(vnid, Warn):
            yield vnid
            return
        target = types.parse_change_network(net_namespace.metadata.annotations[CHANGE_NETWORK_ANNOTATION]).target
        if not target or vnid != vnids[name]:
            owners[name] = owners[target] if target and vnid != GLOBAL_VNID else name
        vnids[name] = vnid
        yield Update(_with_vnid(net_namespace, vnid, owners[name]), net_namespace)

    requesting = (
        net_namespace
        for _, net_namespace in sorted(net_namespaces.items())
        if CHANGE_NETWORK_ANNOTATION in net_namespace.metadata.annotations
    )
    return isolate_errors(requesting, carry_out)


def _with_vnid(net_namespace: NetNamespace, vnid: int, owner: str) -> NetNamespace:
    """Return the NetNamespace with another VNID, its own or that of `owner`, and without the request."""
    annotations = {
        key: value
        for key, value in net_namespace.metadata.annotations.items()
        if key not in {CHANGE_NETWORK_ANNOTATION, JOINED_ANNOTATION}
    }
    if owner != net_namespace.metadata.name:
        annotations[JOINED_ANNOTATION] = owner
    metadata = msgspec.structs.replace(net_namespace.metadata, annotations=annotations)
    return msgspec.structs.replace(net_namespace, metadata=metadata, netid=vnid)


def separate_duplicates(net_namespaces: Iterable[NetNamespace], cursor: AllocatorCursor) -> Iterator[Action]:
    """Yield new VNIDs for NetNamespaces that have the VNID of another one and did not join it. Those that joined one of
    them follow it.
    """
    existing = {net_namespace.metadata.name: net_namespace for net_namespace in net_namespaces}
    conflicts = conflicting_vnids(existing.values())
    pool = _VNIDPool([net_namespace.netid for net_namespace in existing.values()], cursor)
    new_vnids: dict[tuple[int, str], int] = {}
    for name, owner in sorted(conflicts.items()):
        net_namespace = existing[name]
        key = net_namespace.netid, vnid_owner(net_namespace)
        if key not in new_vnids:
            if not (vnids := pool.take(1)):
                yield _exhausted(name)
                continue
            (new_vnids[key],) = vnids
        yield Warn(
            f"it had the VNID {net_namespace.netid} of {owner}; it gets {new_vnids[key]}", f"netnamespace {name}"
        )
        yield Update(msgspec.structs.replace(net_namespace, netid=new_vnids[key]), net_namespace)
    if pool.next != cursor.next:
        yield advance_cursor(cursor, pool.next)


def _requested_vnid(net_namespace: NetNamespace, vnids: dict[str, int], pool: _VNIDPool) -> int | Warn:
    """Return the VNID that a request leads to, or a warning why it cannot be carried out yet."""
    name, text = net_namespace.metadata.name, net_namespace.metadata.annotations[CHANGE_NETWORK_ANNOTATION]
    try:
        request = types.parse_change_network(text)
    except BadChangeNetwork as error:
        return Warn(f"its request {text!r} is not carried out: {error}", f"netnamespace {name}")
    if name == GLOBAL_NAMESPACE and request.action != "global":
        return Warn(f"its request {text!r} is not carried out: {_UNCHANGED}", f"netnamespace {name}")
    if request.action == "global":
        return GLOBAL_VNID
    if request.action == "isolate":
        return _own_vnid(name, vnids, pool)
    missing_target = Warn(f"it waits to join {request.target}, which does not exist", f"netnamespace {name}")
    return vnids.get(request.target, missing_target)


def _own_vnid(name: str, vnids: dict[str, int], pool: _VNIDPool) -> int | Warn:
    """Return a VNID that no other namespace has: the current one, if it is not shared."""
    if vnids[name] != GLOBAL_VNID and Counter(vnids.values())[vnids[name]] == 1:
        return vnids[name]
    allocated = pool.take(1)
    return allocated[0] if allocated else _exhausted(name)


def _exhausted(name: str) -> Warn:
    return Warn(f"all VNIDs from {FIRST_VNID} on are in use", f"namespace {name}")
