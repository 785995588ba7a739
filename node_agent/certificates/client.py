"""The client certificate in the kubeconfig: bootstrap and rotation."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from api.client.client import Client
from api.client.kubeconfig import BadKubeconfig, Kubeconfig
from api.core.certificates import CLIENT_USAGES, KUBELET_CLIENT_SIGNER, NODE_USER_PREFIX, NODES_GROUP
from api.pki.pem import BadPem, Certificate, Subject
from node_agent.certificates import crypto, csr
from node_agent.certificates.csr import CertificateSpec, request_certificate
from node_agent.clock import wall_clock
from node_agent.config import Settings
from reconcile.errors import NotReady
from reconcile.loop import Loop, LoopTiming, retry_delay

log = logging.getLogger(__name__)

PACE = LoopTiming(resync=10.0, backoff_base=1.0, backoff_max=60.0)
Clock = Callable[[], datetime.datetime]


async def load_kubeconfig(settings: Settings, clock: Clock = wall_clock) -> Kubeconfig:
    """The node's kubeconfig. With `bootstrapKubeconfig` a certificate is asked for if there is none that is good.

    Waits as long as nobody approves it. Raises BadKubeconfig.
    """
    if not settings.bootstrap_kubeconfig or await _is_good(Path(settings.kubeconfig), clock()):
        return Kubeconfig.load(settings.kubeconfig)
    failures = 0
    while True:
        try:
            await _bootstrap(settings)
            return Kubeconfig.load(settings.kubeconfig)
        except NotReady as error:
            failures += 1
            delay = retry_delay(failures, PACE)
            log.warning("the node has not joined yet", extra={"error": str(error), "retry_in": f"{delay:.0f}s"})
            await asyncio.sleep(delay)


async def _bootstrap(settings: Settings) -> None:
    """One try. Raises NotReady, and BadKubeconfig when the file to join by is none."""
    first = Kubeconfig.load(settings.bootstrap_kubeconfig)
    pending = _pending(settings)
    async with Client(first) as client:
        fresh = await request_certificate(
            client, CertificateSpec(KUBELET_CLIENT_SIGNER, CLIENT_USAGES, _subject(settings)), pending
        )
    own = replace(first, certificate=fresh.certificate, key=fresh.key, token="")
    text = own.text("podlane", f"{NODE_USER_PREFIX}{settings.node_name}")
    await asyncio.to_thread(csr.write_file, Path(settings.kubeconfig), text.encode())
    await asyncio.to_thread(csr.remove_file, pending)
    log.info("kubeconfig written", extra={"file": settings.kubeconfig})


async def _is_good(path: Path, now: datetime.datetime) -> bool:
    """Whether the API server would know us by that file."""
    try:
        held = Kubeconfig.load(path)
        return bool(held.token) or (await crypto.inspect_certificate(held.certificate)).not_after > now
    except (BadKubeconfig, BadPem) as error:
        log.info("a certificate is needed", extra={"why": str(error)})
        return False


class ClientCertificate:
    """While `loop` runs, the certificate in the kubeconfig is replaced before it is over.

    The file is written as a whole; this daemon and others that read it take up what is new. Certificates of somebody
    else than this node are left alone.
    """

    def __init__(self, settings: Settings, client: Client, clock: Clock = wall_clock) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock
        self._edition: tuple[tuple[int, int], ...] = ()
        self._held: Certificate | None = None
        self.loop = Loop("client certificate", self.passed, PACE)

    async def passed(self) -> None:
        """What `loop` does each time. Raises NotReady."""
        if not self._settings.rotate_certificates:
            return
        try:
            held = await self._read()
            if held is None or not csr.is_renewal_due(held, self._clock()):
                return
            if held.not_after > self._clock():
                await self._renew()
            elif self._settings.bootstrap_kubeconfig:
                await _bootstrap(self._settings)
            else:
                raise NotReady(f"{self._settings.kubeconfig}: the certificate in it is over since {held.not_after}")
        except BadKubeconfig as error:
            raise NotReady(str(error)) from None

    async def _renew(self) -> None:
        pending = _pending(self._settings)
        fresh = await request_certificate(
            self._client, CertificateSpec(KUBELET_CLIENT_SIGNER, CLIENT_USAGES, _subject(self._settings)), pending
        )
        place = Path(self._settings.kubeconfig)
        text = Kubeconfig.load(place).with_client_certificate(fresh.certificate, fresh.key)
        await asyncio.to_thread(csr.write_file, place, text.encode())
        await asyncio.to_thread(csr.remove_file, pending)
        until = fresh.says.not_after.isoformat()
        log.info("client certificate renewed", extra={"file": str(place), "until": until})

    async def _read(self) -> Certificate | None:
        """Our own certificate in the kubeconfig; None if there is none. The file is read when it has changed."""
        place = Path(self._settings.kubeconfig)
        try:
            edition = tuple((one.stat().st_mtime_ns, one.stat().st_ino) for one in (place,))
        except OSError as error:
            raise NotReady(f"{place}: {error.strerror}") from None
        if edition == self._edition:
            return self._held
        config = Kubeconfig.load(place)
        try:
            said = await crypto.inspect_certificate(config.certificate) if config.certificate else None
        except BadPem as error:
            raise NotReady(f"{place}: {error}") from None
        self._held = said if said is not None and said.subject == _subject(self._settings) else None
        self._edition = edition
        return self._held


def _subject(settings: Settings) -> Subject:
    return Subject(f"{NODE_USER_PREFIX}{settings.node_name}", (NODES_GROUP,))


def _pending(settings: Settings) -> Path:
    return Path(settings.state_dir) / "pki" / "client-request.key"
