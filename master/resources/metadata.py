"""Metadata of objects: controllers and owner references. Pure."""

from __future__ import annotations

from api.meta.types import Object, ObjectMeta, OwnerReference


def controller_of(meta: ObjectMeta) -> OwnerReference | None:
    """The owner that decides about an object, if it has one."""
    return next((row for row in meta.owner_references if row.controller), None)


def controller_reference(owner: Object) -> OwnerReference:
    """How an object names the owner that made it and decides about it."""
    return OwnerReference(
        api_version=owner.API_VERSION,
        kind=owner.KIND,
        name=owner.metadata.name,
        uid=owner.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )
