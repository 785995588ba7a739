"""The scheme: every resource that the server knows, by path and by kind. Pure."""

from __future__ import annotations

from master.resources import BUILTIN
from master.resources.metrics import NODE_METRICS, POD_METRICS
from master.resources.resource import AnyResource

STORED: tuple[AnyResource, ...] = tuple(kind for kind in BUILTIN if kind.stored_as is None)
"""Without those that are another form of one of these."""

COMPUTED: tuple[AnyResource, ...] = (NODE_METRICS, POD_METRICS)
"""Never kept: made when somebody asks."""

ALL = (*BUILTIN, *COMPUTED)
BY_PATH = {(kind.group, kind.version, kind.plural): kind for kind in ALL}
TYPES = tuple(kind.type for kind in STORED)
BY_KIND = {kind.name: kind for kind in STORED}


def find_resource(group: str, plural: str) -> AnyResource | None:
    """Return the resource of a group and plural name, whatever its version."""
    return next(
        (resource for resource in BY_PATH.values() if (resource.group, resource.plural) == (group, plural)), None
    )
