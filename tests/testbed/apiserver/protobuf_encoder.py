"""Encodes documents as protobuf bodies, which Kubernetes components send by default."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from master.serialization import protobuf
from master.serialization.messages import Field, message_fields, message_names, message_of


def encoded(document: Mapping[str, Any]) -> bytes:
    """Return an object in its protobuf envelope. A field that the message does not have is an error."""
    version, kind = document["apiVersion"], document["kind"]
    name = message_of(version, kind)
    message = protobuf.classes()[name]()
    _fill(message, name, {key: value for key, value in document.items() if key not in ("apiVersion", "kind")})
    envelope: Any = protobuf.classes()["Unknown"]()
    envelope.typeMeta.apiVersion, envelope.typeMeta.kind = version, kind
    envelope.raw = message.SerializeToString()
    return protobuf.MAGIC + envelope.SerializeToString()  # type: ignore[no-any-return]


def _keys(name: str) -> Iterator[str]:
    """Yield the keys in JSON of a message, with those of the messages that are inline in it."""
    for field in message_fields(name):
        if field.inline:
            yield from _keys(field.type)
        else:
            yield field.name


def _fill(message: Any, name: str, document: Mapping[str, Any]) -> None:
    fields = {field.name: field for field in message_fields(name)}
    inner = {key: field for field in fields.values() if field.inline for key in _keys(field.type) if key in document}
    for field in {field.name: field for field in inner.values()}.values():
        part = getattr(message, field.name)
        part.SetInParent()
        _fill(part, field.type, {key: document[key] for key, of in inner.items() if of == field})
    for key, value in document.items():
        if key not in inner:
            _put(message, fields[key], value)


def _put(message: Any, field: Field, value: Any) -> None:
    target = getattr(message, field.name)
    if field.type not in message_names():
        if field.map:
            target.update(value)
        elif field.repeated:
            target.extend(value)
        else:
            setattr(message, field.name, base64.b64decode(value) if field.type == "bytes" else value)
    elif field.map:
        for key, member in value.items():
            _fill_message(target[key], field.type, member)
    elif field.repeated:
        for member in value:
            _fill_message(target.add(), field.type, member)
    else:
        target.SetInParent()
        _fill_message(target, field.type, value)


def _fill_message(message: Any, name: str, value: Any) -> None:
    form: Callable[[Any, Any], None] | None = _FORMS.get(name)
    if form is None:
        _fill(message, name, value)
    else:
        form(message, value)


def _time(message: Any, value: str) -> None:
    moment = datetime.datetime.fromisoformat(value)
    message.seconds, message.nanos = int(moment.timestamp()), moment.microsecond * 1000


def _quantity(message: Any, value: str | float) -> None:
    message.string = str(value)


def _number_or_text(message: Any, value: int | str) -> None:
    if isinstance(value, int):
        message.type, message.intVal = 0, value
    else:
        message.type, message.strVal = 1, value


def _items(message: Any, value: list[str]) -> None:
    message.items.extend(value)


def _raw(message: Any, value: Any) -> None:
    message.raw = json.dumps(value).encode()


_FORMS: Mapping[str, Callable[[Any, Any], None]] = {
    "Time": _time,
    "MicroTime": _time,
    "Quantity": _quantity,
    "IntOrString": _number_or_text,
    "OptionalNames": _items,
    "RawExtension": _raw,
}
