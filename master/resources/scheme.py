"""The scheme: every resource that the server knows, by path and by kind.

The constants have the built-in resources; `Scheme` adds the custom ones, which come and go while the master runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from api.meta.types import Object
from master.resources import BUILTIN
from master.resources.group_resource import GroupResource
from master.resources.metrics import NODE_METRICS, POD_METRICS
from master.resources.resource import AnyResource
from master.resources.users import USER_IDENTITY_MAPPINGS
from master.resources.virtual import VIRTUAL_RESOURCES

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

BUILTIN_GROUP_RESOURCES = frozenset(
    (
        *(resource.group_resource for resource in SERVED),
        *(GroupResource(group, each.plural) for group, virtual in VIRTUAL_RESOURCES.items() for each in virtual),
    )
)
"""The resources that a custom kind cannot be: those with built-in paths, also of what is answered and not stored."""

BY_KIND = {resource.kind: resource for resource in STORED}


def group_resource(of: type[Object]) -> GroupResource:
    """Return the resource as which objects of a type are stored."""
    return GROUP_RESOURCES[of]


def find_resource(group: str, plural: str) -> AnyResource | None:
    """Return the resource of a group and plural name, whatever its version."""
    return next(
        (resource for resource in BY_PATH.values() if (resource.group, resource.plural) == (group, plural)), None
    )


def find_kind(group: str, kind: str) -> AnyResource | None:
    """Return the resource of a group and kind, as which its objects are stored."""
    resource = next(
        (resource for resource in BY_PATH.values() if (resource.group, resource.kind) == (group, kind)), None
    )
    return resource if resource is None or resource.stored_as is None else resource.stored_as.of


# --- the live set -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class CustomKind:
    """A kind that a CustomResourceDefinition defines, as it is served: one value for each state of the definition."""

    stored: AnyResource
    """The resource as which objects are stored, with the fields of all versions. It is not served itself."""
    versions: tuple[AnyResource, ...]
    """The resource of each served version, the preferred one first."""
    uid: str
    """The uid of the definition."""
    fingerprint: str
    """A text that is the same for every master and every moment with this state of the definition."""
    decode: Callable[[bytes], Object]
    """Return the object of a stored JSON."""

    @property
    def group_resource(self) -> GroupResource:
        """Return group and plural name."""
        return self.stored.group_resource

    def version_names(self) -> frozenset[tuple[str, str]]:
        """Return API version and kind of each served version."""
        return frozenset((resource.type.API_VERSION, resource.kind) for resource in self.versions)


class StoredDecoder:
    """Decodes the stored objects of a resource that is not built in: as its kind, if it has one at this moment.

    Without a kind, objects have only their metadata.
    """

    def __init__(self) -> None:
        self.kind: CustomKind | None = None

    def __call__(self, data: bytes) -> Object:
        """Return the object of a stored JSON. Raises MsgspecError."""
        return msgspec.json.decode(data, type=Object) if self.kind is None else self.kind.decode(data)


class _StoredTypes(dict[GroupResource, "type[Object] | StoredDecoder"]):
    """The types of stored objects; every resource that is not built in has a decoder."""

    def __missing__(self, key: GroupResource) -> StoredDecoder:
        decoder = self[key] = StoredDecoder()
        return decoder


class Scheme:
    """The resources that the master serves at this moment: the built-in ones and the custom ones.

    Belongs to one event loop. A custom kind never takes the place of a built-in resource.
    """

    def __init__(self, internal_types: Mapping[GroupResource, type[Object]] = {}) -> None:
        """Begin with the built-in resources. `internal_types` are those of objects that only the master reads."""
        self.stored_types: Mapping[GroupResource, type[Object] | StoredDecoder] = _StoredTypes(
            {**STORED_TYPES, **internal_types}
        )
        """How the stored objects of each resource are decoded."""
        self.generation = 0
        """Changes whenever a custom kind does: what was computed from the resources is valid for one generation."""
        self._kinds: dict[GroupResource, CustomKind] = {}
        self._by_path = dict(BY_PATH)
        self._owners: dict[tuple[str, str], AnyResource] = {}
        self._listeners: list[Callable[[GroupResource], None]] = []

    @property
    def custom_kinds(self) -> tuple[CustomKind, ...]:
        """Return the custom kinds, sorted by group and plural name."""
        return tuple(self._kinds[key] for key in sorted(self._kinds))

    @property
    def served(self) -> tuple[AnyResource, ...]:
        """Return every resource with objects to read."""
        return (*SERVED, *(resource for kind in self.custom_kinds for resource in kind.versions))

    def at_path(self, group: str, version: str, plural: str) -> AnyResource | None:
        """Return the resource at a path; None if there is none."""
        return self._by_path.get((group, version, plural))

    def custom_kind(self, resource: GroupResource) -> CustomKind | None:
        """Return the custom kind of a resource; None if there is none."""
        return self._kinds.get(resource)

    def stored_resource(self, obj: Object) -> AnyResource:
        """Return the resource as which an object is stored. Raises KeyError for an object of no kind."""
        builtin = BY_KIND.get(obj.KIND)
        if builtin is not None and isinstance(obj, builtin.type):
            return builtin
        return self._kinds[GroupResource(obj.API_VERSION.rpartition("/")[0], obj.PLURAL)].stored

    def owner_resource(self, api_version: str, kind: str) -> AnyResource | None:
        """Return the resource as which the objects of a custom kind are stored, by one of its versions."""
        return self._owners.get((api_version, kind))

    def publish(self, kind: CustomKind) -> None:
        """Serve a custom kind from now on, in place of its former state."""
        key = kind.group_resource
        if key in BUILTIN_GROUP_RESOURCES:
            raise ValueError(f"{key} is a built-in resource")
        self._remove_paths(key)
        self._kinds[key] = kind
        for resource in kind.versions:
            self._by_path[resource.group, resource.version, resource.plural] = resource
        self._changed(key, kind)

    def unpublish(self, key: GroupResource) -> None:
        """Serve a custom kind no longer."""
        if key in self._kinds:
            self._remove_paths(key)
            del self._kinds[key]
            self._changed(key, None)

    def subscribe(self, listener: Callable[[GroupResource], None]) -> Callable[[], None]:
        """Call `listener` after each change of a custom kind, and now for those there are. Return a function that ends
        this.
        """
        self._listeners.append(listener)
        for key in tuple(self._kinds):
            listener(key)
        return lambda: self._listeners.remove(listener)

    def is_current(self, resource: AnyResource) -> bool:
        """Return whether a resource is served at this moment."""
        return self._by_path.get((resource.group, resource.version, resource.plural)) is resource

    def _remove_paths(self, key: GroupResource) -> None:
        for resource in self._kinds[key].versions if key in self._kinds else ():
            self._by_path.pop((resource.group, resource.version, resource.plural), None)

    def _changed(self, key: GroupResource, kind: CustomKind | None) -> None:
        decoder = self.stored_types[key]
        assert isinstance(decoder, StoredDecoder)
        decoder.kind = kind
        self._owners = {name: each.stored for each in self._kinds.values() for name in each.version_names()}
        self.generation += 1
        for listener in tuple(self._listeners):
            listener(key)


BUILTIN_SCHEME = Scheme()
"""The built-in resources alone."""
