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
    KUBELET_CLIENT_SIGNER,
    NODE_USER_PREFIX,
    NODES_GROUP,
    CertificateSigningRequest,
    CertificateSigningRequestSpec,
    csr_condition,
)
from api.core.config import Secret
from api.meta import names
from api.meta.times import format_time
from api.meta.types import ObjectMeta
from api.pki import keys
from api.pki.pem import Subject

SIGNING_TIMEOUT_SECONDS = 30.0
"""An API server that approves and signs without an administrator takes less."""


async def node_kubeconfig(client: Client, administrator: Kubeconfig, node: str) -> str:
    """Return the text of a kubeconfig with a client certificate of `node`. Raises ClientError.

    `client` must have an administrator's credentials, because the API server approves requests only of those by itself.
    """
    if wrong := names.dns_subdomain_error(node):
        raise ClientError(f"{node!r} is not a valid name of a node: {wrong}")
    key = await asyncio.to_thread(keys.generate_key)
    spec = CertificateSigningRequestSpec(
        request=keys.create_request(key, Subject(f"{NODE_USER_PREFIX}{node}", (NODES_GROUP,))),
        signer_name=KUBELET_CLIENT_SIGNER,
        usages=CLIENT_USAGES,
    )
    name = f"node-csr-{keys.key_fingerprint(key)[:43]}"
    csr = await client.create(CertificateSigningRequest(metadata=ObjectMeta(name=name), spec=spec))
    try:
        async with asyncio.timeout(SIGNING_TIMEOUT_SECONDS):
            certificate = await _wait_for_certificate(client, csr)
    except TimeoutError:
        raise ClientError(
            f"certificate request {name} was not signed within {SIGNING_TIMEOUT_SECONDS:.0f} seconds"
        ) from None
    return Kubeconfig(administrator.server, administrator.ca, certificate, key).text(
        "podlane", f"{NODE_USER_PREFIX}{node}"
    )


async def create_bootstrap_token(client: Client, lifetime: datetime.timedelta) -> str:
    """Create a bootstrap token, and return it. Raises ClientError.

    Any machine can join as a node with it, until the token expires.
    """
    token_id = _random_text(6)
    token_secret = _random_text(16)
    secret = Secret(
        metadata=ObjectMeta(name=f"bootstrap-token-{token_id}", namespace="kube-system"),
        type="bootstrap.kubernetes.io/token",
        string_data={
            "token-id": token_id,
            "token-secret": token_secret,
            "expiration": format_time(datetime.datetime.now(datetime.UTC) + lifetime),
            "usage-bootstrap-authentication": "true",
            "description": "made by podlane node token",
        },
    )
    await client.create(secret)
    return f"{token_id}.{token_secret}"


async def bootstrap_kubeconfig(client: Client, administrator: Kubeconfig, lifetime: datetime.timedelta) -> str:
    """Create a bootstrap token, and return the text of a kubeconfig with it. Raises ClientError."""
    token = await create_bootstrap_token(client, lifetime)
    return token_kubeconfig(Kubeconfig(administrator.server, administrator.ca, token=token))


def token_kubeconfig(kubeconfig: Kubeconfig) -> str:
    """Return the text of a kubeconfig whose credential is a bootstrap token."""
    return kubeconfig.text("podlane", f"system:bootstrap:{kubeconfig.token.partition('.')[0]}")


def _random_text(length: int) -> str:
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(length))


async def _wait_for_certificate(client: Client, csr: CertificateSigningRequest) -> bytes:
    name = csr.metadata.name
    watch = client.watch(
        CertificateSigningRequest, csr.metadata.resource_version, field_selector=f"metadata.name={name}"
    )
    async with aclosing(watch) as events:
        async for event in events:
            rejection = csr_condition(event.object, DENIED) or csr_condition(event.object, FAILED)
            if rejection is not None:
                raise ClientError(f"certificate request {name}: {rejection.type}: {rejection.message}")
            if event.object.status.certificate:
                return event.object.status.certificate
    raise InvalidResponse(f"the watch of certificate request {name} ended")
