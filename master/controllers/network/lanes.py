"""Which VNID each project has: given at first, changed on request, freed at the end. Snapshot in, writes out. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from api import lanes
from api.lanes import CHANGE_NETWORK, BadRequest
from api.objects import PLUGIN_MULTITENANT, Namespace, NetNamespace, ObjectMeta
from master.admission.allocators import FIRST_VNID, GLOBAL_VNID, allocate_vnids
from master.controllers.bootstrap import GLOBAL_NAMESPACE, NetworkWish
from master.kinds.namespace import LASTING
from master.writing.outcomes import Change, Cursor, Drop, Make, Notice, Outcome, moved


def net_namespaces(
    wish: NetworkWish, namespaces: Iterable[Namespace], found: Iterable[NetNamespace], cursor: Cursor
) -> Iterator[Outcome]:
    """A NetNamespace for every Namespace, and none for namespaces that are gone; with ovs-multitenant only.

    VNIDs that are freed in this pass rest: they count as used until the next one, and the cursor has passed them.
    """
    if wish.plugin_name != PLUGIN_MULTITENANT:
        return
    known = {lane.metadata.name: lane for lane in found}
    by_name = {namespace.metadata.name: namespace for namespace in namespaces}
    for name in sorted(known.keys() - by_name.keys()):
        yield Drop(known[name])
    pool = _Pool([lane.netid for lane in known.values()], cursor)
    kept = {name: lane for name, lane in known.items() if name in by_name}
    yield from _requests(kept, pool)
    wanting = [namespace for name, namespace in by_name.items() if name not in known]
    wanting.sort(key=lambda item: (item.metadata.creation_timestamp or "", item.metadata.name))
    projects = [item.metadata.name for item in wanting if item.metadata.name not in LASTING]
    for item in wanting:
        if item.metadata.name in LASTING:
            yield Make(_lane(item.metadata.name, GLOBAL_VNID))
    given = pool.take(len(projects))
    for name, vnid in zip(projects, given, strict=False):
        yield Make(_lane(name, vnid))
    for name in projects[len(given) :]:
        yield _full(name)
    if pool.next != cursor.next:
        yield moved(cursor, pool.next)


class _Pool:
    """VNIDs handed out in one pass."""

    def __init__(self, used: list[int], cursor: Cursor) -> None:
        self.next = cursor.next
        self._used = used

    def take(self, count: int) -> list[int]:
        """Fewer than `count` when no more are free."""
        given, self.next = allocate_vnids(count, self._used, self.next)
        self._used += given
        return given


def _lane(name: str, vnid: int) -> NetNamespace:
    return NetNamespace(metadata=ObjectMeta(name=name), netname=name, netid=vnid)


def _requests(kept: dict[str, NetNamespace], pool: _Pool) -> Iterator[Outcome]:
    """What the annotations ask for, in the order of names; a later request sees what an earlier one was given."""
    vnids = {name: lane.netid for name, lane in kept.items()}
    for name, lane in sorted(kept.items()):
        if CHANGE_NETWORK not in lane.metadata.annotations:
            continue
        given = _given(lane, vnids, pool)
        if isinstance(given, Notice):
            yield given
            continue
        vnids[name] = given
        annotations = {key: text for key, text in lane.metadata.annotations.items() if key != CHANGE_NETWORK}
        metadata = msgspec.structs.replace(lane.metadata, annotations=annotations)
        yield Change(msgspec.structs.replace(lane, metadata=metadata, netid=given), lane)


def _given(lane: NetNamespace, vnids: dict[str, int], pool: _Pool) -> int | Notice:
    """The VNID that a request leads to, or why it leads to none yet."""
    name, text = lane.metadata.name, lane.metadata.annotations[CHANGE_NETWORK]
    try:
        request = lanes.parse(text)
    except BadRequest as error:
        return Notice(f"its request {text!r} is not carried out: {error}", f"netnamespace {name}")
    if request.verb == "global":
        return GLOBAL_VNID
    if request.verb == "isolate":
        return _alone(name, vnids, pool)
    waits = Notice(f"it waits to join {request.target}, which does not exist", f"netnamespace {name}")
    return vnids.get(request.target, waits)


def _alone(name: str, vnids: dict[str, int], pool: _Pool) -> int | Notice:
    """The VNID of a project that shares it with nobody; its own, if that is so already."""
    if name == GLOBAL_NAMESPACE:
        return Notice(f"{name} cannot be isolated: the whole cluster relies on it", f"netnamespace {name}")
    if vnids[name] != GLOBAL_VNID and Counter(vnids.values())[vnids[name]] == 1:
        return vnids[name]
    fresh = pool.take(1)
    return fresh[0] if fresh else _full(name)


def _full(name: str) -> Notice:
    return Notice(f"all VNIDs from {FIRST_VNID} on are in use", f"namespace {name}")
