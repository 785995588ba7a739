"""Declaration of a resource: its type, columns, validation, preparation of writes, and subresources. Pure.

A resource is declared in one file, as one `Resource`; the rest of the master knows resources only through this type.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

import msgspec

from api.meta.schema import FieldError
from api.meta.types import O, Object, ObjectMeta
from api.validation.registry import KindRules
from master.resources.group_resource import GroupResource
from master.resources.merge_schema import MergeSchema, merge_schema_of
from master.resources.metadata import with_metadata

ObjectType = type[Object]
"""The name of a type for a class in which `type` is a field."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a Table; `wide` ones are shown with `-o wide` only."""

    name: str
    description: str
    cell: Callable[[Any, datetime.datetime], object]
    """`cell(object, now)` returns the value in the row of an object."""
    type: str = "string"
    format: str = ""
    wide: bool = False


def has_status(of: type[Object]) -> bool:
    """Return whether objects of a type have a status."""
    return "status" in of.__struct_fields__


def reset_status(new: O) -> O:
    """Return a new object with an empty status; unchanged if its type has no status.

    This is also done with the creates of controllers. See `accept_status`.
    """
    if not has_status(type(new)):
        return new
    # A status of its own, not the default value itself: encoding omits a field that still has its default value.
    changes: dict[str, Any] = {"status": type(new.status)()}  # type: ignore[attr-defined]
    return msgspec.structs.replace(new, **changes)


def replace_status(new: O, old: O) -> O:
    """Return the old object with the status of the new one."""
    changes: dict[str, Any] = {"status": new.status}  # type: ignore[attr-defined]
    return msgspec.structs.replace(old, **changes)


def keep_status(new: O, old: O) -> O:
    """Return the new object with the status of the old one; unchanged if the type has no status."""
    return replace_status(old, new) if has_status(type(new)) else new


def accept_status(new: O) -> O:
    """Return a new object unchanged: the client or the controller that creates it may set its status."""
    return new


@dataclass(frozen=True, slots=True)
class Scale(Generic[O]):
    """The scale subresource: functions that read and write the number of pods of an object."""

    replicas: Callable[[O], int]
    """Return the desired number of pods."""
    status_replicas: Callable[[O], int]
    """Return the actual number of pods."""
    selector: Callable[[O], str]
    """Return the label selector of the pods, as text."""
    with_replicas: Callable[[O, int], O]
    """Return the object with another desired number of pods."""


@dataclass(frozen=True, slots=True)
class Version(Generic[O]):
    """The conversion of a version whose objects are stored as those of another. A round trip must keep every field."""

    of: AnyResource
    """The resource as which the objects are stored."""
    from_stored: Callable[[Any], O]
    to_stored: Callable[[O], Any]
    from_bytes: Callable[[bytes], O] | None = None
    """Return the object of a stored JSON, whatever version it is of; None if `from_stored` of the decoded object is
    it.
    """


class DocumentRules(Protocol[O]):
    """The rules of a custom resource, whose objects have the form that a structural schema describes."""

    uid: str
    """The uid of the definition of the kind."""
    is_terminating: bool
    """Whether the definition is being deleted."""

    def admit(self, document: dict[str, Any]) -> tuple[str, ...]:
        """Remove unknown fields and set defaults, in place. Return the paths of the unknown fields."""

    def build(self, document: Mapping[str, Any], metadata: ObjectMeta) -> O:
        """Return the object of an admitted document."""

    def validate(self, new: O, old: O | None, subresource: str) -> Iterator[FieldError]:
        """Yield the errors of an object, or of its status; `old` is the state before an update."""

    def is_released(self, new: O, old: O) -> bool:
        """Return whether an update changes nothing but metadata of an object that is being deleted."""

    def undeclared_field(self, document: Mapping[str, Any]) -> str | None:
        """Return the first field of an apply that the schema does not declare."""

    def merge_schema(self) -> MergeSchema:
        """Return how patches and apply merge the parts of an object."""

    def published_schema(self) -> dict[str, Any]:
        """Return the schema as the client has written it."""

    def encoded_rules(self) -> bytes:
        """Return the rules in CEL of the schema as the worker takes them; empty if there are none."""

    @property
    def is_converted_by_webhook(self) -> bool:
        """Return whether a webhook converts the objects of other versions."""


READ_VERBS = ("get", "list", "watch")
VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
"""The verbs of requests for objects."""

SUBRESOURCE_VERBS = ("get", "patch", "update")


@dataclass(frozen=True, slots=True)
class Subresource(Generic[O]):
    """A path below an object."""

    name: str
    replace: Callable[[O, O], tuple[O, tuple[FieldError, ...]]] | None = None
    """`replace(new, old)` returns the old object with this part of the new one, and the errors of that part.

    None if the subresource is not a part of the stored object.
    """
    body_kind: tuple[str, str, str] | None = None
    """(group, version, kind) of the body; None if it is the object itself."""
    verbs: tuple[str, ...] = SUBRESOURCE_VERBS
    proxied: bool = False
    """Whether a node or a pod answers."""
    changes_usage: bool = False
    """Whether an update of this part is charged to quotas."""


def stream_subresource(name: str, kind: str) -> Subresource[Any]:
    """Return a subresource that streams to and from a container; `kind` is that of its options."""
    return Subresource(name, body_kind=("", "v1", kind), verbs=("create", "get"), proxied=True)


def proxy_subresource(kind: str) -> Subresource[Any]:
    """Return the subresource `proxy`; `kind` is that of its options."""
    return Subresource(
        "proxy", body_kind=("", "v1", kind), verbs=("create", "delete", "get", "patch", "update"), proxied=True
    )


SCALE = "scale"


@dataclass(frozen=True, slots=True)
class Resource(Generic[O]):
    """A collection of objects of one type, in one version of an API group."""

    type: type[O]
    columns: tuple[Column, ...]
    """The columns of a Table. A version that has the columns of the stored resource shows the stored form."""
    rules: KindRules[O]
    """Defaults and validation. Those of types that other daemons read, too, are in `api.validation`."""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    selectable_fields: Callable[[O], Mapping[str, str]] = field(default=lambda obj: {})
    """Return the fields for field selectors, in addition to `metadata.name` and `metadata.namespace`."""
    prepare_for_create: Callable[[O], O] = reset_status
    """Set what the server decides about a new object, such as its status.

    The creates of controllers pass it, too. With the default, a status that a controller sets in `Create` is dropped:
    use `accept_status`, or set the status in an `Update`.
    """
    prepare_for_update: Callable[[O, O], O] = keep_status
    """`prepare_for_update(new, old)` sets what the server decides. If there is a status, it keeps the old one."""
    normalize_update: Callable[[Any, O], Any] = field(default=lambda document, old: document)
    """`normalize_update(document, old)` drops fields that the client sent only because the old object had them.

    The new state may not have them. It is called before the document is decoded.
    """
    with_status: Callable[[O, O], O] | None = replace_status
    """`with_status(new, old)` returns the old object with the new status.

    None if there is no subresource `status` though the type has a status.
    """
    spec: Callable[[O], Any] | None = None
    """Return the part whose change increments `metadata.generation`; None if the resource has no generation."""
    blocks_deletion: Callable[[O], bool] = field(default=lambda obj: False)
    """Return whether an object that is being deleted must stay for another reason than its finalizers."""
    scale: Scale[O] | None = None
    subresources: tuple[Subresource[O], ...] = ()
    """Subresources other than `status` and `scale`. A `status` in it replaces the usual one."""
    stored_as: Version[O] | None = None
    """How objects are stored, if the resource is another version or a projection of another resource."""
    status_update_keeps_metadata: bool = False
    """An update of the status changes nothing else. Otherwise it may change labels and annotations, too."""
    filtered_list: bool = False
    """Lists and watches show only the objects that the user may get."""
    owner: Callable[[O], tuple[str, str]] | None = None
    """Return name and uid of the user who alone sees an object; None if every user with permission sees it."""
    orphans_dependents: bool = False
    """Dependents stay if a delete has no propagation policy."""
    allow_create_on_update: bool = False
    """An update of an object that does not exist creates it."""
    verbs: tuple[str, ...] = VERBS
    """What clients can do with the objects; 405 is the response to every other verb. Controllers are not restricted.

    If `update` is missing there is no usual subresource `status`; `subresources` may have one.
    """
    create_denial: str = ""
    """Why clients cannot create objects, for the message of the 405; empty if `verbs` has `create`."""
    listed_empty: bool = False
    """There are never objects: 404 is the response to update, patch and delete, as to those of an unknown name."""
    acted_on_by: str = ""
    """What acts on the objects, for docs/kinds.md; empty if they are stored only, or if the stored resource says it."""
    singular_name: str | None = None
    """The singular name, if it is not the kind in lower case."""
    list_kind_name: str | None = None
    """The kind of lists, if it is not the kind followed by List."""
    deletion_finalizer: str = ""
    """The finalizer that a delete adds, so that the object stays until its controller removes it; empty for none."""
    documents: DocumentRules[O] | None = None
    """The rules of a custom resource; None for a built-in one, whose type has all fields."""
    deprecation_warning: str = ""
    """The warning that each request gets; empty for none."""
    group_resource: GroupResource = field(init=False, compare=False, repr=False)
    """Group and plural name."""
    all_subresources: tuple[Subresource[O], ...] = field(init=False, compare=False, repr=False)
    """All subresources, with `status` and `scale`."""
    _subresource_by_name: Mapping[str, Subresource[O]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Set the fields that follow from the others."""
        object.__setattr__(self, "group_resource", GroupResource(self.group, self.plural))
        subresources = self._with_usual_subresources()
        object.__setattr__(self, "all_subresources", subresources)
        object.__setattr__(self, "_subresource_by_name", {each.name: each for each in subresources})

    @property
    def kind(self) -> str:
        """Return the kind as objects name it, such as Pod."""
        return self.type.KIND

    @property
    def plural(self) -> str:
        """Return the name of the collection, such as pods."""
        return self.type.PLURAL

    @property
    def namespaced(self) -> bool:
        """Return whether the objects are in namespaces."""
        return self.type.NAMESPACED

    @property
    def singular(self) -> str:
        """Return the singular name, such as pod."""
        return self.kind.lower() if self.singular_name is None else self.singular_name

    @property
    def list_kind(self) -> str:
        """Return the kind of lists, such as PodList."""
        return f"{self.kind}List" if self.list_kind_name is None else self.list_kind_name

    @property
    def group(self) -> str:
        """Return the API group; empty for the core."""
        return self.type.API_VERSION.rpartition("/")[0]

    @property
    def version(self) -> str:
        """Return the version within the group."""
        return self.type.API_VERSION.rpartition("/")[2]

    def cells(self, obj: O, now: datetime.datetime) -> tuple[object, ...]:
        """Return the values of `columns` for an object."""
        shown: Any = obj
        if self.stored_as is not None and self.columns is self.stored_resource.columns:
            shown = self.to_stored(obj)
        return tuple([column.cell(shown, now) for column in self.columns])

    @property
    def merge_schema(self) -> MergeSchema:
        """Return how patches and apply merge the parts of an object."""
        return merge_schema_of(self.type) if self.documents is None else self.documents.merge_schema()

    # --- storage ------------------------------------------------------------------------------------------------------

    @property
    def stored_resource(self) -> AnyResource:
        """Return the resource as which the objects are stored."""
        return self if self.stored_as is None else self.stored_as.of

    @property
    def stored_kind(self) -> str:
        """Return the kind as which the objects are stored."""
        return self.stored_resource.kind

    @property
    def stored_group_resource(self) -> GroupResource:
        """Return the group and plural name under which the objects are stored."""
        return self.stored_resource.group_resource

    def from_stored(self, obj: Any) -> O:
        """Return a stored object in this version."""
        if self.stored_as is None:
            return obj  # type: ignore[no-any-return]
        converted = self.stored_as.from_stored(obj)
        return msgspec.structs.replace(converted, api_version=self.type.API_VERSION, kind=self.kind)

    def to_stored(self, obj: O) -> Any:
        """Return an object of this version as it is stored."""
        return obj if self.stored_as is None else self.stored_as.to_stored(obj)

    def is_stored_as(self, of: ObjectType) -> bool:
        """Return whether the objects are stored as those of a built-in type. A custom kind may have the same name."""
        return self.stored_resource.type is of

    # --- subresources -------------------------------------------------------------------------------------------------

    @property
    def has_status(self) -> bool:
        """Return whether there is a subresource `status`."""
        return self.with_status is not None and has_status(self.type) and "update" in self.verbs

    def _with_usual_subresources(self) -> tuple[Subresource[O], ...]:
        usual: list[Subresource[O]] = []
        if self.has_status and all(own.name != "status" for own in self.subresources):
            usual.append(Subresource("status", lambda new, old: (self._replace_status(new, old), ())))
        if self.scale is not None:
            usual.append(Subresource(SCALE, body_kind=("autoscaling", "v1", "Scale")))
        return (*usual, *self.subresources)

    def _replace_status(self, new: O, old: O) -> O:
        assert self.with_status is not None
        obj = self.with_status(new, old)
        if self.status_update_keeps_metadata:
            return obj
        return with_metadata(obj, labels=new.metadata.labels, annotations=new.metadata.annotations)

    def subresource(self, name: str) -> Subresource[O] | None:
        """Return the subresource of that name; None if there is none."""
        return self._subresource_by_name.get(name)

    # --- field selectors ----------------------------------------------------------------------------------------------

    @property
    def selectable_field_names(self) -> frozenset[str]:
        """Return the names of all fields for field selectors."""
        return frozenset(self.field_values(self.type()))

    def field_values(self, obj: O) -> dict[str, str]:
        """Return all fields for field selectors, by name."""
        return {
            "metadata.name": obj.metadata.name,
            "metadata.namespace": obj.metadata.namespace,
            **self.selectable_fields(obj),
        }


AnyResource = Resource[Any]


def converted(obj: Any, of: AnyResource, to: AnyResource) -> Any:
    """Return an object of a resource as that of another one with the same stored objects, with its apiVersion and kind.

    A conversion itself keeps neither: the version in which an object is stored has them where it is read.
    """
    if of is to:
        return obj
    return msgspec.structs.replace(to.from_stored(of.to_stored(obj)), api_version=to.type.API_VERSION, kind=to.kind)
