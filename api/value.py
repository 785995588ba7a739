"""The base of every part of an object: a frozen value with the field names of Kubernetes on the wire. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

Json = Any
"""A piece of JSON that is kept as it came."""


class Value(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of every part of an object."""
