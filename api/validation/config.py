"""Checks of ConfigMap, Secret and Event. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from api.core.config import (
    JSON_KEYS,
    KEY_PATTERN,
    MAX_BYTES,
    MAX_KEY_LENGTH,
    REQUIRED_KEYS,
    SERVICE_ACCOUNT_NAME,
    SERVICE_ACCOUNT_TOKEN,
    ConfigMap,
    Secret,
    binary_data,
    secret_data,
)
from api.core.events import (
    CLUSTER_NAMESPACE,
    CLUSTER_NAMESPACES,
    MAX_MESSAGE_LENGTH,
    MAX_REASON_LENGTH,
    NORMAL,
    WARNING,
    Event,
)
from api.meta import names
from api.meta.schema import DUPLICATE, FORBIDDEN, MISSING, NOT_SUPPORTED, TOO_LONG, FieldError, quoted


def check_config_map(config_map: ConfigMap) -> Iterator[FieldError]:
    """Yield the errors of a ConfigMap."""
    yield from _check_keys("data", config_map.data)
    yield from _check_keys("binaryData", config_map.binary_data)
    for key in config_map.data.keys() & config_map.binary_data.keys():
        yield FieldError(f"binaryData[{key}]", quoted(key), "a key that data does not have is accepted", DUPLICATE)
    yield from _check_size(binary_data(config_map))


def check_secret(secret: Secret) -> Iterator[FieldError]:
    """Yield the errors of a Secret."""
    data = secret_data(secret)
    yield from _check_keys("data", secret.data)
    yield from _check_keys("stringData", secret.string_data)
    yield from _check_size(data)
    for key in REQUIRED_KEYS.get(secret.type, ()):
        if key not in data:
            yield FieldError(f"data[{key}]", "null", f"a Secret of type {secret.type} has it", MISSING)
        elif key in JSON_KEYS and not _is_json(data[key]):
            yield FieldError(f"data[{key}]", "<secret contents redacted>", "JSON is accepted")
    if secret.type == "kubernetes.io/basic-auth" and not data.keys() & {"username", "password"}:
        yield FieldError("data", quoted(sorted(data)), "username or password is required", MISSING)
    if secret.type == SERVICE_ACCOUNT_TOKEN and not secret.metadata.annotations.get(SERVICE_ACCOUNT_NAME):
        path = f"metadata.annotations[{SERVICE_ACCOUNT_NAME}]"
        yield FieldError(path, "null", "the account's name is required", MISSING)


def _check_keys(path: str, data: Mapping[str, object]) -> Iterator[FieldError]:
    for key in data:
        if not KEY_PATTERN.fullmatch(key) or len(key) > MAX_KEY_LENGTH or key == "." or key.startswith(".."):
            accepted = (
                f'letters, digits, "-", "_" and "." are accepted, up to {MAX_KEY_LENGTH}, and no ".." at the beginning'
            )
            yield FieldError(f"{path}[{key}]", quoted(key), accepted)


def _check_size(data: Mapping[str, bytes]) -> Iterator[FieldError]:
    size = sum(map(len, data.values()))
    if size > MAX_BYTES:
        yield FieldError("data", f"{size} bytes", f"may not be more than {MAX_BYTES} bytes", TOO_LONG)


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


def check_config_update(old: ConfigMap | Secret, new: ConfigMap | Secret) -> Iterator[FieldError]:
    """Yield an error if an update changes the type of a Secret, or data that `immutable` protects."""
    if isinstance(old, Secret) and isinstance(new, Secret) and old.type != new.type:
        yield FieldError("type", quoted(new.type), "field is immutable", FORBIDDEN)
    if not old.immutable:
        return
    if not new.immutable:
        yield FieldError("immutable", quoted(new.immutable), "once it is true it stays so", FORBIDDEN)
    old_binary = old.binary_data if isinstance(old, ConfigMap) else {}
    new_binary = new.binary_data if isinstance(new, ConfigMap) else {}
    if old.data != new.data or old_binary != new_binary:
        yield FieldError("data", "changed", "field is immutable when `immutable` is set", FORBIDDEN)


def check_event(event: Event) -> Iterator[FieldError]:
    """Yield the errors of an Event. It must be in the namespace of its object."""
    about = event.involved_object
    if about.namespace:
        accepted_namespaces: tuple[str, ...] = (about.namespace,)
    elif event.event_time:
        accepted_namespaces = CLUSTER_NAMESPACES
    else:
        accepted_namespaces = (CLUSTER_NAMESPACE,)
    if event.metadata.namespace and event.metadata.namespace not in accepted_namespaces:
        yield FieldError("involvedObject.namespace", quoted(about.namespace), "does not match event.namespace")
    if event.type not in ("", NORMAL, WARNING):
        yield FieldError("type", quoted(event.type), f"{NORMAL}, {WARNING} are accepted", NOT_SUPPORTED)
    if event.event_time:
        yield from _check_new_form(event)


def _check_new_form(event: Event) -> Iterator[FieldError]:
    """Yield the errors of an event of the newer form, which has reporter, action and reason instead of a source."""
    for path, text in (
        ("reportingComponent", event.reporting_component),
        ("reportingInstance", event.reporting_instance),
        ("action", event.action),
        ("reason", event.reason),
    ):
        if not text:
            yield FieldError(path, '""', "a value is required", MISSING)
        elif len(text) > MAX_REASON_LENGTH:
            yield FieldError(path, quoted(text), f"can have at most {MAX_REASON_LENGTH} characters")
    if event.reporting_component and (error := names.label_key_error(event.reporting_component)):
        yield FieldError("reportingComponent", quoted(event.reporting_component), error)
    if len(event.message) > MAX_MESSAGE_LENGTH:
        yield FieldError("message", quoted(event.message), f"can have at most {MAX_MESSAGE_LENGTH} characters")


def check_event_update(old: Event, new: Event) -> Iterator[FieldError]:
    """Yield an error if an update changes object or source. An event may only be repeated."""
    if old.involved_object != new.involved_object:
        yield FieldError("involvedObject", "changed", "field is immutable", FORBIDDEN)
    if old.source != new.source:
        yield FieldError("source", "changed", "field is immutable", FORBIDDEN)
