"""Reads registry credentials from image pull secrets. Pure.

Two forms of secrets are read: kubernetes.io/dockerconfigjson and the older kubernetes.io/dockercfg. The rules for
matching images are those of https://kubernetes.io/docs/concepts/containers/images/.
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

DOCKER_CONFIG_JSON_KEY, DOCKER_CFG_KEY = ".dockerconfigjson", ".dockercfg"
"""Keys of the two forms of secrets."""


class Credential(NamedTuple):
    """User name and password for a registry. The representation omits the password."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"Credential({self.username!r}, ...)"


class _Auth(msgspec.Struct, frozen=True):
    username: str = ""
    password: str = ""
    auth: str = ""


class _Config(msgspec.Struct, frozen=True):
    auths: dict[str, _Auth] = {}


def credentials_for_image(image: str, secrets: Iterable[Secret]) -> tuple[Credential, ...]:
    """Return the credentials for an image, those with the longest matching URL first. Invalid secrets are ignored."""
    entries = [entry for secret in secrets for entry in _entries(secret)]
    matching = [(len(url), credential) for url, credential in entries if _matches(url, image)]
    matching.sort(key=lambda entry: entry[0], reverse=True)
    return tuple(dict.fromkeys(credential for _, credential in matching))


def split_registry(image: str) -> tuple[str, str]:
    """Return the registry of an image and the image's path there. Without a registry it is Docker Hub.

    Docker takes a first part in capitals for a registry, too.
    """
    first_part, slash, path = image.partition("/")
    if slash and (
        not {".", ":"}.isdisjoint(first_part) or first_part == "localhost" or first_part != first_part.lower()
    ):
        return first_part, path
    return DOCKER_HUB[0], image if slash else f"library/{image}"


def _matches(url: str, image: str) -> bool:
    """Return whether the URL of a credential matches an image. Each part of its host name may be a pattern."""
    host_pattern, _, path = url.removeprefix("https://").removeprefix("http://").partition("/")
    registry, image_path = split_registry(image)
    if host_pattern in DOCKER_HUB:
        return registry in DOCKER_HUB
    parts = registry.split(".")
    patterns = host_pattern.split(".")
    host_matches = len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))
    prefix = path.strip("/")
    path_matches = prefix in {"", "v1", "v2"} or image_path == prefix or image_path.startswith(f"{prefix}/")
    return host_matches and path_matches


def _entries(secret: Secret) -> Iterator[tuple[str, Credential]]:
    """Yield the URLs and credentials of a secret."""
    try:
        if DOCKER_CONFIG_JSON_KEY in secret.data:
            auths = msgspec.json.decode(secret.data[DOCKER_CONFIG_JSON_KEY], type=_Config).auths
        elif DOCKER_CFG_KEY in secret.data:
            auths = msgspec.json.decode(secret.data[DOCKER_CFG_KEY], type=dict[str, _Auth])
        else:
            return
    except msgspec.DecodeError:
        return
    for url, auth in auths.items():
        credential = _decode_auth(auth)
        if credential is not None:
            yield url, credential


def _decode_auth(auth: _Auth) -> Credential | None:
    if auth.username:
        return Credential(auth.username, auth.password)
    try:
        username, colon, password = base64.b64decode(auth.auth, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return Credential(username, password) if colon else None
