"""Decodes bodies in protobuf, as kubectl 1.32 and newer and the components of Kubernetes send them. Pure.

kubectl's typed commands have no JSON form any more, and do not fall back to one. The messages are those of
`messages.py`; the runtime of Protocol Buffers decodes them. An unknown field is rejected, so that it is not lost.
Responses are JSON, because every client that sends protobuf accepts JSON.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from google.protobuf.message import DecodeError, Message

from api.codec.limits import MAX_DEPTH, MAX_VALUES
from master.serialization.messages import Field, message_fields, message_names, message_of

MAGIC = b"k8s\0"
Proto = descriptor_pb2.FieldDescriptorProto

_SCALARS = {
    "string": Proto.TYPE_STRING,
    "bytes": Proto.TYPE_BYTES,
    "bool": Proto.TYPE_BOOL,
    "int32": Proto.TYPE_INT32,
    "int64": Proto.TYPE_INT64,
    "double": Proto.TYPE_DOUBLE,
}


class Unreadable(ValueError):
    """The bytes are not a message of the expected type."""


class TooManyValues(ValueError):
    """The message has more than MAX_VALUES values. Empty ones have two bytes, and take 20 us each."""


def document(body: bytes) -> dict[str, Any]:
    """Return the JSON document of an object in a protobuf envelope.

    Raise Unreadable, also for kinds without a message, and TooManyValues.
    """
    if not body.startswith(MAGIC):
        raise Unreadable("the body does not begin with the protobuf envelope of Kubernetes")
    envelope: Any = _parsed("Unknown", body[len(MAGIC) :])
    kind, version = envelope.typeMeta.kind, envelope.typeMeta.apiVersion
    name = message_of(version, kind)
    if name not in message_names() or name in ("Unknown", "TypeMeta"):
        raise Unreadable(f"{kind or 'this kind'} is accepted as application/json only")
    return {"apiVersion": version, "kind": kind, **_Converter().struct(_parsed(name, envelope.raw))}


def _parsed(name: str, content: bytes) -> Message:
    message = classes()[name]()
    try:
        message.ParseFromString(content)
    except DecodeError as error:
        raise Unreadable(f"it is not a {name}: {error}") from error
    return message


# --- messages ---------------------------------------------------------------------------------------------------------


@cache
def classes() -> Mapping[str, type[Message]]:
    """Return the type of each message, by its name."""
    file = descriptor_pb2.FileDescriptorProto(name="podlane.proto", package="podlane", syntax="proto2")
    for name in message_names():
        message = file.message_type.add(name=name)
        for field in message_fields(name):
            _describe(message, field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"podlane.{name}")) for name in message_names()
    }


def _describe(message: descriptor_pb2.DescriptorProto, field: Field) -> None:
    label = Proto.LABEL_REPEATED if field.repeated or field.map else Proto.LABEL_OPTIONAL
    described = message.field.add(name=field.name, number=field.number, label=label)
    if field.map:
        entry = message.nested_type.add(name=f"{field.name[0].upper()}{field.name[1:]}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=Proto.LABEL_OPTIONAL, type=Proto.TYPE_STRING)
        _typed(entry.field.add(name="value", number=2, label=Proto.LABEL_OPTIONAL), field.type)
        described.type, described.type_name = Proto.TYPE_MESSAGE, f".podlane.{message.name}.{entry.name}"
    else:
        _typed(described, field.type)


def _typed(described: descriptor_pb2.FieldDescriptorProto, kind: str) -> None:
    if kind in _SCALARS:
        described.type = _SCALARS[kind]
    else:
        described.type, described.type_name = Proto.TYPE_MESSAGE, f".podlane.{kind}"


# --- values -----------------------------------------------------------------------------------------------------------


class _Converter:
    """Converts one message to a document."""

    def __init__(self) -> None:
        self._remaining = MAX_VALUES

    def struct(self, message: Message) -> dict[str, Any]:
        """Return the message as JSON has it; empty texts and times are omitted. Raises Unreadable and TooManyValues."""
        name = message.DESCRIPTOR.name
        unknown = unknown_fields.UnknownFieldSet(message)
        if len(unknown):
            raise Unreadable(f"field {unknown[0].field_number} of {name} is not known here; send application/json")
        values = {descriptor.name: value for descriptor, value in message.ListFields()}
        self._count(len(values))
        document: dict[str, Any] = {}
        for field in message_fields(name):
            shown = self._field(field, values[field.name]) if field.name in values else None
            if field.inline and shown is not None:
                document |= shown
            elif shown is not None and shown != "":
                document[field.name] = shown
        return document

    def _count(self, number: int) -> None:
        self._remaining -= number
        if self._remaining < 0:
            raise TooManyValues

    def _field(self, field: Field, value: Any) -> Any:
        if not field.map and not field.repeated:
            return self._value(value)
        self._count(len(value))
        if field.map:
            return {key: self._value(value[key]) for key in value}
        return [self._value(element) for element in value]

    def _value(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return base64.b64encode(value).decode("ascii")
        if isinstance(value, Message):
            form: Callable[[Any], Any] = _FORMS.get(str(value.DESCRIPTOR.name), self.struct)
            return form(value)
        return value


def _moment(message: Any) -> datetime.datetime | None:
    if not message.HasField("seconds"):
        return None
    try:
        return datetime.datetime.fromtimestamp(message.seconds, datetime.UTC)
    except (OverflowError, ValueError, OSError) as error:
        raise Unreadable(f"{message.seconds} s is no time: {error}") from error


def _time(message: Any) -> str | None:
    moment = _moment(message)
    return None if moment is None else f"{_seconds(moment)}Z"


def _micro_time(message: Any) -> str | None:
    moment = _moment(message)
    return None if moment is None else f"{_seconds(moment)}.{message.nanos // 1000 % 1000000:06d}Z"


def _seconds(moment: datetime.datetime) -> str:
    """Return a time in RFC 3339 with a year of four digits; %Y has fewer for years before 1000."""
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}"


def _raw(message: Any) -> Any:
    """Return a RawExtension or FieldsV1, which protobuf carries as JSON."""
    try:
        return msgspec.json.decode(message.raw) if message.raw else None
    except msgspec.DecodeError as error:
        raise Unreadable(f"a {message.DESCRIPTOR.name} is not JSON: {error}") from error
    except RecursionError:
        raise Unreadable(f"a {message.DESCRIPTOR.name} has more than {MAX_DEPTH} levels") from None


_FORMS: Mapping[str, Callable[[Any], Any]] = {
    "Time": _time,
    "MicroTime": _micro_time,
    "Quantity": lambda message: message.string,
    "IntOrString": lambda message: message.strVal if message.type else message.intVal,
    "ExtraValue": lambda message: list(message.items),
    "OptionalNames": lambda message: list(message.items),
    "RawExtension": _raw,
    "FieldsV1": _raw,
}
