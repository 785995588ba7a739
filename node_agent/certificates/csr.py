"""CertificateSigningRequests; key files; renewal time."""

from __future__ import annotations

import asyncio
import datetime
import logging
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from api.client.client import AlreadyExists, Client, ClientError
from api.core.certificates import (
    DENIED,
    FAILED,
    CertificateSigningRequest,
    CertificateSigningRequestSpec,
    csr_condition,
)
from api.meta.types import ObjectMeta
from api.pki.pem import BadPem, Certificate, Subject
from node_agent.certificates import crypto
from node_agent.certificates.crypto import KeyPair, SigningRequest
from reconcile import atomic_file
from reconcile.errors import NotReady


def write_file(path: Path, data: bytes) -> None:
    """Put a file there, mode 0600, in place of an older one, and on disk before returning. Raises NotReady."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_file.write(path, data)
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror}") from None


def read_file(path: Path) -> bytes:
    """What is in it; nothing if it is not there. Raises NotReady."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror}") from None


def remove_file(path: Path) -> None:
    """Raises NotReady."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror}") from None


log = logging.getLogger(__name__)

LETTERS_OF_NAME = 43


@dataclass(frozen=True, slots=True)
class CertificateSpec:
    """What is asked for, and of whom."""

    signer: str
    usages: tuple[str, ...]
    subject: Subject


async def request_certificate(client: Client, wish: CertificateSpec, key_file: Path) -> KeyPair:
    """A new key with its certificate; the caller removes `key_file` when he has put them away.

    Raises NotReady when the request is refused, or the API server does not answer.
    """
    asking = await _asking(wish, key_file)
    name = f"node-csr-{asking.fingerprint[:LETTERS_OF_NAME]}"
    try:
        certificate = await _signed(client, name, wish, asking.request)
    except ClientError as error:
        raise NotReady(f"certificate request {name}: {error}") from None
    fresh = await _good(asking.key, certificate)
    if fresh is None:
        await asyncio.to_thread(remove_file, key_file)
        raise NotReady(f"certificate request {name}: its certificate is no longer good; asking with another key")
    return fresh


async def _asking(wish: CertificateSpec, path: Path) -> SigningRequest:
    held = await asyncio.to_thread(read_file, path)
    asking = await crypto.make_request(held, wish.subject, repr(wish))
    if held and asking.key != held:
        log.warning("a key cannot be read; another one is made", extra={"file": str(path)})
    if asking.key != held:
        await asyncio.to_thread(write_file, path, asking.key)
    return asking


async def _good(key: bytes, certificate: bytes) -> KeyPair | None:
    try:
        fresh = await crypto.load_key_pair(key, certificate)
    except BadPem:
        return None
    return fresh if fresh.says.not_after > datetime.datetime.now(datetime.UTC) else None


async def _signed(client: Client, name: str, wish: CertificateSpec, request: bytes) -> bytes:
    try:
        item = await client.create(_request(name, wish, request))
        log.info("asked for a certificate", extra={"request": name, "signer": wish.signer})
    except AlreadyExists:
        item = await client.get(CertificateSigningRequest, name)
    certificate = _answer(item)
    if not certificate:
        hint = f"kubectl certificate approve {name}"
        log.info("waiting until the certificate request is approved and signed", extra={"request": name, "hint": hint})
    while not certificate:
        certificate = await _watched(client, item)
        if not certificate:  # A watch ends now and then.
            item = await client.get(CertificateSigningRequest, name)
            certificate = _answer(item)
    log.info("the certificate was issued", extra={"request": name})
    return certificate


async def _watched(client: Client, item: CertificateSigningRequest) -> bytes:
    """The certificate, or nothing when the watch ended before it was there. Raises NotReady when there will be none."""
    selector, revision = f"metadata.name={item.metadata.name}", item.metadata.resource_version
    async with aclosing(client.watch(CertificateSigningRequest, revision, field_selector=selector)) as told:
        async for event in told:
            if event.type == "DELETED":
                raise NotReady(f"certificate request {item.metadata.name} was deleted before it was signed")
            if certificate := _answer(event.object):
                return certificate
    return b""


def _answer(item: CertificateSigningRequest) -> bytes:
    """The certificate; empty while there is none. Raises NotReady when there will be none."""
    for kind in (DENIED, FAILED):
        row = csr_condition(item, kind)
        if row is not None:
            why = f"{row.reason}: {row.message}".strip(": ")
            hint = f"kubectl delete csr {item.metadata.name} lets this node ask again"
            raise NotReady(f"certificate request {item.metadata.name} was {kind.lower()} ({why}); {hint}")
    return item.status.certificate


def _request(name: str, wish: CertificateSpec, request: bytes) -> CertificateSigningRequest:
    return CertificateSigningRequest(
        metadata=ObjectMeta(name=name),
        spec=CertificateSigningRequestSpec(request=request, signer_name=wish.signer, usages=wish.usages),
    )


EARLIEST, LATEST = 0.7, 0.9
"""Between these parts of its life; each certificate at another moment, so that nodes do not come all at once."""


def renewal_time(certificate: Certificate) -> datetime.datetime:
    """When a certificate is to be replaced: the same moment, whenever it is asked for."""
    spread = int(certificate.fingerprint[:8], 16) / 0xFFFFFFFF
    life = certificate.not_after - certificate.not_before
    return certificate.not_before + life * (EARLIEST + (LATEST - EARLIEST) * spread)


def is_renewal_due(certificate: Certificate, now: datetime.datetime) -> bool:
    """Whether it is to be replaced now."""
    return renewal_time(certificate) <= now
