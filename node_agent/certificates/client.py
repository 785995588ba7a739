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
from node_agent import metrics
from node_agent.certificates import crypto, csr
from node_agent.certificates.authorities import Authorities
from node_agent.certificates.crypto import KeyPair
from node_agent.certificates.csr import CertificateSpec, request_certificate
from node_agent.certificates.serving import ServingCertificate
from node_agent.clock import wall_clock
from node_agent.config import Settings
from reconcile.errors import NotReady, os_errors_as
from reconcile.loop import Loop, LoopTiming, retry_delay

log = logging.getLogger(__name__)

TIMING = LoopTiming(resync=10.0, backoff_base=1.0, backoff_max=60.0)
Clock = Callable[[], datetime.datetime]


async def load_kubeconfig(settings: Settings, clock: Clock = wall_clock) -> Kubeconfig:
    """Return the kubeconfig of the node.

    With `bootstrapKubeconfig`, requests a certificate if the kubeconfig has no valid one, and waits until it is issued.
    `podlane join` removes that file when the node has joined. Raises BadKubeconfig.
    """
    if not await asyncio.to_thread(_can_bootstrap, settings) or await _has_valid_credentials(
        Path(settings.kubeconfig), clock()
    ):
        return Kubeconfig.load(settings.kubeconfig)
    failures = 0
    while True:
        try:
            await _bootstrap(settings)
            return Kubeconfig.load(settings.kubeconfig)
        except NotReady as error:
            failures += 1
            delay = retry_delay(failures, TIMING)
            log.warning("TLS bootstrap failed", extra={"error": str(error), "retry_in": f"{delay:.0f}s"})
            await asyncio.sleep(delay)


def _can_bootstrap(settings: Settings) -> bool:
    """Return whether there is a bootstrap kubeconfig. A missing one counts as an error while there is no other."""
    if not settings.bootstrap_kubeconfig:
        return False
    return Path(settings.bootstrap_kubeconfig).exists() or not Path(settings.kubeconfig).exists()


async def _bootstrap(settings: Settings) -> None:
    """Write a kubeconfig with a new certificate. Raises NotReady, and BadKubeconfig for the bootstrap kubeconfig."""
    bootstrap = Kubeconfig.load(settings.bootstrap_kubeconfig)
    async with Client(bootstrap) as client:
        pair = await _request_client_certificate(client, settings)
    kubeconfig = replace(bootstrap, certificate=pair.certificate, key=pair.key, token="")
    text = kubeconfig.text("podlane", f"{NODE_USER_PREFIX}{settings.node_name}")
    await _write_kubeconfig(settings, text)
    log.info("kubeconfig written", extra={"file": settings.kubeconfig})


async def _has_valid_credentials(path: Path, now: datetime.datetime) -> bool:
    """Return whether a kubeconfig has a token, or a certificate that has not expired."""
    try:
        kubeconfig = Kubeconfig.load(path)
        return bool(kubeconfig.token) or (await crypto.inspect_certificate(kubeconfig.certificate)).not_after > now
    except (BadKubeconfig, BadPem) as error:
        log.info("no valid client certificate; requesting one", extra={"reason": str(error)})
        return False


class ClientCertificate:
    """The rotation of the certificate in the kubeconfig, while `loop` runs.

    The file is replaced atomically; this daemon and others that use the file load the new certificate. A certificate of
    another user than this node is not renewed.
    """

    def __init__(
        self,
        settings: Settings,
        client: Client,
        clock: Clock = wall_clock,
        *,
        authorities: Authorities,
        serving: ServingCertificate,
    ) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock
        self._authorities = authorities
        self._serving = serving
        self._file_version: tuple[int, int] | None = None
        self._certificate: Certificate | None = None
        self.loop = Loop("client certificate", self.rotate, TIMING)

    async def rotate(self) -> None:
        """Renew the certificate if it is due, or if its authority is not the one that signs. Raises NotReady."""
        if not self._settings.rotate_certificates:
            return
        await self._authorities.sync()
        try:
            certificate = await self._read_certificate()
            await self._authorities.report((certificate, self._serving.info))
            is_due = certificate is not None and csr.is_renewal_due(certificate, self._clock())
            if certificate is None or not (is_due or self._authorities.is_superseded(certificate)):
                return
            if certificate.not_after > self._clock():
                await self._renew()
            elif await asyncio.to_thread(_can_bootstrap, self._settings):
                await _bootstrap(self._settings)
            else:
                raise NotReady(f"{self._settings.kubeconfig}: its certificate expired on {certificate.not_after}")
        except BadKubeconfig as error:
            raise NotReady(str(error)) from None

    async def _renew(self) -> None:
        pair = await _request_client_certificate(self._client, self._settings)
        path = Path(self._settings.kubeconfig)
        text = Kubeconfig.load(path).with_client_certificate(pair.certificate, pair.key)
        await _write_kubeconfig(self._settings, text)
        until = pair.info.not_after.isoformat()
        log.info("client certificate renewed", extra={"file": str(path), "until": until})

    async def _read_certificate(self) -> Certificate | None:
        """Return this node's certificate in the kubeconfig, None if there is none. Reads the file if it has changed."""
        path = Path(self._settings.kubeconfig)
        with os_errors_as(NotReady, path):
            state = await asyncio.to_thread(path.stat)
        file_version = (state.st_mtime_ns, state.st_ino)
        if file_version == self._file_version:
            return self._certificate
        kubeconfig = Kubeconfig.load(path)
        certificate = None
        try:
            if kubeconfig.certificate:
                certificate = await crypto.inspect_certificate(kubeconfig.certificate)
        except BadPem as error:
            raise NotReady(f"{path}: {error}") from None
        if certificate is not None and certificate.subject != _subject(self._settings):
            certificate = None
        if certificate is not None:
            metrics.set_certificate_end(metrics.CLIENT_CERTIFICATE_TTL, certificate.not_after)
        self._certificate = certificate
        self._file_version = file_version
        return certificate


async def _request_client_certificate(client: Client, settings: Settings) -> KeyPair:
    spec = CertificateSpec(KUBELET_CLIENT_SIGNER, CLIENT_USAGES, _subject(settings))
    return await request_certificate(client, spec, _key_file(settings))


async def _write_kubeconfig(settings: Settings, text: str) -> None:
    """Write the kubeconfig, and remove the key that was stored for the request."""
    await asyncio.to_thread(csr.write_file, Path(settings.kubeconfig), text.encode())
    await asyncio.to_thread(csr.remove_file, _key_file(settings))


def _subject(settings: Settings) -> Subject:
    return Subject(f"{NODE_USER_PREFIX}{settings.node_name}", (NODES_GROUP,))


def _key_file(settings: Settings) -> Path:
    return Path(settings.state_dir) / "pki" / "client-request.key"
