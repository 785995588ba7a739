"""The base of all API types: Value, ObjectMeta, Object, Condition, Status, List; merge markers of lists. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgspec

from api.meta.times import format_time
from api.meta.values import Quantity, Time

Json = Any
"""JSON that is stored unchanged."""

KEYS, SET = "keys", "set"
"""Keys of the extra data by which lists and maps are marked."""


def merge_keys(*keys: str) -> msgspec.Meta:
    """Return the mark of a list whose items are merged by these fields (names in JSON).

    A strategic merge patch identifies an item by the first field, an apply by all of them. A patch replaces a list
    without a mark as a whole.
    """
    return msgspec.Meta(extra={KEYS: keys})


MERGED_SET = msgspec.Meta(extra={SET: True})
"""Mark of a list of plain values that patches and applies merge as a set."""

ATOMIC = msgspec.Meta(extra={KEYS: ()})
"""Mark of a map that an apply owns as a whole."""


class Value(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Base of objects and of their parts.

    A field that has its default value is not in the JSON: a count of 0 is missing there, as with `omitempty` in Go. For
    a field that must show its zero, use `int | None` with the default None.
    """


class ObjectFieldSelector(Value, frozen=True):
    """A field of the pod itself.

    `field_path` is its path, such as `metadata.labels['KEY']`. `api_version` is the version of its schema.
    """

    field_path: str
    api_version: str = ""


class ResourceFieldSelector(Value, frozen=True):
    """A limit or request of one container.

    `resource` is its name, such as `limits.memory`. `container_name` is the container. `divisor` is the unit in which
    the value is written.
    """

    resource: str
    container_name: str = ""
    divisor: Quantity | None = None


class LocalObjectReference(Value, frozen=True):
    """A reference to an object in the same namespace."""

    name: str = ""


class ObjectReference(Value, frozen=True):
    """A reference to another object, or to a part of it.

    `api_version` and `kind` are those of the object, as are `namespace`, `name`, `uid` and `resource_version`.
    `field_path` is the part of the object that is meant, such as `spec.containers{web}`.
    """

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class OwnerReference(Value, frozen=True):
    """A reference to the owner of an object, which is deleted with its last owner.

    `controller` says whether the owner is the controller that manages the object. `block_owner_deletion` delays a
    foreground deletion of the owner until this object is deleted.
    """

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Value, frozen=True):
    """The metadata that every object has.

    `name` is unique among the objects of a kind and namespace, and never changes. `generate_name` is a prefix from
    which the server generates a name if `name` is empty. `namespace` is the project that contains the object. `uid`
    identifies the object among all objects that ever had its name. `resource_version` changes with every write of the
    object. `generation` counts the changes of the desired state. `creation_timestamp` is the time of creation.
    `deletion_timestamp` is the time at which the object is to be deleted, set when deletion was requested.
    `deletion_grace_period_seconds` is the time between that request and `deletion_timestamp`. `labels` are keys and
    values by which objects are selected. `annotations` are keys and values that selectors do not use.
    `owner_references` are the owners of the object. `finalizers` name the work that must be done before the object is
    deleted. `managed_fields` record which field manager set which field. `self_link` is no longer used.
    """

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: Annotated[tuple[OwnerReference, ...], merge_keys("uid")] = ()
    finalizers: Annotated[tuple[str, ...], MERGED_SET] = ()
    managed_fields: Json = None
    self_link: str = ""


class Condition(Value, frozen=True):
    """A condition in the status of a Node, a Pod or another older kind.

    `type` is the condition. `status` is True, False or Unknown. `reason` is a word for programs. `message` is a
    sentence for people. `last_transition_time` is the time of the last change of `status`. `observed_generation` is the
    generation of the object for which it holds.
    """

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: Time | None = None
    last_heartbeat_time: Time | None = None
    last_probe_time: Time | None = None
    observed_generation: int = 0


def transition_time(old: Condition | None, status: str, now: datetime) -> str:
    """Return the transition time of a condition: that of the old condition if its status is the same, else now."""
    if old is not None and old.status == status and old.last_transition_time:
        return old.last_transition_time
    return format_time(now)


class StatusCondition(Value, frozen=True, omit_defaults=False):
    """A condition in the status of newer kinds (meta/v1 Condition). Clients require all fields, so none is omitted.

    A missing time is null, because clients in Go cannot decode a list with a time that is an empty text.
    """

    type: str
    status: str
    observed_generation: int = 0
    last_transition_time: Time | None = None
    reason: str = ""
    message: str = ""


class Object(Value, frozen=True):
    """Base of every object that has a path of its own in the API.

    `api_version` is the group and version of its schema. `kind` is the name of its type.
    """

    API_VERSION: ClassVar[str]
    KIND: ClassVar[str]
    PLURAL: ClassVar[str]
    """The name of the collection in URLs."""
    NAMESPACED: ClassVar[bool]
    """Whether the collection is below a namespace in URLs."""
    IS_STORED_IN_VERSIONS: ClassVar[bool] = False
    """Whether stored objects may be of other versions than API_VERSION; each names its own."""
    KEEPS_DECODED: ClassVar[bool] = True
    """Whether stored objects stay in memory as they are, beside their decoded form. False for a kind whose objects are
    large and rarely read: its JSON is compressed in memory.
    """

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


# --- Status and List -------------------------------------------------------------------------------------------------


class StatusCause(Value, frozen=True):
    """One cause of a failure: `field` is the path of a field that is not valid."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Value, frozen=True):
    """The object that a Status is about, and the causes of a failure.

    `retry_after_seconds` is the time after which a retry may succeed.
    """

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class ListMeta(Value, frozen=True, omit_defaults=True):
    """The metadata of a list.

    `continue` is the token with which the next page is read. `remaining_item_count` is the number of items after this
    page.
    """

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None
    self_link: str = ""


class Status(Value, frozen=True):
    """The response to a request that returns no object, or that failed.

    `status` is Success or Failure. `message` is a sentence for people. `reason` is a word for programs. `code` is the
    HTTP status code.
    """

    kind: str = "Status"
    api_version: str = "v1"
    metadata: ListMeta = ListMeta()
    status: str = ""
    message: str = ""
    reason: str = ""
    details: StatusDetails | None = None
    code: int = 0


O = TypeVar("O", bound=Object)


class List(Value, Generic[O], frozen=True, omit_defaults=False):
    """A list of objects. `kind` is the kind of the items, followed by `List`."""

    kind: str
    api_version: str
    metadata: ListMeta
    items: tuple[O, ...] = ()
