"""The composition of the master: builds and runs storage, auth, controllers and server in order of dependency."""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from api.core.certificates import CertificateSigningRequest
from api.core.node import Node
from master.admission.cel_calls import CELCall, call_with
from master.admission.chain import AdmissionChain, admission_plugins
from master.admission.webhooks.calls import WebhookCall
from master.allocators import ALLOCATOR_CURSORS, AllocatorCursor
from master.apiextensions.conversion import ConversionCall
from master.audit.log import AuditLog, LogFile
from master.auth import pki, service_account_tokens
from master.auth.authorization import Authorizer
from master.auth.oauth_tokens import OAuthTokenAuthenticator
from master.cel.evaluator import CELEvaluator
from master.cluster_metrics import certificate_metrics, node_metrics, version_metrics
from master.config import MasterConfig, autoscaling_config, network_config
from master.config_files import load_audit_policy, load_providers
from master.controllers import api_services
from master.controllers.context import ControllerContext, ServerAddress
from master.controllers.controllers import CLUSTER_INFO, KUBERNETES_SERVICE, NAMESPACES, OAUTH_CLIENTS
from master.controllers.network import kubernetes_service
from master.controllers.runtime import ControllerRuntime
from master.dns import DNSServer
from master.oauth.session import SessionSealer, load_session_key
from master.registry.aggregated_apis import AggregatedAPIs
from master.registry.creation import ObjectCreation
from master.registry.custom_kinds import CustomKinds
from master.registry.external_caller import ExternalCaller
from master.registry.metrics import MetricsReader
from master.registry.projects import load_policy
from master.resources.scheme import Scheme, group_resource
from master.server import discovery
from master.server.auditing import Auditor
from master.server.discovery import MASTER_VERSION
from master.server.proxy import kubelet_client
from master.server.proxy.aggregation import Aggregation
from master.server.proxy.conversion_client import ConversionClient
from master.server.proxy.extension_client import ExtensionClient
from master.server.proxy.kubelet_client import KubeletClient, KubeletTLS
from master.server.proxy.webhook_client import WebhookClient
from master.server.server import Server, ServerDependencies, proxy_authorities, tls_context
from master.storage.interface import Storage
from master.storage.sqlite import SQLiteStorage
from reconcile.connection_limiter import Limits
from reconcile.exposition import MetricFamily
from reconcile.health_checks import HealthCheck

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Master:
    """A running master. `url` is its address, `kubeconfig` the file of the administrator."""

    url: str
    kubeconfig: Path
    store: Storage
    server: Server


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _kubelet_tls(authority: pki.Authority, directory: Path, *, verify: bool) -> KubeletTLS:
    client = kubelet_client.client_files(authority, directory, _now())
    return KubeletTLS.load(client, directory / pki.TRUSTED, verify=verify)


def _load_extensions(storage: Storage, scheme: Scheme) -> tuple[CustomKinds, AggregatedAPIs]:
    """Return what is served besides the built-in kinds, as the store says at every moment."""
    custom_kinds, aggregated_apis = CustomKinds(storage, scheme), AggregatedAPIs(storage)
    custom_kinds.load()
    aggregated_apis.load()
    return custom_kinds, aggregated_apis


def _server_address(config: MasterConfig, listening: int) -> ServerAddress | None:
    port = config.port or listening
    return ServerAddress(config.advertise_address, port) if port else None


def _issue_certificate(authority: pki.Authority, csr: CertificateSigningRequest, max_seconds: int) -> bytes:
    """Return the certificate for an approved request."""
    spec = csr.spec
    seconds = min(spec.expiration_seconds or max_seconds, max_seconds)
    log.info("certificate issued", extra={"request": csr.metadata.name, "seconds": seconds})
    return pki.sign_request(authority, spec.request, spec.usages, seconds, _now())


def _audit_log(config: MasterConfig) -> AuditLog | None:
    if config.audit_path is None:
        return None
    file = LogFile(config.audit_path, config.audit_log_max_size << 20, config.audit_log_max_backup)
    return AuditLog(file, is_strict=config.audit_log_mode == "blocking-strict")


def _metrics(
    storage: SQLiteStorage,
    chain: AdmissionChain,
    runtime: ControllerRuntime,
    expressions: CELEvaluator,
    aggregated_apis: AggregatedAPIs,
    pki_directory: Path,
) -> Iterator[MetricFamily]:
    """Yield the metrics of the parts that the server does not know."""
    yield from storage.metrics()
    yield from chain.metrics()
    yield from runtime.metrics()
    yield from expressions.metrics()
    yield from aggregated_apis.metrics()
    yield from node_metrics(record.object for record in storage.list(group_resource(Node)))
    yield certificate_metrics(pki.certificate_ends(pki_directory))
    yield from version_metrics(discovery.VERSION, version("podlane"))


@asynccontextmanager
async def run_master(config: MasterConfig) -> AsyncIterator[Master]:
    """Run the master in the context; inside, it is ready to serve. Raises NotReady and Refused."""
    # First of all: whoever has the store is the only master of stateDir, which has the keys, too.
    scheme = Scheme({ALLOCATOR_CURSORS: AllocatorCursor})
    storage = await SQLiteStorage.open(Path(config.state_dir, "store.db"), scheme.stored_types)
    try:
        custom_kinds, aggregated_apis = _load_extensions(storage, scheme)
        pki_directory = Path(config.state_dir, "pki")
        authority = await asyncio.to_thread(pki.authority, pki_directory, _now())
        front_proxy = await asyncio.to_thread(pki.front_proxy, pki_directory, _now())
        tokens = await asyncio.to_thread(service_account_tokens.load_token_signer, pki_directory)
        kubelet_tls = await asyncio.to_thread(
            _kubelet_tls, authority, pki_directory, verify=config.verify_node_certificates
        )
        project_requests = await asyncio.to_thread(load_policy, config)
        network, ca_certificate, authorizer = (
            network_config(config),
            authority.trusted_pem.decode(),
            Authorizer(storage),
        )
        oauth_tokens = OAuthTokenAuthenticator(storage, _now)
        providers = await asyncio.to_thread(load_providers, config)

        def public_url() -> str:
            """Return the URL of the server for users; empty until it listens."""
            port = config.port or server.port
            return config.master_public_url or (f"https://{config.advertise_address}:{port}" if port else "")

        authorize = authorizer.allows_in_admission if config.security_context_constraints else None
        if authorize is None:
            log.warning("security context constraints are off: whoever may create a pod in a project can own its node")
        kubelet_client = KubeletClient(
            storage, kubelet_tls, lambda: (config.advertise_address, config.port or server.port)
        )
        extensions = ExtensionClient(storage, kubelet_client)
        chain = AdmissionChain(admission_plugins(network.services, authorize, authorizer.decide), time.perf_counter)
        expressions = CELEvaluator()
        caller = ExternalCaller(
            {
                CELCall: call_with(expressions.ask),
                WebhookCall: WebhookClient(extensions).call,
                ConversionCall: ConversionClient(extensions, custom_kinds.conversions).call,
            }
        )
        creation = ObjectCreation(chain, _now, ca_certificate, authorize, caller, scheme)
        aggregation = Aggregation(
            storage,
            aggregated_apis,
            extensions,
            front_proxy.client,
            note_check=lambda: runtime.wake(api_services.CONTROLLER_NAME),
            note_contents=lambda: runtime.wake(NAMESPACES),
        )
        metrics_reader = MetricsReader(storage, kubelet_client, _now)
        runtime = ControllerRuntime(
            ControllerContext(
                store=storage,
                network=network,
                creation=creation,
                ca_certificate=ca_certificate,
                node_grace_seconds=config.node_monitor_grace_seconds,
                server_address=lambda: _server_address(config, server.port),
                public_url=public_url,
                sign_token=tokens.sign,
                clock=_now,
                max_terminated_pods=config.finished_pods,
                version=MASTER_VERSION,
                authorize=authorizer.allows,
                issue_certificate=lambda csr: _issue_certificate(authority, csr, config.certificate_seconds),
                uses_sccs=config.security_context_constraints,
                self_provisioning=config.self_provisioning,
                local_storage_class=config.local_storage_class,
                pod_metrics=metrics_reader,
                extension_apis=aggregation.metrics,
                autoscaling=autoscaling_config(config),
                custom_kinds=custom_kinds,
                aggregated_apis=aggregated_apis,
                remote_contents=aggregation.namespace_contents,
                front_proxy_ca=front_proxy.authority,
            )
        )
        audit_log = _audit_log(config)
        server = Server(
            ServerDependencies(
                store=storage,
                tokens=tokens,
                oauth_tokens=oauth_tokens,
                identity_providers=providers,
                session_sealer=SessionSealer(await asyncio.to_thread(load_session_key, pki_directory)),
                service_account_grant_method=config.service_account_grant_method,
                authorities=authority.trusted,
                creation=creation,
                custom_kinds=custom_kinds,
                authorizer=authorizer,
                ready=(
                    HealthCheck("storage", lambda: storage.write_problem),
                    HealthCheck("controllers", lambda: "" if runtime.started.is_set() else "starting"),
                ),
                address=config.advertise_address,
                public_url=public_url,
                nodes=kubelet_client,
                metrics_reader=metrics_reader,
                project_requests=project_requests,
                auditor=Auditor(audit_log, await asyncio.to_thread(load_audit_policy, config), _now),
                aggregated_apis=aggregated_apis,
                aggregated_proxy=aggregation.proxy,
                metrics=lambda: _metrics(storage, chain, runtime, expressions, aggregated_apis, pki_directory),
            ),
            Limits(per_user=config.max_connections_per_user),
        )
        audit = (audit_log.run(),) if audit_log is not None else ()
        async with _run_alongside(
            runtime.run(),
            storage.run(),
            DNSServer(storage, config).run(),
            oauth_tokens.run(),
            server.open_requests.run(),
            aggregation.checks.run(),
            *audit,
        ):
            await runtime.started.wait()
            try:
                await _listen(server, config, authority, proxy_authorities(providers))
                for controller in (KUBERNETES_SERVICE, OAUTH_CLIENTS, CLUSTER_INFO):
                    runtime.wake(controller)
                url = f"https://{config.advertise_address}:{server.port}"
                path = config.kubeconfig_path
                if await asyncio.to_thread(pki.admin_kubeconfig, authority, path, url, _now()):
                    log.info("administrator's kubeconfig written", extra={"file": str(path)})
                yield Master(url, path, storage, server)
            finally:
                await server.stop()
                for client in (aggregation, extensions, kubelet_client, expressions):
                    await client.close()
    finally:
        await storage.close()


@asynccontextmanager
async def _run_alongside(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines during the body of the context, until it ends. An exception in one of them ends the body too."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in coroutines]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as failed:
        if len(failed.exceptions) == 1:
            raise failed.exceptions[0] from None
        raise


async def _listen(server: Server, config: MasterConfig, authority: pki.Authority, proxy_ca_pem: str) -> None:
    directory = Path(config.state_dir) / "pki"
    addresses = [config.advertise_address]
    if config.listen_address not in ("0.0.0.0", "::"):
        addresses.append(config.listen_address)
    service = kubernetes_service.service_address(IPv4Network(config.service_network))
    public = [host] if (host := urlsplit(config.master_public_url).hostname) else []
    names = (*dict.fromkeys((*addresses, *public)), *kubernetes_service.DNS_NAMES, service)
    pem = await asyncio.to_thread(pki.server_certificate, authority, directory, names, _now())
    await server.start(config.listen_address, config.port, tls_context(pem, directory / pki.TRUSTED, proxy_ca_pem))
