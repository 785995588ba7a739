"""ConfigMap and Secret. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from api.meta.types import Object

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


def binary_data(config: ConfigMap) -> dict[str, bytes]:
    """Everything a ConfigMap holds, by key."""
    return {**{key: text.encode() for key, text in config.data.items()}, **config.binary_data}


def defaulted(secret: Secret) -> Secret:
    """The Secret as it is kept: typed, and with `string_data` written to `data`."""
    return replace(secret, data=_data(secret), string_data={}, type=secret.type or OPAQUE)


def _data(secret: Secret) -> dict[str, bytes]:
    return {**secret.data, **{key: text.encode() for key, text in secret.string_data.items()}}
