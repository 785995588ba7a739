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
from reconcile.errors import NotReady, os_errors_as

log = logging.getLogger(__name__)

NAME_DIGITS = 43
"""Digits of the fingerprint in the name of a CertificateSigningRequest."""

EARLIEST_RENEWAL, LATEST_RENEWAL = 0.7, 0.9
"""Parts of a certificate's lifetime between which it is renewed."""


# --- requests ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CertificateSpec:
    """A certificate to request, and the signer."""

    signer: str
    usages: tuple[str, ...]
    subject: Subject

    def __str__(self) -> str:
        subject = (
            self.subject.user,
            *self.subject.groups,
            *self.subject.dns_names,
            *self.subject.ip_addresses,
        )
        return " ".join((self.signer, *self.usages, *subject))


async def request_certificate(client: Client, spec: CertificateSpec, key_file: Path) -> KeyPair:
    """Request a certificate, and wait until it is issued.

    The key is stored in `key_file` meanwhile, so that a restart continues with the same request. The caller removes the
    file after it has stored the certificate. Raises NotReady if the request is denied, or if the API server does not
    answer.
    """
    signing_request = await _make_request(spec, key_file)
    name = f"node-csr-{signing_request.fingerprint[:NAME_DIGITS]}"
    try:
        certificate = await _wait_for_certificate(client, name, spec, signing_request.request)
    except ClientError as error:
        raise NotReady(f"certificate request {name}: {error}") from None
    pair = await _valid_pair(signing_request.key, certificate)
    if pair is None:
        await asyncio.to_thread(remove_file, key_file)
        raise NotReady(f"certificate request {name}: its certificate is not valid any more; requesting another one")
    return pair


async def _make_request(spec: CertificateSpec, key_file: Path) -> SigningRequest:
    stored_key = await asyncio.to_thread(read_file, key_file)
    signing_request = await crypto.make_request(stored_key, spec.subject, str(spec))
    if signing_request.key != stored_key:
        if stored_key:
            log.warning("stored key is not valid; a new one was generated", extra={"file": str(key_file)})
        await asyncio.to_thread(write_file, key_file, signing_request.key)
    return signing_request


async def _valid_pair(key: bytes, certificate: bytes) -> KeyPair | None:
    try:
        pair = await crypto.load_key_pair(key, certificate)
    except BadPem:
        return None
    return pair if pair.info.not_after > datetime.datetime.now(datetime.UTC) else None


async def _wait_for_certificate(client: Client, name: str, spec: CertificateSpec, request: bytes) -> bytes:
    new_csr = CertificateSigningRequest(
        metadata=ObjectMeta(name=name),
        spec=CertificateSigningRequestSpec(request=request, signer_name=spec.signer, usages=spec.usages),
    )
    try:
        csr = await client.create(new_csr)
        log.info("certificate requested", extra={"request": name, "signer": spec.signer})
    except AlreadyExists:
        csr = await client.get(CertificateSigningRequest, name)
    certificate = _issued_certificate(csr)
    if not certificate:
        hint = f"kubectl certificate approve {name}"
        log.info("waiting until the certificate request is approved and signed", extra={"request": name, "hint": hint})
    while not certificate:
        certificate = await _watch_for_certificate(client, csr)
        if not certificate:  # The API server ends every watch after some minutes.
            csr = await client.get(CertificateSigningRequest, name)
            certificate = _issued_certificate(csr)
    log.info("certificate issued", extra={"request": name})
    return certificate


async def _watch_for_certificate(client: Client, csr: CertificateSigningRequest) -> bytes:
    """Return the certificate, empty if the watch ended before it was issued. Raises NotReady if it is denied."""
    name = csr.metadata.name
    watch = client.watch(
        CertificateSigningRequest, csr.metadata.resource_version, field_selector=f"metadata.name={name}"
    )
    async with aclosing(watch) as events:
        async for event in events:
            if event.type == "DELETED":
                raise NotReady(f"certificate request {name} was deleted before it was signed")
            if certificate := _issued_certificate(event.object):
                return certificate
    return b""


def _issued_certificate(csr: CertificateSigningRequest) -> bytes:
    """Return the certificate, empty if it is not issued yet. Raises NotReady if the request was denied or failed."""
    for condition_type in (DENIED, FAILED):
        condition = csr_condition(csr, condition_type)
        if condition is not None:
            reason = f"{condition.reason}: {condition.message}".strip(": ")
            hint = f"kubectl delete csr {csr.metadata.name} lets this node ask again"
            raise NotReady(f"certificate request {csr.metadata.name} was {condition_type.lower()} ({reason}); {hint}")
    return csr.status.certificate


# --- renewal ----------------------------------------------------------------------------------------------------------


def renewal_time(certificate: Certificate) -> datetime.datetime:
    """Return the time at which a certificate is to be renewed.

    It follows from the certificate's fingerprint, so that it is the same at each call and differs between nodes: they
    do not all renew at the same time.
    """
    spread = int(certificate.fingerprint[:8], 16) / 0xFFFFFFFF
    lifetime = certificate.not_after - certificate.not_before
    return certificate.not_before + lifetime * (EARLIEST_RENEWAL + (LATEST_RENEWAL - EARLIEST_RENEWAL) * spread)


def is_renewal_due(certificate: Certificate, now: datetime.datetime) -> bool:
    """Return whether a certificate is to be renewed now."""
    return renewal_time(certificate) <= now


# --- files ------------------------------------------------------------------------------------------------------------


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically and durably, with mode 0600. Raises NotReady."""
    with os_errors_as(NotReady, path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_file.write(path, data)


def read_file(path: Path) -> bytes:
    """Return the content of a file, empty if it does not exist. Raises NotReady."""
    with os_errors_as(NotReady, path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return b""


def remove_file(path: Path) -> None:
    """Remove a file if it exists. Raises NotReady."""
    with os_errors_as(NotReady, path):
        path.unlink(missing_ok=True)
