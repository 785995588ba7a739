"""The base of all API types: Value, ObjectMeta, Object, Condition, Status, List; merge markers of lists. Pure."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgspec

Json = Any
"""A piece of JSON that is kept as it came."""


KEYS, SET = "keys", "set"


def merge_keys(*keys: str) -> msgspec.Meta:
    """Marks a list whose items a patch or an apply joins one by one, told apart by these fields (on the wire).

    A strategic merge patch knows an item by the first of them. A list without a mark is replaced as a whole.
    """
    return msgspec.Meta(extra={KEYS: keys})


MERGED_SET = msgspec.Meta(extra={SET: True})
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


class OwnerReference(Value, frozen=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Value, frozen=True):
    """What every object has: its name, and what the server keeps of it.

    `name` is unique among the objects of a kind, in its namespace if it has one, and never changes. `generate_name` is
    the beginning of a name that the server completes, where none is given. `namespace` is the project that the object
    is in. `uid` tells the object from all others that ever had its name. `resource_version` changes with each change
    of the object. `generation` counts the changes of what is wished for. `creation_timestamp` is when the object was
    made. `deletion_timestamp` is when it will be gone, once its deletion was asked for.
    `deletion_grace_period_seconds` is how long that is after it was asked for. `labels` are names and values by which
    objects are chosen. `annotations` are names and values that nobody chooses by. `finalizers` name what must be done
    before the object may go. `managed_fields` tell who set which field. `self_link` is not used any more.
    """

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: Annotated[tuple[OwnerReference, ...], merge_keys("uid")] = ()
    finalizers: Annotated[tuple[str, ...], MERGED_SET] = ()
    managed_fields: Json = None
    self_link: str = ""


class Condition(Value, frozen=True):
    """One row of `status.conditions` of a Node or a Pod; status is True, False or Unknown."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_heartbeat_time: str | None = None
    last_probe_time: str | None = None
    observed_generation: int = 0


class StatusCondition(Value, frozen=True, omit_defaults=False):
    """One row of `status.conditions` of newer kinds (Condition of meta/v1); clients count on all of its fields."""

    type: str
    status: str
    observed_generation: int = 0
    last_transition_time: str = ""
    reason: str = ""
    message: str = ""


class Object(Value, frozen=True):
    """Base of every object that has a place of its own in the API."""

    API_VERSION: ClassVar[str]
    KIND: ClassVar[str]

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


# --- Status and List -------------------------------------------------------------------------------------------------


class StatusCause(Value, frozen=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Value, frozen=True):
    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class ListMeta(Value, frozen=True, omit_defaults=True):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None
    self_link: str = ""


class Status(Value, frozen=True):
    """The answer to a request that has no object for an answer; `status` is Success or Failure."""

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
    """`kind` is the item's kind followed by `List`."""

    kind: str
    api_version: str
    metadata: ListMeta
    items: tuple[O, ...] = ()
