"""The certificate authorities of the cluster: keeps the kubeconfig and the server at those that the master trusts.

Only a Podlane master says in `cluster-info` which authority signs. With other API servers nothing happens here.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.client.authorities import authorities_of
from api.client.client import Client, ClientError, Forbidden, NotFound
from api.client.kubeconfig import BadKubeconfig, Kubeconfig
from api.core.cluster_info import (
    AUTHORITY_KEY,
    ISSUERS_ANNOTATION,
    NAME,
    NAMESPACE,
    TRUSTED_ANNOTATION,
)
from api.core.config import ConfigMap
from api.core.node import Node
from api.pki.pem import Certificate
from node_agent.certificates import csr
from node_agent.config import Settings
from reconcile.errors import NotReady

log = logging.getLogger(__name__)

SYNC_SECONDS = 60.0
END = "-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class ClusterAuthorities:
    """The authorities of a cluster as PEM, and the key identifier of the one that signs, in hex."""

    ca: bytes
    signer: str


class Authorities:
    """The authorities of the cluster. `trust` is called with those that the server of the agent shall trust as well."""

    def __init__(
        self,
        settings: Settings,
        client: Client,
        trust: Callable[[bytes], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._client = client
        self._trust = trust
        self._clock = clock
        self._synced_at = float("-inf")
        self._reported: dict[str, str] = {}
        self.signer = ""
        """The key identifier of the authority that signs; empty if it is not known."""

    def is_superseded(self, certificate: Certificate) -> bool:
        """Return whether another authority than that of a certificate signs now."""
        return bool(self.signer) and bool(certificate.issuer_id) and certificate.issuer_id != self.signer

    async def sync(self) -> None:
        """Write the authorities of the cluster into the kubeconfig, if they have changed. Raises NotReady.

        The master is asked once in SYNC_SECONDS.
        """
        if self._clock() < self._synced_at + SYNC_SECONDS:
            return
        try:
            info = await self._client.get(ConfigMap, NAME, NAMESPACE)
        except (NotFound, Forbidden):
            self._synced_at = self._clock()
            return
        except ClientError as error:
            raise NotReady(str(error)) from None
        found = parse(info)
        if found is None:
            return
        path = Path(self._settings.kubeconfig)
        try:
            kubeconfig = await asyncio.to_thread(Kubeconfig.load, path)
            if set(fingerprints(kubeconfig.ca)) != set(fingerprints(found.ca)):
                text = kubeconfig.with_authority(found.ca)
                await asyncio.to_thread(csr.write_file, path, text.encode())
                log.info("authorities of the cluster written", extra={"file": str(path)})
        except BadKubeconfig as error:
            raise NotReady(str(error)) from None
        if not self._settings.client_ca_file:
            self._trust(found.ca)
        self.signer = found.signer
        self._synced_at = self._clock()

    async def report(self, certificates: Iterable[Certificate | None]) -> None:
        """Annotate the Node with what it trusts, and with the authorities of its certificates. Raises NotReady."""
        if not self.signer:
            return
        try:
            trusted = fingerprints((await asyncio.to_thread(Kubeconfig.load, self._settings.kubeconfig)).ca)
            issuers = {certificate.issuer_id for certificate in certificates if certificate and certificate.issuer_id}
            annotations = {TRUSTED_ANNOTATION: ",".join(trusted), ISSUERS_ANNOTATION: ",".join(sorted(issuers))}
            if annotations != self._reported:
                patch: dict[str, Any] = {"metadata": {"annotations": annotations}}
                await self._client.patch(Node, self._settings.node_name, "", patch)
                self._reported = annotations
        except NotFound:
            return  # not registered yet
        except (BadKubeconfig, ClientError) as error:
            raise NotReady(str(error)) from None


def parse(info: ConfigMap) -> ClusterAuthorities | None:
    """Return the authorities in the ConfigMap, None if no Podlane master wrote it. Raises NotReady."""
    signer = info.data.get(AUTHORITY_KEY, "")
    if not signer:
        return None
    try:
        ca = authorities_of(info)
        if not fingerprints(ca):
            raise ValueError("there is no certificate")
    except ValueError as error:
        raise NotReady(f"ConfigMap {NAMESPACE}/{NAME}: {error}; a kubeconfig with certificates is accepted") from None
    return ClusterAuthorities(ca, signer)


def fingerprints(pem: bytes) -> tuple[str, ...]:
    """Return the SHA-256 of each certificate of a bundle, in hex. Raises ValueError."""
    return tuple(hashlib.sha256(ssl.PEM_cert_to_DER_cert(block)).hexdigest() for block in _blocks(pem.decode("ascii")))


def _blocks(text: str) -> Iterator[str]:
    begin = text.find("-----BEGIN CERTIFICATE-----")
    while begin >= 0:
        end = text.find(END, begin)
        if end < 0:
            raise ValueError("a certificate has no end")
        yield text[begin : end + len(END)]
        begin = text.find("-----BEGIN CERTIFICATE-----", end)
