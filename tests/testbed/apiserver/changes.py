"""Changes of the storage for objects of built-in types: the key follows from the object."""

from __future__ import annotations

from api.meta.types import Object
from master.resources.scheme import group_resource
from master.storage.interface import Delete, Key, Put


def key_of(obj: Object) -> Key:
    """Return the key of an object."""
    return Key.of(group_resource(type(obj)), obj)


def put(obj: Object, expect: int | None = None) -> Put:
    """Return the change that creates or replaces an object."""
    return Put(key_of(obj), obj, expect)


def delete(last_state: Object, expect: int | None = None) -> Delete:
    """Return the change that deletes an object."""
    return Delete(key_of(last_state), last_state, expect)
