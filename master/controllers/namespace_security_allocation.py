"""Blocks of user IDs and the SELinux levels of namespaces that have none. Pure.

A new namespace gets them when it is created (`master/admission/scc/plugin.py`). This controller serves namespaces of
earlier versions, and those from which somebody removed the annotation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from api.core.node import Namespace
from master.admission.scc.namespace_ranges import UID_BLOCK_CURSOR, UID_RANGE_ANNOTATION, allocate_blocks
from master.allocators import AllocatorCursor
from master.controllers.actions import Action, Update, Warn, advance_cursor
from master.controllers.context import Lister
from master.resources.metadata import with_metadata


def reconcile(namespaces: Iterable[Namespace], cursor: AllocatorCursor) -> Iterator[Action]:
    """Yield the updates that give every namespace a block. Annotations that a namespace has stay."""
    known = tuple(namespaces)
    without = [namespace for namespace in known if not namespace.metadata.annotations.get(UID_RANGE_ANNOTATION)]
    if not without:
        return
    without.sort(key=lambda namespace: (namespace.metadata.creation_timestamp or "", namespace.metadata.name))
    allocated = (namespace.metadata.annotations for namespace in known)
    blocks, after = allocate_blocks(len(without), allocated, cursor.next)
    for namespace, block in zip(without, blocks, strict=False):
        own = {key: value for key, value in namespace.metadata.annotations.items() if value}
        yield Update(with_metadata(namespace, annotations={**block, **own}), namespace)
    for namespace in without[len(blocks) :]:
        yield Warn("all blocks of user IDs are in use", f"namespace {namespace.metadata.name}")
    if after != cursor.next:
        yield advance_cursor(cursor, after)


def sync_namespace_ranges(lister: Lister) -> Iterable[Action]:
    """Give namespaces without a block of user IDs one."""
    return reconcile(lister.list(Namespace), lister.cursor(UID_BLOCK_CURSOR))
