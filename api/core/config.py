"""ConfigMap and Secret. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from api.meta.types import Object

MAX_BYTES = 1 << 20
"""Limit of the values of a ConfigMap or Secret together."""

KEY_PATTERN = re.compile(r"[-._a-zA-Z0-9]+")
MAX_KEY_LENGTH = 253

OPAQUE = "Opaque"
SERVICE_ACCOUNT_TOKEN = "kubernetes.io/service-account-token"
"""Type of a Secret with the token of a service account."""

SERVICE_ACCOUNT_NAME = "kubernetes.io/service-account.name"
SERVICE_ACCOUNT_UID = "kubernetes.io/service-account.uid"
"""Annotations of such a Secret: name and UID of the service account."""

REQUIRED_KEYS: Mapping[str, tuple[str, ...]] = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
"""Type of a Secret → the keys that it must have."""

JSON_KEYS = (".dockercfg", ".dockerconfigjson")
"""Keys of a Secret whose value must be JSON."""


class ConfigMap(Object, frozen=True):
    """Configuration data for pods. Each key is either in `data` or in `binary_data`."""

    API_VERSION = "v1"
    KIND = "ConfigMap"
    PLURAL = "configmaps"
    NAMESPACED = True

    data: dict[str, str] = {}
    binary_data: dict[str, bytes] = {}
    immutable: bool | None = None


class Secret(Object, frozen=True):
    """Sensitive data for pods. `string_data` is only written; the server stores it in `data`."""

    API_VERSION = "v1"
    KIND = "Secret"
    PLURAL = "secrets"
    NAMESPACED = True

    data: dict[str, bytes] = {}
    string_data: dict[str, str] = {}
    type: str = ""
    immutable: bool | None = None


def binary_data(config_map: ConfigMap) -> dict[str, bytes]:
    """Return all values of a ConfigMap as bytes, by key."""
    return {**{key: text.encode() for key, text in config_map.data.items()}, **config_map.binary_data}


def secret_data(secret: Secret) -> dict[str, bytes]:
    """Return all values of a Secret, by key. `string_data` overrides `data`."""
    return {**secret.data, **{key: text.encode() for key, text in secret.string_data.items()}}


def secret_defaults(secret: Secret) -> Secret:
    """Return the Secret as it is stored: with a type, and with `string_data` moved to `data`."""
    return replace(secret, data=secret_data(secret), string_data={}, type=secret.type or OPAQUE)
