"""ConfigMap and Secret: what pods are given to read; their defaults and what is wrong with them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from api.objects import Object
from api.schema import DUPLICATE, FORBIDDEN, MISSING, Problem, shown

MOST_BYTES = 1 << 20
LONGEST_KEY = 253
OPAQUE = "Opaque"
ACCOUNT_TOKEN = "kubernetes.io/service-account-token"
ACCOUNT_NAME, ACCOUNT_UID = "kubernetes.io/service-account.name", "kubernetes.io/service-account.uid"
"""Type of a Secret with the token of a service account, and its annotations: which account it is."""

_KEY = re.compile(r"[-._a-zA-Z0-9]+")


class ConfigMap(Object, frozen=True):
    """Settings for pods; a key stands in `data` or in `binary_data`."""

    API_VERSION = "v1"
    KIND = "ConfigMap"

    data: dict[str, str] = {}
    binary_data: dict[str, bytes] = {}
    immutable: bool | None = None


class Secret(Object, frozen=True):
    """Like a ConfigMap, for what not everybody may read; `string_data` is only written and ends up in `data`."""

    API_VERSION = "v1"
    KIND = "Secret"

    data: dict[str, bytes] = {}
    string_data: dict[str, str] = {}
    type: str = ""
    immutable: bool | None = None


NEEDED_KEYS: Mapping[str, tuple[str, ...]] = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
"""Type of a Secret → the keys that it must have."""

JSON_KEYS = (".dockercfg", ".dockerconfigjson")


def bytes_of(config: ConfigMap) -> dict[str, bytes]:
    """Everything a ConfigMap holds, by key."""
    return {**{key: text.encode() for key, text in config.data.items()}, **config.binary_data}


def defaulted(secret: Secret) -> Secret:
    """The Secret as it is kept: typed, and with `string_data` written to `data`."""
    return replace(secret, data=_data(secret), string_data={}, type=secret.type or OPAQUE)


def _data(secret: Secret) -> dict[str, bytes]:
    return {**secret.data, **{key: text.encode() for key, text in secret.string_data.items()}}


def check_config_map(config: ConfigMap) -> Iterator[Problem]:
    """Every problem, by path."""
    yield from _keys("data", config.data)
    yield from _keys("binaryData", config.binary_data)
    for key in config.data.keys() & config.binary_data.keys():
        yield Problem(f"binaryData[{key}]", shown(key), "a key that data does not have is accepted", DUPLICATE)
    yield from _size(bytes_of(config))


def check_secret(secret: Secret) -> Iterator[Problem]:
    """Every problem, by path."""
    data = _data(secret)
    yield from _keys("data", secret.data)
    yield from _keys("stringData", secret.string_data)
    yield from _size(data)
    for key in NEEDED_KEYS.get(secret.type, ()):
        if key not in data:
            yield Problem(f"data[{key}]", "null", f"a Secret of type {secret.type} has it", MISSING)
        elif key in JSON_KEYS and not _is_json(data[key]):
            yield Problem(f"data[{key}]", "<secret contents redacted>", "JSON is accepted")
    if secret.type == "kubernetes.io/basic-auth" and not data.keys() & {"username", "password"}:
        yield Problem("data", shown(sorted(data)), "username or password is required", MISSING)
    if secret.type == ACCOUNT_TOKEN and not secret.metadata.annotations.get(ACCOUNT_NAME):
        yield Problem(f"metadata.annotations[{ACCOUNT_NAME}]", "null", "the account's name is required", MISSING)


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


def _keys(path: str, data: Mapping[str, object]) -> Iterator[Problem]:
    for key in data:
        if not _KEY.fullmatch(key) or len(key) > LONGEST_KEY or key == "." or key.startswith(".."):
            wanted = 'letters, digits, "-", "_" and "." are accepted, up to 253, and no ".." at the beginning'
            yield Problem(f"{path}[{key}]", shown(key), wanted)


def _size(data: Mapping[str, bytes]) -> Iterator[Problem]:
    size = sum(map(len, data.values()))
    if size > MOST_BYTES:
        yield Problem("data", f"{size} bytes", f"up to {MOST_BYTES} bytes are accepted", "FieldValueTooLong")


def immutable(old: ConfigMap | Secret, new: ConfigMap | Secret) -> Iterator[Problem]:
    """What an update changes although it may not."""
    if isinstance(old, Secret) and isinstance(new, Secret) and old.type != new.type:
        yield Problem("type", shown(new.type), "field is immutable", FORBIDDEN)
    if not old.immutable:
        return
    if not new.immutable:
        yield Problem("immutable", shown(new.immutable), "once it is true it stays so", FORBIDDEN)
    if old.data != new.data or _binary(old) != _binary(new):
        yield Problem("data", "changed", "field is immutable when `immutable` is set", FORBIDDEN)


def _binary(held: ConfigMap | Secret) -> dict[str, bytes]:
    return held.binary_data if isinstance(held, ConfigMap) else {}
