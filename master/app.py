"""The master: builds and runs storage, auth, controllers and server in order of dependency."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from api.core.certificates import CertificateSigningRequest
from master.allocators import AllocatorCursor
from master.auth import pki, service_account_tokens
from master.config import MasterConfig, network_config
from master.controllers.context import ControllerContext, ServerAddress
from master.controllers.controllers import KUBERNETES_SERVICE
from master.controllers.network import kubernetes_service
from master.controllers.runtime import ControllerRuntime
from master.dns import DNSServer
from master.resources.scheme import TYPES
from master.server.proxy import kubelet_client
from master.server.proxy.kubelet_client import KubeletClient, KubeletTLS
from master.server.server import Server, ServerDependencies, tls_context
from master.storage.interface import Storage
from master.storage.sqlite import SQLiteStorage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Master:
    """A running master. `url` is where it is reached, `kubeconfig` the administrator's file."""

    url: str
    kubeconfig: Path
    store: Storage
    server: Server


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _kubelet_tls(authority: pki.Authority, directory: Path, *, verify: bool) -> KubeletTLS:
    client = kubelet_client.client_files(authority, directory, _now())
    return KubeletTLS.of(client, directory / "ca.crt", verify=verify)


def _server_address(settings: MasterConfig, listening: int) -> ServerAddress | None:
    port = settings.port or listening
    return ServerAddress(settings.advertise_address, port) if port else None


def _issue_certificate(authority: pki.Authority, item: CertificateSigningRequest, most: int) -> bytes:
    """The certificate for a request that was granted."""
    spec = item.spec
    seconds = min(spec.expiration_seconds or most, most)
    log.info("certificate issued", extra={"request": item.metadata.name, "seconds": seconds})
    return pki.sign_request(authority, spec.request, spec.usages, seconds, _now())


@asynccontextmanager
async def run_master(settings: MasterConfig) -> AsyncIterator[Master]:
    """Start everything, ready to serve; stop it on leaving. Raises NotReady and Refused."""
    pki_directory = Path(settings.state_dir, "pki")
    authority = await asyncio.to_thread(pki.authority, pki_directory, _now())
    tokens = await asyncio.to_thread(service_account_tokens.load_token_signer, pki_directory)
    to_nodes = await asyncio.to_thread(_kubelet_tls, authority, pki_directory, verify=settings.verify_node_certificates)
    store = await SQLiteStorage.open(Path(settings.state_dir, "store.db"), (*TYPES, AllocatorCursor))
    try:
        controllers = ControllerRuntime(
            ControllerContext(
                store=store,
                network=network_config(settings),
                ca_certificate=authority.pem.decode(),
                node_grace_seconds=settings.node_monitor_grace_seconds,
                server_address=lambda: _server_address(settings, server.port),
                sign_token=tokens.sign,
                clock=_now,
                max_terminated_pods=settings.finished_pods,
                authorize=lambda user, asked: server.may(user, asked),
                issue_certificate=lambda item: _issue_certificate(authority, item, settings.certificate_seconds),
            )
        )
        nodes = KubeletClient(store, to_nodes, lambda: (settings.advertise_address, settings.port or server.port))
        server = Server(
            ServerDependencies(
                store=store,
                authority=authority,
                tokens=tokens,
                clock=_now,
                unready=lambda: "" if controllers.started.is_set() else "starting",
                address=settings.advertise_address,
                nodes=nodes,
                services=network_config(settings).services,
            )
        )
        async with _run_alongside(controllers.run(), store.run(), DNSServer(store, settings).run()):
            await controllers.started.wait()
            try:
                await _listen(server, settings, authority)
                controllers.wake(KUBERNETES_SERVICE)
                url = f"https://{settings.advertise_address}:{server.port}"
                path = settings.kubeconfig_path
                if await asyncio.to_thread(pki.admin_kubeconfig, authority, path, url, _now()):
                    log.info("administrator's kubeconfig written", extra={"file": str(path)})
                yield Master(url, path, store, server)
            finally:
                await server.stop()
                await nodes.close()
    finally:
        await store.close()


@asynccontextmanager
async def _run_alongside(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run work beside the body, until the body ends. A bug that ends the work ends the body too."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as failed:
        if len(failed.exceptions) == 1:
            raise failed.exceptions[0] from None
        raise


async def _listen(server: Server, settings: MasterConfig, authority: pki.Authority) -> None:
    directory = Path(settings.state_dir) / "pki"
    addresses = [settings.advertise_address]
    if settings.listen_address not in ("0.0.0.0", "::"):
        addresses.append(settings.listen_address)
    service = kubernetes_service.service_address(IPv4Network(settings.service_network))
    known_as = (*addresses, *kubernetes_service.DNS_NAMES, service)
    pem = await asyncio.to_thread(pki.server_certificate, authority, directory, known_as, _now())
    await server.start(settings.listen_address, settings.port, tls_context(pem, directory / "ca.crt"))
