"""Checks of ConfigMap, Secret and Event. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from api.core.config import (
    _KEY,
    ACCOUNT_NAME,
    ACCOUNT_TOKEN,
    JSON_KEYS,
    LONGEST_KEY,
    MOST_BYTES,
    NEEDED_KEYS,
    ConfigMap,
    Secret,
    _data,
    binary_data,
)
from api.core.events import CLUSTER_NAMESPACE, CLUSTER_NAMESPACES, LONGEST_NOTE, LONGEST_WORD, NORMAL, WARNING, Event
from api.meta import names
from api.meta.schema import DUPLICATE, FORBIDDEN, MISSING, NOT_SUPPORTED, FieldError, quoted


def check_config_map(config: ConfigMap) -> Iterator[FieldError]:
    """Every problem, by path."""
    yield from _keys("data", config.data)
    yield from _keys("binaryData", config.binary_data)
    for key in config.data.keys() & config.binary_data.keys():
        yield FieldError(f"binaryData[{key}]", quoted(key), "a key that data does not have is accepted", DUPLICATE)
    yield from _size(binary_data(config))


def check_secret(secret: Secret) -> Iterator[FieldError]:
    """Every problem, by path."""
    data = _data(secret)
    yield from _keys("data", secret.data)
    yield from _keys("stringData", secret.string_data)
    yield from _size(data)
    for key in NEEDED_KEYS.get(secret.type, ()):
        if key not in data:
            yield FieldError(f"data[{key}]", "null", f"a Secret of type {secret.type} has it", MISSING)
        elif key in JSON_KEYS and not _is_json(data[key]):
            yield FieldError(f"data[{key}]", "<secret contents redacted>", "JSON is accepted")
    if secret.type == "kubernetes.io/basic-auth" and not data.keys() & {"username", "password"}:
        yield FieldError("data", quoted(sorted(data)), "username or password is required", MISSING)
    if secret.type == ACCOUNT_TOKEN and not secret.metadata.annotations.get(ACCOUNT_NAME):
        yield FieldError(f"metadata.annotations[{ACCOUNT_NAME}]", "null", "the account's name is required", MISSING)


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


def _keys(path: str, data: Mapping[str, object]) -> Iterator[FieldError]:
    for key in data:
        if not _KEY.fullmatch(key) or len(key) > LONGEST_KEY or key == "." or key.startswith(".."):
            wanted = 'letters, digits, "-", "_" and "." are accepted, up to 253, and no ".." at the beginning'
            yield FieldError(f"{path}[{key}]", quoted(key), wanted)


def _size(data: Mapping[str, bytes]) -> Iterator[FieldError]:
    size = sum(map(len, data.values()))
    if size > MOST_BYTES:
        yield FieldError("data", f"{size} bytes", f"up to {MOST_BYTES} bytes are accepted", "FieldValueTooLong")


def immutable_config(old: ConfigMap | Secret, new: ConfigMap | Secret) -> Iterator[FieldError]:
    """What an update changes although it may not."""
    if isinstance(old, Secret) and isinstance(new, Secret) and old.type != new.type:
        yield FieldError("type", quoted(new.type), "field is immutable", FORBIDDEN)
    if not old.immutable:
        return
    if not new.immutable:
        yield FieldError("immutable", quoted(new.immutable), "once it is true it stays so", FORBIDDEN)
    if old.data != new.data or _binary(old) != _binary(new):
        yield FieldError("data", "changed", "field is immutable when `immutable` is set", FORBIDDEN)


def _binary(held: ConfigMap | Secret) -> dict[str, bytes]:
    return held.binary_data if isinstance(held, ConfigMap) else {}


def check_event(item: Event) -> Iterator[FieldError]:
    """An event lies beside the object that it is about."""
    about, place = item.involved_object, item.metadata.namespace
    homes = (about.namespace,) if about.namespace else CLUSTER_NAMESPACES if item.event_time else (CLUSTER_NAMESPACE,)
    if place and place not in homes:
        yield FieldError("involvedObject.namespace", quoted(about.namespace), "does not match event.namespace")
    if item.type not in ("", NORMAL, WARNING):
        yield FieldError("type", quoted(item.type), f"{NORMAL}, {WARNING} are accepted", NOT_SUPPORTED)
    if item.event_time:
        yield from _check_told(item)


def _check_told(item: Event) -> Iterator[FieldError]:
    """An event of the newer form, in which there is no source, says who tells what was done, in words for programs."""
    told = ("reportingComponent", item.reporting_component), ("reportingInstance", item.reporting_instance)
    for path, text in (*told, ("action", item.action), ("reason", item.reason)):
        if not text:
            yield FieldError(path, '""', "a value is required", MISSING)
        elif len(text) > LONGEST_WORD:
            yield FieldError(path, quoted(text), f"can have at most {LONGEST_WORD} characters")
    if item.reporting_component and names.label_key_error(item.reporting_component):
        yield FieldError(
            "reportingComponent", quoted(item.reporting_component), names.label_key_error(item.reporting_component)
        )
    if len(item.message) > LONGEST_NOTE:
        yield FieldError("message", quoted(item.message), f"can have at most {LONGEST_NOTE} characters")


def immutable_event(old: Event, new: Event) -> Iterator[FieldError]:
    """An event may be repeated, and not become another one's."""
    for path, before, after in (
        ("involvedObject", old.involved_object, new.involved_object),
        ("source", old.source, new.source),
    ):
        if before != after:
            yield FieldError(path, "changed", "field is immutable", FORBIDDEN)
