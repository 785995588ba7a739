"""What the server must know of a resource: its type, strategy, columns and subresources. Pure.

A resource is declared in one file, as one `Resource`; the rest of the master knows resources only through this type.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

import msgspec

from api.meta.schema import FieldError
from api.meta.types import O
from api.validation.registry import RULES, KindRules
from master.resources.merge_schema import MergeSchema, merge_schema_of
from master.resources.metadata import with_metadata


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a Table; `wide` ones are shown with `-o wide` only."""

    name: str
    description: str
    type: str = "string"
    format: str = ""
    wide: bool = False


def accept_new(new: O, old: O) -> O:
    """An update that keeps nothing of the old object."""
    del old
    return new


@dataclass(frozen=True, slots=True)
class Scale(Generic[O]):
    """Of a kind whose pods can be counted: how many are wished, how many there are, which (a label selector as text),
    and the object that wishes for another number.
    """

    replicas: Callable[[O], int]
    current: Callable[[O], int]
    selector: Callable[[O], str]
    scaled: Callable[[O, int], O]


@dataclass(frozen=True, slots=True)
class Version(Generic[O]):
    """Of a kind whose objects are kept as those of another kind, `stored`: how such a one is seen, and how it is kept.

    Nothing may be lost on the way there and back.
    """

    stored: AnyResource
    seen: Callable[[Any], O]
    kept: Callable[[O], Any]


READ_VERBS = ("get", "list", "watch")
VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
"""What can be done with the objects of a kind."""

SUBRESOURCE_VERBS = ("get", "patch", "update")


@dataclass(frozen=True, slots=True)
class Subresource(Generic[O]):
    """A path below an object.

    Of one that is a part of the stored object, `part(new, old)` is the old object with this part of the new one, and
    what speaks against it. Another has a `body` of its own: (group, version, kind). One that leads `through` the master
    is answered by a node, or by a pod.
    """

    name: str
    part: Callable[[O, O], tuple[O, tuple[FieldError, ...]]] | None = None
    body: tuple[str, str, str] | None = None
    verbs: tuple[str, ...] = SUBRESOURCE_VERBS
    through: bool = False


def stream_subresource(name: str, kind: str) -> Subresource[Any]:
    """A conversation with what runs in a pod; `kind` is that of its options."""
    return Subresource(name, body=("", "v1", kind), verbs=("create", "get"), through=True)


def proxy_subresource(kind: str) -> Subresource[Any]:
    """Requests that are passed on; `kind` is that of their options."""
    return Subresource(
        "proxy", body=("", "v1", kind), verbs=("create", "delete", "get", "patch", "update"), through=True
    )


SCALE = "scale"


@dataclass(frozen=True, slots=True)
class Resource(Generic[O]):
    """`short` are the short names for users.

    `cells(object, now)` are the values for `columns`; `fields(object)` are what field selectors can ask for, beyond
    metadata.name and metadata.namespace.

    `on_create` and `on_update(new, old)` set what the server decides: of a kind with a status, `on_update` keeps the
    old status. Before the document of an update is read, `settled(document, old)` leaves out what the client sent only
    because it was there, and what the new state may not have. `spec(object)` is the part whose change counts up
    `metadata.generation`; None for kinds that have no generation. `held(object)` says whether an object that is being
    deleted must stay for another reason than its finalizers. `own_rules` are those of a kind that no daemon but the
    master reads. `more` are subresources beside `status` and `scale`, which a kind has that has a status or can be
    scaled; a `status` in it is one that does not take everything. `conversion` is that of a kind which is another form
    of a kind that is stored. `orphans` says that its dependents stay when a deletion says nothing of them.
    `reported`: nodes write its status, and whoever writes that changes nothing else; with the status of another kind
    labels and annotations may change, too.
    `made_by_update`: an update of what is not there makes it.
    `verbs` are what clients may do. Of a kind that they cannot make, `refusal` says why not.
    Of a `personal` kind, lists and watches show only what the asker may get one by one.
    """

    type: type[O]
    plural: str
    singular: str
    namespaced: bool
    columns: tuple[Column, ...]
    cells: Callable[[O, datetime.datetime], tuple[object, ...]]
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    fields: Callable[[O], Mapping[str, str]] = field(default=lambda item: {})
    on_create: Callable[[O], O] = field(default=lambda item: item)
    on_update: Callable[[O, O], O] = accept_new
    settled: Callable[[Any, O], Any] = field(default=lambda document, old: document)
    with_status: Callable[[O, O], O] | None = None
    spec: Callable[[O], Any] | None = None
    held: Callable[[O], bool] = field(default=lambda item: False)
    scaling: Scale[O] | None = None
    own_rules: KindRules[O] | None = None
    more: tuple[Subresource[O], ...] = ()
    conversion: Version[O] | None = None
    reported: bool = False
    personal: bool = False
    orphans: bool = False
    made_by_update: bool = False
    verbs: tuple[str, ...] = VERBS
    refusal: str = ""

    @property
    def name(self) -> str:
        """The kind as objects name it, such as Pod."""
        return self.type.KIND

    @property
    def keeper(self) -> AnyResource:
        """The kind as which its objects are kept."""
        return self if self.conversion is None else self.conversion.stored

    @property
    def stored(self) -> str:
        """The name of the kind as which its objects are kept."""
        return self.keeper.name

    def seen(self, item: Any) -> O:
        """An object as it is kept, in the form of this kind."""
        if self.conversion is None:
            return item  # type: ignore[no-any-return]
        found = self.conversion.seen(item)
        return msgspec.structs.replace(found, api_version=self.type.API_VERSION, kind=self.name)

    def kept(self, item: O) -> Any:
        """An object of this kind as it is kept."""
        return item if self.conversion is None else self.conversion.kept(item)

    @property
    def group(self) -> str:
        """The API group; empty for the core."""
        return self.type.API_VERSION.rpartition("/")[0]

    @property
    def selectors(self) -> frozenset[str]:
        """The names of everything that a field selector can ask for."""
        return frozenset(self.selectable(self.type()))

    @property
    def rules(self) -> KindRules[O]:
        """What is accepted and filled in."""
        return self.own_rules or RULES[self.type]

    @property
    def shape(self) -> MergeSchema:
        """How its parts are told apart."""
        return merge_schema_of(self.type)

    @property
    def version(self) -> str:
        """The version within the group."""
        return self.type.API_VERSION.rpartition("/")[2]

    @property
    def subresources(self) -> tuple[Subresource[O], ...]:
        """Every path below an object of this kind."""
        found: list[Subresource[O]] = []
        if self.with_status is not None and all(one.name != "status" for one in self.more):
            found.append(Subresource("status", lambda new, old: (self._status_updated(new, old), ())))
        if self.scaling is not None:
            found.append(Subresource(SCALE, body=("autoscaling", "v1", "Scale")))
        return (*found, *self.more)

    def _status_updated(self, new: O, old: O) -> O:
        assert self.with_status is not None
        item = self.with_status(new, old)
        if self.reported:
            return item
        return with_metadata(item, labels=new.metadata.labels, annotations=new.metadata.annotations)

    def subresource(self, name: str) -> Subresource[O] | None:
        """The one of that name, if there is one."""
        return next((one for one in self.subresources if one.name == name), None)

    def selectable(self, item: O) -> dict[str, str]:
        """Everything that a field selector can ask for."""
        return {
            "metadata.name": item.metadata.name,
            "metadata.namespace": item.metadata.namespace,
            **self.fields(item),
        }


AnyResource = Resource[Any]
