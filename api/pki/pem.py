"""Subjects and contents of certificates as values; PEM blocks. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class BadPem(Exception):
    """PEM that is not the expected key, request or certificate. The text says what was found."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a certificate.

    `user` is the common name (CN), `groups` are the organizations (O). `dns_names` and `ip_addresses` are the subject
    alternative names of a server.
    """

    user: str
    groups: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Certificate:
    """The content of a certificate.

    `fingerprint` is its SHA-256 in hex. `issuer_id` is the key identifier of its authority in hex, empty if it names
    none.
    """

    subject: Subject
    not_before: datetime.datetime
    not_after: datetime.datetime
    fingerprint: str
    issuer_id: str = ""


@dataclass(frozen=True, slots=True)
class CertificateRequest:
    """The content of a certificate request.

    `other_names` are subject alternative names of other types (emails, URIs, directory names). `other_attributes` are
    attributes of the subject other than CN and O.
    """

    subject: Subject
    other_names: tuple[str, ...] = ()
    other_attributes: tuple[str, ...] = ()


def peer_subject(peer: Mapping[str, Any] | None) -> Subject:
    """Return user and groups of a peer's verified certificate, given as `ssl.SSLSocket.getpeercert` returns it.

    `user` is the first common name, empty if there is none.
    """
    attributes = [attribute for rdn in (peer or {}).get("subject", ()) for attribute in rdn]
    user = next((value for key, value in attributes if key == "commonName"), "")
    return Subject(user, tuple(value for key, value in attributes if key == "organizationName"))


def pem_blocks(pem: bytes, label: str) -> bytes:
    """Return the blocks of a PEM file whose label ends with `label` (`CERTIFICATE`, `PRIVATE KEY`).

    A file may hold both a certificate and its key.
    """
    lines: list[bytes] = []
    inside = False
    for line in pem.splitlines():
        inside = inside or (line.startswith(b"-----BEGIN ") and line.rstrip().endswith(label.encode() + b"-----"))
        if inside:
            lines.append(line.rstrip())
        inside = inside and not line.startswith(b"-----END ")
    return b"".join(line + b"\n" for line in lines)
