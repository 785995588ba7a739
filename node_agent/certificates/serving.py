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
from api.pki import pem
from api.pki.pem import BadPem, Subject
from node_agent.certificates import crypto, csr
from node_agent.certificates.crypto import KeyPair
from node_agent.certificates.csr import CertificateSpec, request_certificate
from node_agent.config import Settings
from reconcile.errors import Refused
from reconcile.loop import Loop, LoopTiming

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
LAST_RETRY_SECONDS = 60.0

SELF_SIGNED = "serving-self-signed.pem"


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class ServingCertificate:
    """While `loop` runs, `context()` is good for a listener: from `await loaded()` on, which `await load()` is before.

    A certificate that is asked for may be long in coming: until then the server has one of its own making.
    """

    def __init__(self, settings: Settings, client: Client, clock: Callable[[], datetime.datetime] = _now) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock
        self._folder = Path(settings.state_dir) / "pki"
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._given: tuple[bytes, bytes] | None = None
        self._held: KeyPair | None = None
        self._loaded = asyncio.Event()
        self.loop = Loop(
            "serving certificate", self.passed, LoopTiming(resync=LOOK_SECONDS, backoff_max=LAST_RETRY_SECONDS)
        )

    def context(self) -> ssl.SSLContext:
        """The same one at each call; a certificate that is renewed counts for connections from then on."""
        return self._context

    async def loaded(self) -> None:
        """Returns when there is a certificate in use."""
        await self._loaded.wait()

    async def load(self) -> None:
        """The certificate of the files, the one that an earlier agent had, or another. Raises NotReady and Refused."""
        if self._settings.tls_cert_file:
            await self._load_files()
            return
        if self._settings.server_tls_bootstrap:
            held = await self._kept("serving.pem")
            if held is not None and self._serves(held):
                self._use(held)
                return
        await self._sign_ourselves()

    async def passed(self) -> None:
        """What `loop` does each time. Raises NotReady and Refused."""
        if self._settings.tls_cert_file or self._held is None:
            await self.load()
        if self._settings.tls_cert_file:
            return
        if self._settings.server_tls_bootstrap:
            await self._ask_in_time()
        elif self._is_due():
            await self._sign_ourselves()

    # --- three ways ------------------------------------------------------------------------------------------------

    async def _load_files(self) -> None:
        certificate, key = Path(self._settings.tls_cert_file), Path(self._settings.tls_private_key_file)
        found = await asyncio.to_thread(lambda: (csr.read_file(key), csr.read_file(certificate)))
        if found == self._given:
            return
        try:
            self._take(found[1].rstrip() + b"\n" + found[0])
        except ssl.SSLError as error:
            raise Refused(f"{certificate} and {key}: no certificate with its key: {error}") from None
        self._given = found
        log.info("serving certificate in use", extra={"file": str(certificate)})

    async def _ask_in_time(self) -> None:
        if self._held is not None and self._serves(self._held) and not self._is_due():
            return
        pending = self._folder / "serving-request.key"
        wish = CertificateSpec(KUBELET_SERVING_SIGNER, SERVER_USAGES, self._subject)
        fresh = await request_certificate(self._client, wish, pending)
        await asyncio.to_thread(csr.write_file, self._folder / "serving.pem", fresh.together)
        await asyncio.to_thread(csr.remove_file, pending)
        self._use(fresh)

    async def _sign_ourselves(self) -> None:
        name, address, now = self._settings.node_name, self._settings.node_ip, self._clock()
        held = await self._kept(SELF_SIGNED)
        if held is None or csr.is_renewal_due(held.says, now):
            held = await crypto.self_signed_pair(
                Subject(f"{name}@{int(now.timestamp())}", (), (name,), (address,)), now
            )
            await asyncio.to_thread(csr.write_file, self._folder / SELF_SIGNED, held.together)
        self._use(held)

    # --- the one there is ------------------------------------------------------------------------------------------

    @property
    def _subject(self) -> Subject:
        name = self._settings.node_name
        return Subject(f"{NODE_USER_PREFIX}{name}", (NODES_GROUP,), (name,), (self._settings.node_ip,))

    async def _kept(self, name: str) -> KeyPair | None:
        """What is in the file, if it is good for anything."""
        data = await asyncio.to_thread(csr.read_file, self._folder / name)
        try:
            return (
                await crypto.load_key_pair(pem.pem_blocks(data, "PRIVATE KEY"), pem.pem_blocks(data, "CERTIFICATE"))
                if data
                else None
            )
        except BadPem as error:
            log.warning("a certificate cannot be read", extra={"file": str(self._folder / name), "error": str(error)})
            return None

    def _serves(self, held: KeyPair) -> bool:
        """Whether it is one that was asked for, is still good, and names this node as it is now."""
        return held.says.subject == self._subject and held.says.not_after > self._clock()

    def _is_due(self) -> bool:
        return self._held is None or csr.is_renewal_due(self._held.says, self._clock())

    def _use(self, fresh: KeyPair) -> None:
        self._take(fresh.together)
        self._held = fresh
        says = fresh.says
        log.info("serving certificate in use", extra={"user": says.subject.user, "until": says.not_after.isoformat()})

    def _take(self, together: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            both = Path(folder) / "both.pem"
            both.touch(mode=0o600)
            both.write_bytes(together)
            # Into another context first: what does not go together must not take the place of what serves.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(both)
            self._context.load_cert_chain(both)
        self._loaded.set()
