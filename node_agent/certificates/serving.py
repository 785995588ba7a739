"""The certificate of the node's own HTTPS server: given in files, asked for, or signed by nobody but itself."""

from __future__ import annotations

import asyncio
import datetime
import logging
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path

from api import keys
from api.client import Client
from api.keys import Subject
from api.signing_requests import NODE_PREFIX, NODE_SERVING, NODES, SERVER_USAGES
from node_agent.certificates import key_files, rotation
from node_agent.certificates.asking import Identity, Wish, ask
from node_agent.settings import Settings
from reconcile.errors import Refused
from reconcile.loop import Loop, Pace

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
LAST_RETRY_SECONDS = 60.0


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class ServingCertificate:
    """`await load()`, then `context()` is good for a listener; while `loop` runs the certificate stays good.

    A certificate that is asked for may be long in coming: until then the server has one of its own making.
    """

    def __init__(self, settings: Settings, client: Client, clock: Callable[[], datetime.datetime] = _now) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock
        self._folder = Path(settings.state_dir) / "pki"
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._held = Identity(b"", b"")
        self.loop = Loop("serving certificate", self.passed, Pace(resync=LOOK_SECONDS, last_retry=LAST_RETRY_SECONDS))

    def context(self) -> ssl.SSLContext:
        """The same one at each call; a certificate that is renewed counts for connections from then on."""
        return self._context

    async def load(self) -> None:
        """The certificate of the files, the one that an earlier agent had, or another. Raises NotReady and Refused."""
        if self._settings.tls_cert_file:
            await self._load_files()
            return
        if self._settings.server_tls_bootstrap:
            held = await asyncio.to_thread(self._kept, "serving.pem")
            if held is not None and self._serves(held):
                self._use(held)
                return
        await self._sign_ourselves()

    async def passed(self) -> None:
        """What `loop` does each time. Raises NotReady and Refused."""
        if self._settings.tls_cert_file:
            await self._load_files()
        elif self._settings.server_tls_bootstrap:
            await self._ask_in_time()
        elif self._is_due():
            await self._sign_ourselves()

    # --- three ways ------------------------------------------------------------------------------------------------

    async def _load_files(self) -> None:
        certificate, key = Path(self._settings.tls_cert_file), Path(self._settings.tls_private_key_file)
        found = Identity(*await asyncio.to_thread(lambda: (key_files.read(key), key_files.read(certificate))))
        if found == self._held:
            return
        try:
            self._use(found)
        except (ssl.SSLError, keys.BadPem) as error:
            raise Refused(f"{certificate} and {key}: no certificate with its key: {error}") from None

    async def _ask_in_time(self) -> None:
        if self._serves(self._held) and not self._is_due():
            return
        pending = self._folder / "serving-request.key"
        wish = Wish(NODE_SERVING, SERVER_USAGES, self._subject)
        fresh = await ask(self._client, wish, pending)
        await asyncio.to_thread(key_files.write, self._folder / "serving.pem", fresh.together)
        await asyncio.to_thread(key_files.remove, pending)
        self._use(fresh)

    async def _sign_ourselves(self) -> None:
        held = await asyncio.to_thread(self._kept, "serving-self-signed.pem")
        if held is None or rotation.is_due(keys.read(held.certificate), self._clock()):
            held = await asyncio.to_thread(self._self_signed)
        self._use(held)

    def _self_signed(self) -> Identity:
        key, now = keys.new_key(), self._clock()
        name, address = self._settings.node_name, self._settings.node_ip
        subject = Subject(f"{name}@{int(now.timestamp())}", (), (name,), (address,))
        made = Identity(key, keys.self_signed(key, subject, now))
        key_files.write(self._folder / "serving-self-signed.pem", made.together)
        return made

    # --- the one there is ------------------------------------------------------------------------------------------

    @property
    def _subject(self) -> Subject:
        name = self._settings.node_name
        return Subject(f"{NODE_PREFIX}{name}", (NODES,), (name,), (self._settings.node_ip,))

    def _kept(self, name: str) -> Identity | None:
        """What is in the file, if it is good for anything."""
        data = key_files.read(self._folder / name)
        held = Identity(keys.blocks(data, "PRIVATE KEY"), keys.blocks(data, "CERTIFICATE"))
        try:
            return held if data and keys.belongs(held.key, held.certificate) else None
        except keys.BadPem as error:
            log.warning("a certificate cannot be read", extra={"file": str(self._folder / name), "error": str(error)})
            return None

    def _serves(self, held: Identity) -> bool:
        """Whether it is one that was asked for, is still good, and names this node as it is now."""
        if not held.certificate:
            return False
        said = keys.read(held.certificate)
        return said.subject == self._subject and said.ends > self._clock()

    def _is_due(self) -> bool:
        return rotation.is_due(keys.read(self._held.certificate), self._clock())

    def _use(self, fresh: Identity) -> None:
        with tempfile.TemporaryDirectory() as folder:
            both = Path(folder) / "both.pem"
            both.touch(mode=0o600)
            both.write_bytes(fresh.together)
            # Into another context first: what does not go together must not take the place of what serves.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(both)
            self._context.load_cert_chain(both)
        self._held = fresh
        said = keys.read(fresh.certificate)
        log.info("serving certificate in use", extra={"user": said.subject.user, "until": said.ends.isoformat()})
