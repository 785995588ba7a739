"""Users with certificates of a cluster's CA."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from api.client.kubeconfig import Kubeconfig
from master.auth import pki
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.tls_connector import tls_connector


@asynccontextmanager
async def user_session(server: ApiServer, root: Path, user: str, *groups: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a session that authenticates a user by a client certificate, which is written below `root`."""
    config = Kubeconfig.load(server.kubeconfig)
    directory = server.kubeconfig.parent / "state" / "pki"
    key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    ca = pki.Authority(key, x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes()))
    identity = pki.client_identity(ca, user, groups, datetime.datetime.now(datetime.UTC))
    pem = root / f"{user}.pem"
    pem.write_bytes(identity.key + identity.certificate)
    context = ssl.create_default_context(cadata=config.ca.decode())
    context.load_cert_chain(pem)
    async with aiohttp.ClientSession(config.server, connector=tls_connector(context)) as session:
        yield session
