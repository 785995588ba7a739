"""Kubeconfigs for machines that join the cluster: with a client certificate, or with a bootstrap token."""

from __future__ import annotations

import asyncio
import datetime
import secrets
import string
from contextlib import aclosing

from api.client.client import Client, ClientError, InvalidResponse
from api.client.kubeconfig import Kubeconfig
from api.core.certificates import (
    CLIENT_USAGES,
    DENIED,
    FAILED,
    NODE_CLIENT,
    NODE_PREFIX,
    NODES,
    CertificateSigningRequest,
    CertificateSigningRequestSpec,
    csr_condition,
)
from api.core.config import Secret
from api.meta import names
from api.meta.types import ObjectMeta
from api.pki import keys
from api.pki.pem import Subject

SECONDS = 30.0
"""A master that approves and signs by itself takes less."""


async def node_kubeconfig(client: Client, administrator: Kubeconfig, node: str) -> str:
    """The text of a kubeconfig with which `node` speaks to the master. Raises ClientError.

    `client` must be the administrator's: the master approves by itself what such a client asks for.
    """
    if wrong := names.dns_subdomain(node):
        raise ClientError(f"{node!r} is no name of a node: {wrong}")
    key = await asyncio.to_thread(keys.new_key)
    spec = CertificateSigningRequestSpec(
        request=keys.request(key, Subject(f"{NODE_PREFIX}{node}", (NODES,))),
        signer_name=NODE_CLIENT,
        usages=CLIENT_USAGES,
    )
    name = f"node-csr-{keys.fingerprint(key)[:43]}"
    asked = await client.create(CertificateSigningRequest(metadata=ObjectMeta(name=name), spec=spec))
    try:
        async with asyncio.timeout(SECONDS):
            certificate = await _signed(client, asked)
    except TimeoutError:
        raise ClientError(f"certificate request {name} was not signed within {SECONDS:.0f} seconds") from None
    return Kubeconfig(administrator.server, administrator.ca, certificate, key).text("podlane", f"{NODE_PREFIX}{node}")


async def bootstrap_kubeconfig(client: Client, administrator: Kubeconfig, life: datetime.timedelta) -> str:
    """The text of a kubeconfig with which any machine can join as a node, as long as its token lives.

    Raises ClientError.
    """
    name, word = _letters(6), _letters(16)
    ends = (datetime.datetime.now(datetime.UTC) + life).strftime("%Y-%m-%dT%H:%M:%SZ")
    told = {
        "token-id": name,
        "token-secret": word,
        "expiration": ends,
        "usage-bootstrap-authentication": "true",
        "description": "made by podlane node token",
    }
    meta = ObjectMeta(name=f"bootstrap-token-{name}", namespace="kube-system")
    await client.create(Secret(metadata=meta, type="bootstrap.kubernetes.io/token", string_data=told))
    joining = Kubeconfig(administrator.server, administrator.ca, token=f"{name}.{word}")
    return joining.text("podlane", f"system:bootstrap:{name}")


def _letters(number: int) -> str:
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(number))


async def _signed(client: Client, item: CertificateSigningRequest) -> bytes:
    meta = item.metadata
    selector = f"metadata.name={meta.name}"
    async with aclosing(
        client.watch(CertificateSigningRequest, meta.resource_version, field_selector=selector)
    ) as told:
        async for event in told:
            refused = csr_condition(event.object, DENIED) or csr_condition(event.object, FAILED)
            if refused is not None:
                raise ClientError(f"certificate request {meta.name}: {refused.type}: {refused.message}")
            if event.object.status.certificate:
                return event.object.status.certificate
    raise InvalidResponse(f"the watch of certificate request {meta.name} ended")
