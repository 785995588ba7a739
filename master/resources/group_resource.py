"""The identity of a collection of objects: API group and plural name, without a version. Pure."""

from __future__ import annotations

from typing import NamedTuple


class GroupResource(NamedTuple):
    """An API group, empty for the core, and the plural name of a resource in it."""

    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource
