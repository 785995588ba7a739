"""The base of everything that travels as JSON, and the small values that several parts of a Pod share."""

from __future__ import annotations

from typing import Any

import msgspec

Json = Any
"""A piece of JSON that is kept as it came."""


KEYS, SET = "keys", "set"


def by(*keys: str) -> msgspec.Meta:
    """Marks a list whose items a patch or an apply joins one by one, told apart by these fields (on the wire).

    A strategic merge patch knows an item by the first of them. A list without a mark is replaced as a whole.
    """
    return msgspec.Meta(extra={KEYS: keys})


JOINED = msgspec.Meta(extra={SET: True})
"""Marks a list of plain values to which a patch or an apply adds its own."""

ATOMIC = msgspec.Meta(extra={KEYS: ()})
"""Marks a map that an apply owns as a whole."""


class Value(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of every part of an object."""


class ObjectFieldSelector(Value, frozen=True):
    """A field of the pod itself; `api.fields` knows which there are."""

    field_path: str
    api_version: str = ""


class ResourceFieldSelector(Value, frozen=True):
    """A limit or request of one container, such as `limits.memory`, in units of `divisor`."""

    resource: str
    container_name: str = ""
    divisor: str | int | float | None = None


class LocalObjectReference(Value, frozen=True):
    """An object of the same namespace."""

    name: str = ""


class ObjectReference(Value, frozen=True):
    """Another object, as far as it is named."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""
