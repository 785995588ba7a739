"""Discovery of a cluster's authorities by a machine that has only their hashes, as `kubeadm join` does it.

The first answer comes over a connection that nobody has verified. Of its certificates count only those whose public key
has one of the hashes. They verify a second connection, and the answer on that is the result.
"""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Collection
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import aiohttp
import msgspec

from api.client.authorities import authorities_of
from api.client.client import ClientError, InvalidResponse, unreachable
from api.client.connections import CLEANUP_CLOSED
from api.client.kubeconfig import Kubeconfig
from api.core.cluster_info import PATH
from api.core.config import ConfigMap
from api.pki import keys
from api.pki.pem import BadPem, Certificate

TIMEOUT_SECONDS = 15.0
MAX_BYTES = 64 << 10
"""Limit of an answer, which may be of anybody."""


class UntrustedServer(ClientError):
    """A server that has none of the accepted authorities."""


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The authorities of a cluster as PEM, their contents, and the time of the server (None if it did not say)."""

    ca: bytes
    certificates: tuple[Certificate, ...]
    server_time: datetime.datetime | None


async def fetch_accepted(server: str, hashes: Collection[str]) -> ClusterInfo:
    """Return the authorities of a server whose public keys have one of the hashes. Raises ClientError.

    The connection is not verified: of the answer, only the certificates are certain, because of the hashes.
    """
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    info = await _fetch(server, unverified)
    by_hash = keys.certificates_by_key_hash(info.ca)
    accepted = b"".join(pem for key_hash, pem in by_hash.items() if key_hash in hashes)
    if not accepted:
        found = ", ".join(sorted(by_hash))
        raise UntrustedServer(
            f"{server} has the authority {found}; {', '.join(sorted(hashes))} is accepted (--ca-hash). "
            f"Either the token is of another cluster, or somebody else answers at this address"
        )
    return ClusterInfo(accepted, _contents(accepted), info.server_time)


async def fetch_verified(kubeconfig: Kubeconfig) -> ClusterInfo:
    """Return all authorities of a server, over a connection that the kubeconfig verifies.

    Raises ClientError and BadKubeconfig.
    """
    return await _fetch(kubeconfig.server, kubeconfig.ssl_context(), kubeconfig.server_name)


async def _fetch(server: str, context: ssl.SSLContext, server_name: str = "") -> ClusterInfo:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    connector = aiohttp.TCPConnector(ssl=context, enable_cleanup_closed=CLEANUP_CLOSED)
    plain = {"Accept": "application/json", "Accept-Encoding": "identity"}
    try:
        async with (
            aiohttp.ClientSession(
                connector=connector, timeout=timeout, headers=plain, auto_decompress=False, trust_env=False
            ) as http,
            http.get(server + PATH, allow_redirects=False, server_hostname=server_name or None) as response,
        ):
            body = await _read(server, response.content)
            return _parse(server, response.status, body, response.headers.get("Date", ""))
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise unreachable(server, error, "the expected one") from None


async def _read(server: str, content: aiohttp.StreamReader) -> bytes:
    body = b""
    async for chunk in content.iter_chunked(MAX_BYTES):
        body += chunk
        if len(body) > MAX_BYTES:
            raise InvalidResponse(f"{server}{PATH}: the answer has more than {MAX_BYTES} bytes")
    return body


def _parse(server: str, status: int, body: bytes, date: str) -> ClusterInfo:
    """Return the content of an answer. Raises InvalidResponse."""
    if status != HTTPStatus.OK:
        raise InvalidResponse(f"{server}{PATH}: status {status}; the master of a cluster has this ConfigMap")
    try:
        info = msgspec.json.decode(body, type=ConfigMap)
        pem = authorities_of(info)
        return ClusterInfo(pem, _contents(pem), _time(date))
    except (BadPem, msgspec.MsgspecError, ValueError, RecursionError):
        raise InvalidResponse(f"{server}{PATH}: the ConfigMap has no certificate of an authority") from None


def _contents(pem: bytes) -> tuple[Certificate, ...]:
    return tuple(keys.parse_certificate(certificate) for certificate in keys.certificates_by_key_hash(pem).values())


def _time(date: str) -> datetime.datetime | None:
    try:
        return parsedate_to_datetime(date).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None
