"""The scheme: every resource that the server knows, by path and by kind. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from api.meta.types import Object
from master.resources import BUILTIN
from master.resources.group_resource import GroupResource
from master.resources.metrics import NODE_METRICS, POD_METRICS
from master.resources.resource import AnyResource
from master.resources.users import USER_IDENTITY_MAPPINGS

STORED: tuple[AnyResource, ...] = tuple(resource for resource in BUILTIN if resource.stored_as is None)
"""The resources whose objects are stored: without other versions and projections of them."""

COMPUTED: tuple[AnyResource, ...] = (NODE_METRICS, POD_METRICS, USER_IDENTITY_MAPPINGS)
"""The resources whose objects are computed of others, and never stored."""

SERVED = (*BUILTIN, *COMPUTED)
"""The resources with objects to read. `master/resources/virtual.py` has those to which clients only send requests."""

BY_PATH = {(resource.group, resource.version, resource.plural): resource for resource in SERVED}

STORED_TYPES: Mapping[GroupResource, type[Object]] = {resource.group_resource: resource.type for resource in STORED}
"""The type of the stored objects of each resource."""

GROUP_RESOURCES = {resource.type: resource.group_resource for resource in STORED}

BY_KIND = {resource.kind: resource for resource in STORED}


def group_resource(of: type[Object]) -> GroupResource:
    """Return the resource as which objects of a type are stored."""
    return GROUP_RESOURCES[of]


def find_resource(group: str, plural: str) -> AnyResource | None:
    """Return the resource of a group and plural name, whatever its version."""
    return next(
        (resource for resource in BY_PATH.values() if (resource.group, resource.plural) == (group, plural)), None
    )
