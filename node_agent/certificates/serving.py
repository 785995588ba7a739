"""The server certificate: from files, requested, or self-signed."""

from __future__ import annotations

import asyncio
import datetime
import logging
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path

from api.client.client import Client
from api.core.certificates import KUBELET_SERVING_SIGNER, NODE_USER_PREFIX, NODES_GROUP, SERVER_USAGES
from api.pki.pem import BadPem, Certificate, Subject, pem_blocks
from node_agent import metrics
from node_agent.certificates import crypto, csr
from node_agent.certificates.crypto import KeyPair
from node_agent.certificates.csr import CertificateSpec, request_certificate
from node_agent.clock import wall_clock
from node_agent.config import Settings
from reconcile.errors import Refused
from reconcile.loop import Loop, LoopTiming

log = logging.getLogger(__name__)

CHECK_SECONDS = 10.0
BACKOFF_MAX_SECONDS = 60.0

SELF_SIGNED_FILE = "serving-self-signed.pem"
REQUESTED_FILE = "serving.pem"
KEY_FILE = "serving-request.key"


class ServingCertificate:
    """The certificate of the HTTPS server, renewed while `loop` runs.

    It is the configured file, a certificate from the API server (`serverTLSBootstrap`), or a self-signed one. A
    requested certificate may need an approval; until it is issued, the server uses a self-signed one. One that
    `is_superseded` is requested again.
    """

    def __init__(
        self,
        settings: Settings,
        client: Client,
        clock: Callable[[], datetime.datetime] = wall_clock,
        *,
        is_superseded: Callable[[Certificate], bool] = lambda _: False,
    ) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock
        self._is_superseded = is_superseded
        self._directory = Path(settings.state_dir) / "pki"
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._files: tuple[bytes, bytes] | None = None
        self._pair: KeyPair | None = None
        self._loaded = asyncio.Event()
        self.loop = Loop(
            "serving certificate", self.renew, LoopTiming(resync=CHECK_SECONDS, backoff_max=BACKOFF_MAX_SECONDS)
        )

    def context(self) -> ssl.SSLContext:
        """Return the TLS context, always the same one. A renewed certificate applies to new connections.

        It has a certificate after `load()`, or after `loaded()` returned.
        """
        return self._context

    @property
    def info(self) -> Certificate | None:
        """Return the content of the certificate; None before it is loaded, and for configured files."""
        return self._pair.info if self._pair is not None else None

    async def loaded(self) -> None:
        """Wait until the context has a certificate."""
        await self._loaded.wait()

    async def load(self) -> None:
        """Load the configured files, the certificate of the previous agent process, or create a self-signed one.

        Raises NotReady, and Refused if the files do not hold a certificate with its key.
        """
        if self._settings.tls_cert_file:
            await self._load_files()
            return
        if self._settings.server_tls_bootstrap:
            pair = await self._read_pair(REQUESTED_FILE)
            if pair is not None and self._is_valid(pair):
                self._set_pair(pair)
                return
        await self._use_self_signed()

    async def renew(self) -> None:
        """Load changed files, or renew the certificate if it is due. Raises NotReady and Refused."""
        if self._settings.tls_cert_file or self._pair is None:
            await self.load()
        if self._settings.tls_cert_file:
            return
        if self._settings.server_tls_bootstrap:
            await self._request_if_due()
        elif self._is_renewal_due():
            await self._use_self_signed()

    # --- sources of the certificate ----------------------------------------------------------------------------------

    async def _load_files(self) -> None:
        certificate_file = Path(self._settings.tls_cert_file)
        key_file = Path(self._settings.tls_private_key_file)
        certificate = await asyncio.to_thread(csr.read_file, certificate_file)
        key = await asyncio.to_thread(csr.read_file, key_file)
        if (certificate, key) == self._files:
            return
        try:
            self._load_into_context(certificate.rstrip() + b"\n" + key)
        except ssl.SSLError as error:
            raise Refused(f"{certificate_file} and {key_file}: not a certificate with its key: {error}") from None
        self._files = (certificate, key)
        log.info("serving certificate loaded", extra={"file": str(certificate_file)})

    async def _request_if_due(self) -> None:
        pair = self._pair
        if pair and self._is_valid(pair) and not self._is_renewal_due() and not self._is_superseded(pair.info):
            return
        key_file = self._directory / KEY_FILE
        spec = CertificateSpec(KUBELET_SERVING_SIGNER, SERVER_USAGES, self._requested_subject)
        pair = await request_certificate(self._client, spec, key_file)
        await asyncio.to_thread(csr.write_file, self._directory / REQUESTED_FILE, pair.pem)
        await asyncio.to_thread(csr.remove_file, key_file)
        self._set_pair(pair)

    async def _use_self_signed(self) -> None:
        now = self._clock()
        pair = await self._read_pair(SELF_SIGNED_FILE)
        if pair is None or csr.is_renewal_due(pair.info, now):
            name = self._settings.node_name
            subject = Subject(f"{name}@{int(now.timestamp())}", (), (name,), (self._settings.node_ip,))
            pair = await crypto.self_signed_pair(subject, now)
            await asyncio.to_thread(csr.write_file, self._directory / SELF_SIGNED_FILE, pair.pem)
        self._set_pair(pair)

    # --- the current certificate -------------------------------------------------------------------------------------

    @property
    def _requested_subject(self) -> Subject:
        name = self._settings.node_name
        return Subject(f"{NODE_USER_PREFIX}{name}", (NODES_GROUP,), (name,), (self._settings.node_ip,))

    async def _read_pair(self, name: str) -> KeyPair | None:
        """Return key and certificate of a file, None if the file does not exist or is not valid."""
        path = self._directory / name
        data = await asyncio.to_thread(csr.read_file, path)
        if not data:
            return None
        try:
            return await crypto.load_key_pair(pem_blocks(data, "PRIVATE KEY"), pem_blocks(data, "CERTIFICATE"))
        except BadPem as error:
            log.warning("stored certificate is not valid", extra={"file": str(path), "error": str(error)})
            return None

    def _is_valid(self, pair: KeyPair) -> bool:
        """Return whether a certificate has the subject of a requested one, with the node's present address."""
        return pair.info.subject == self._requested_subject and pair.info.not_after > self._clock()

    def _is_renewal_due(self) -> bool:
        return self._pair is None or csr.is_renewal_due(self._pair.info, self._clock())

    def _set_pair(self, pair: KeyPair) -> None:
        self._load_into_context(pair.pem)
        self._pair = pair
        metrics.set_certificate_end(metrics.SERVING_CERTIFICATE_TTL, pair.info.not_after)
        extra = {"user": pair.info.subject.user, "until": pair.info.not_after.isoformat()}
        log.info("serving certificate loaded", extra=extra)

    def _load_into_context(self, pem: bytes) -> None:
        """Load certificate and key. Raises ssl.SSLError, and leaves the context as it was."""
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "both.pem"
            file.touch(mode=0o600)
            file.write_bytes(pem)
            # Loaded into another context first, because a failed load would damage the one in use.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file)
            self._context.load_cert_chain(file)
        self._loaded.set()
