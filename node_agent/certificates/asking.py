"""Asks for a certificate by a CertificateSigningRequest, and waits until it is approved and signed.

The key is kept in a file until the certificate is there, and the request has a name that follows from the key and from
what is asked for: who starts again in the middle finds the request that he made.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from api.client import AlreadyExists, Client, ClientError
from api.objects import ObjectMeta
from api.pem import BadPem, Subject
from api.signing_requests import (
    DENIED,
    FAILED,
    CertificateSigningRequest,
    CertificateSigningRequestSpec,
    condition,
)
from node_agent.certificates import key_files, tasks
from node_agent.certificates.tasks import Asking, Identity
from reconcile.errors import NotReady

log = logging.getLogger(__name__)

LETTERS_OF_NAME = 43


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for, and of whom."""

    signer: str
    usages: tuple[str, ...]
    subject: Subject


async def ask(client: Client, wish: Wish, key_file: Path) -> Identity:
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
        await asyncio.to_thread(key_files.remove, key_file)
        raise NotReady(f"certificate request {name}: its certificate is no longer good; asking with another key")
    return fresh


async def _asking(wish: Wish, path: Path) -> Asking:
    held = await asyncio.to_thread(key_files.read, path)
    asking = await tasks.request(held, wish.subject, repr(wish))
    if held and asking.key != held:
        log.warning("a key cannot be read; another one is made", extra={"file": str(path)})
    if asking.key != held:
        await asyncio.to_thread(key_files.write, path, asking.key)
    return asking


async def _good(key: bytes, certificate: bytes) -> Identity | None:
    try:
        fresh = await tasks.identity(key, certificate)
    except BadPem:
        return None
    return fresh if fresh.says.ends > datetime.datetime.now(datetime.UTC) else None


async def _signed(client: Client, name: str, wish: Wish, request: bytes) -> bytes:
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
        row = condition(item, kind)
        if row is not None:
            why = f"{row.reason}: {row.message}".strip(": ")
            hint = f"kubectl delete csr {item.metadata.name} lets this node ask again"
            raise NotReady(f"certificate request {item.metadata.name} was {kind.lower()} ({why}); {hint}")
    return item.status.certificate


def _request(name: str, wish: Wish, request: bytes) -> CertificateSigningRequest:
    return CertificateSigningRequest(
        metadata=ObjectMeta(name=name),
        spec=CertificateSigningRequestSpec(request=request, signer_name=wish.signer, usages=wish.usages),
    )
