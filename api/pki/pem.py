"""Subjects and contents of certificates as values; PEM blocks. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class BadPem(Exception):
    """`str(error)` says what was found in place of a key or a certificate."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a certificate is to name: `user` (CN) of `groups` (O), and where a server is reached."""

    user: str
    groups: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a certificate says; `digest` tells one from the other."""

    subject: Subject
    begins: datetime.datetime
    ends: datetime.datetime
    digest: str


@dataclass(frozen=True, slots=True)
class Request:
    """What a request for a certificate says, its signature checked.

    `more` are the places that it is to name beside names and addresses (emails, URIs, directories and others), `others`
    what its subject says beside user and groups.
    """

    subject: Subject
    more: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def peer_subject(peer: Mapping[str, Any] | None) -> Subject:
    """Whom the verified certificate of a peer names, in the form of `ssl.SSLSocket.getpeercert`; of several CNs the
    first, without one an empty user. Where it is reached is left out.
    """
    pairs = [pair for names in (peer or {}).get("subject", ()) for pair in names]
    user = next((value for key, value in pairs if key == "commonName"), "")
    return Subject(user, tuple(value for key, value in pairs if key == "organizationName"))


def pem_blocks(pem: bytes, label: str) -> bytes:
    """The blocks of a PEM file whose label ends so (`CERTIFICATE`, `PRIVATE KEY`); files hold both at times."""
    found: list[bytes] = []
    inside = False
    for line in pem.splitlines():
        inside = inside or (line.startswith(b"-----BEGIN ") and line.rstrip().endswith(label.encode() + b"-----"))
        if inside:
            found.append(line.rstrip())
        inside = inside and not line.startswith(b"-----END ")
    return b"".join(line + b"\n" for line in found)
