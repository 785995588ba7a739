"""Image pull secrets to registry credentials. Pure.

Source: facts/node.md 9. Both forms are read: kubernetes.io/dockerconfigjson and the older kubernetes.io/dockercfg.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from api.core.config import Secret

DOCKER_HUB = ("docker.io", "index.docker.io")
CONFIG_JSON, CONFIG = ".dockerconfigjson", ".dockercfg"


class Credential(NamedTuple):
    """What a registry is told; never shown."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"Credential({self.username!r}, ...)"


def credentials_for_image(image: str, secrets: Iterable[Secret]) -> tuple[Credential, ...]:
    """The credentials for an image, those for the longest path first; what cannot be read is left out."""
    rows = [row for secret in secrets for row in _rows(secret)]
    found = [(len(place), credential) for place, credential in rows if _covers(place, image)]
    found.sort(key=lambda row: row[0], reverse=True)
    return tuple(dict.fromkeys(credential for _, credential in found))


def split_registry(image: str) -> tuple[str, str]:
    """The registry of an image and its path there; without a registry it is Docker Hub."""
    head, slash, rest = image.partition("/")
    if slash and ("." in head or ":" in head or head == "localhost"):
        return head, rest
    return DOCKER_HUB[0], image if slash else f"library/{image}"


def _covers(place: str, image: str) -> bool:
    bare = place.removeprefix("https://").removeprefix("http://")
    wanted, _, path = bare.partition("/")
    registry, rest = split_registry(image)
    if wanted in DOCKER_HUB:
        return registry in DOCKER_HUB
    parts, pattern = registry.split("."), wanted.split(".")
    same = len(parts) == len(pattern) and all(map(fnmatchcase, parts, pattern))
    prefix = path.strip("/")
    return same and (prefix in {"", "v1", "v2"} or rest == prefix or rest.startswith(f"{prefix}/"))


def _rows(secret: Secret) -> Iterator[tuple[str, Credential]]:
    try:
        if CONFIG_JSON in secret.data:
            auths = msgspec.json.decode(secret.data[CONFIG_JSON], type=_Config).auths
        elif CONFIG in secret.data:
            auths = msgspec.json.decode(secret.data[CONFIG], type=dict[str, _Auth])
        else:
            return
    except msgspec.DecodeError:
        return
    for place, auth in auths.items():
        credential = _credential(auth)
        if credential is not None:
            yield place, credential


class _Auth(msgspec.Struct, frozen=True):
    username: str = ""
    password: str = ""
    auth: str = ""


class _Config(msgspec.Struct, frozen=True):
    auths: dict[str, _Auth] = {}


def _credential(auth: _Auth) -> Credential | None:
    if auth.username:
        return Credential(auth.username, auth.password)
    try:
        username, colon, password = base64.b64decode(auth.auth, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return Credential(username, password) if colon else None
