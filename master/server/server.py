"""The HTTPS API server: authenticates, resolves, authorizes and dispatches every request in `Server._serve`."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from multidict import CIMultiDict

from master import errors
from master.audit.event import AuditRecord
from master.audit.log import AuditLogFull
from master.audit.policy import PANIC, RESPONSE_COMPLETE
from master.auth import pki
from master.auth.attributes import (
    ANONYMOUS,
    SYSTEM_MASTERS,
    Attributes,
    Decision,
    PathAttributes,
    User,
    connection_owner,
)
from master.auth.authentication import Authenticator, authorization_header
from master.auth.authorization import Authorizer
from master.auth.identity_providers.provider import IdentityProvider
from master.auth.identity_providers.request_header import RequestHeaderProvider
from master.auth.oauth_tokens import OAuthTokenAuthenticator
from master.auth.service_account_tokens import TokenSigner
from master.oauth import paths as oauth_paths
from master.oauth.server import OAuthServer
from master.oauth.session import SessionSealer
from master.registry import projects
from master.registry.aggregated_apis import AggregatedAPIs
from master.registry.creation import ObjectCreation
from master.registry.custom_kinds import CustomKinds
from master.registry.legacy_reviews import LegacyReviews
from master.registry.metrics import MetricsReader
from master.registry.pods import PodActions
from master.registry.projects import ProjectRequestPolicy, ProjectRequests
from master.registry.registry import Registry
from master.registry.security_reviews import SecurityReviews
from master.registry.tokens import TokenRequests
from master.registry.users import Users
from master.request_info import RequestInfo
from master.resources.oauth import OAUTH_ACCESS_TOKENS, OAUTH_AUTHORIZE_TOKENS
from master.server import routes, watch
from master.server.auditing import Auditor, annotate_decision, attributes_of
from master.server.handlers import BODY_TIMEOUT_SECONDS, MAX_BODY_BYTES, Handlers, warning_headers
from master.server.open_requests import OpenRequests
from master.server.proxy.aggregated_proxy import AggregatedProxy
from master.server.proxy.kubelet_client import KubeletClient
from master.server.proxy.pod_streams import PodStreams
from master.server.request_metrics import NO_RESPONSE, RequestLabels, RequestMetrics, request_labels
from master.server.routes import (
    AggregatedRoute,
    NonResourceRoute,
    ProjectRequestRoute,
    ProxyRoute,
    ResourceRoute,
    ReviewRoute,
    Route,
)
from master.storage.interface import Key, Storage
from reconcile.connection_limiter import REASONS, Limits
from reconcile.errors import NotReady
from reconcile.exposition import MetricFamily, counter, format_families, format_labels
from reconcile.health_checks import HealthCheck
from reconcile.listener import Listener

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDependencies:
    """The parts that the server uses.

    `ready` are the checks of /readyz. `address` is the advertised address of the server, `public_url` returns its URL
    for users. `nodes` is the client of the node servers, `metrics_reader` reads the usage of nodes and pods with it.
    `project_requests` decides what requested projects contain. `aggregated_proxy` serves the versions of
    `aggregated_apis`. `metrics` returns the metrics of other parts.
    """

    store: Storage
    tokens: TokenSigner
    oauth_tokens: OAuthTokenAuthenticator
    identity_providers: tuple[IdentityProvider, ...]
    session_sealer: SessionSealer
    service_account_grant_method: str
    authorities: tuple[x509.Certificate, ...]
    creation: ObjectCreation
    custom_kinds: CustomKinds
    authorizer: Authorizer
    ready: Sequence[HealthCheck]
    address: str
    public_url: Callable[[], str]
    nodes: KubeletClient
    metrics_reader: MetricsReader
    project_requests: ProjectRequestPolicy
    auditor: Auditor
    aggregated_apis: AggregatedAPIs
    aggregated_proxy: AggregatedProxy
    metrics: Callable[[], Iterable[MetricFamily]] = tuple


def proxy_authorities(providers: Iterable[IdentityProvider]) -> str:
    """Return the authorities of the certificates of authenticating proxies, as PEM; empty if there are none."""
    return "".join(
        authority.public_bytes(serialization.Encoding.PEM).decode()
        for provider in providers
        if isinstance(provider.authenticator, RequestHeaderProvider)
        for authority in provider.authenticator.authorities
    )


def tls_context(server_pem: Path, ca_pem: Path, proxy_ca_pem: str = "") -> ssl.SSLContext:
    """Return a TLS context that requests a client certificate.

    The handshake fails if the client shows a certificate of another authority than the cluster's and those of proxies.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(server_pem)
    context.load_verify_locations(ca_pem)
    if proxy_ca_pem:
        context.load_verify_locations(cadata=proxy_ca_pem)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


CREATED_STREAMS = frozenset(("attach", "exec", "portforward"))
"""Subresources for which a GET, as WebSocket clients send it, needs the right to create, too."""


OPENAPI_APIS = "/openapi/v3/apis/"

TOKEN_RESOURCES = (OAUTH_ACCESS_TOKENS.stored_group_resource, OAUTH_AUTHORIZE_TOKENS.stored_group_resource)
"""Resources whose names are hashes of tokens."""


class Server:
    """The HTTPS API server. After `start()`, `port` is the port number; `stop()` ends all requests."""

    def __init__(
        self,
        parts: ServerDependencies,
        limits: Limits = Limits(),  # noqa: B008
        body_seconds: float = BODY_TIMEOUT_SECONDS,
    ) -> None:
        store, clock = parts.store, parts.creation.clock
        self._store = store
        self._authenticator = Authenticator(store, parts.tokens, parts.oauth_tokens, clock)
        self._oauth = OAuthServer(
            storage=store,
            creation=parts.creation,
            clock=clock,
            providers=parts.identity_providers,
            sealer=parts.session_sealer,
            service_account_of=self._authenticator.service_account_of,
            groups=parts.oauth_tokens.groups,
            url=parts.public_url,
            service_account_grant_method=parts.service_account_grant_method,
        )
        self.open_requests = OpenRequests(store, self._authenticator.is_valid)
        self._authorities = parts.authorities if proxy_authorities(parts.identity_providers) else ()
        self._authorizer = parts.authorizer
        self._auditor = parts.auditor
        self._other_metrics = parts.metrics
        self._requests = RequestMetrics()
        self._project_request_message = parts.project_requests.message
        self._scheme = parts.custom_kinds.scheme
        self._apis = parts.aggregated_apis
        self._aggregated = parts.aggregated_proxy
        self._streams = PodStreams(store, parts.nodes, parts.creation)
        self.watches = watch.WatchHandler(store, clock, self._scheme, parts.creation.caller)
        registry = Registry(store, parts.creation, parts.authorizer, parts.custom_kinds)
        pods = PodActions(store, clock, registry)
        tokens = TokenRequests(store, parts.tokens, clock, registry)
        self._handlers = Handlers(
            store=store,
            registry=registry,
            metrics=parts.metrics_reader,
            project_requests=ProjectRequests(store, parts.creation, parts.project_requests),
            security_reviews=SecurityReviews(store, parts.authorizer.allows),
            users=Users(store, clock),
            legacy_reviews=LegacyReviews(store, parts.authorizer),
            subresource_handlers={
                ("Pod", "binding"): pods.bind,
                ("Pod", "eviction"): pods.evict,
                ("ServiceAccount", "token"): tokens.create,
            },
            streams=self._streams,
            scheme=self._scheme,
            aggregated_apis=parts.aggregated_apis,
            watches=self.watches,
            authenticator=self._authenticator,
            authorizer=parts.authorizer,
            tokens=parts.tokens,
            ready=parts.ready,
            server_metrics=self._metrics,
            issuer_url=lambda: f"https://{parts.address}:{self.port}",
            body_seconds=body_seconds,
        )
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", r"/{path:[\s\S]*}", self._handle)
        app.on_response_prepare.append(self._auditor.started)
        self._rejected_connections: Counter[str] = Counter()
        self._listener = Listener(app, limits, lambda reason: self._rejected_connections.update((reason,)))

    @property
    def port(self) -> int:
        """Return the port of the listener."""
        return self._listener.port

    async def start(self, address: str, port: int, context: ssl.SSLContext) -> None:
        """Listen. Raises NotReady if the address cannot be bound."""
        await self._listener.start(address, port, context)

    async def stop(self) -> None:
        """End watches and streams, stop listening, and end the other requests (`Listener.stop`)."""
        self.watches.end_all()
        self._streams.end_all()
        self._aggregated.end_all()
        await self._listener.stop()

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        start, code = time.monotonic(), NO_RESPONSE
        self._requests.begin(http.method)
        with self._auditor.request(http, _peer_address(http)) as record:
            try:
                response = await self._respond(http, record)
                code = response.status
            finally:
                self._requests.end(http.method, _labels(http, record), code, time.monotonic() - start)
            return response

    async def _respond(self, http: web.Request, record: AuditRecord) -> web.StreamResponse:
        """Serve a request, and record how it ended."""
        status, stage = None, RESPONSE_COMPLETE
        try:
            response = await self._serve(http, record)
        except errors.StatusError as failure:
            response, status = _error_response(failure), failure.status
        except NotReady as error:
            unavailable = errors.service_unavailable(str(error))
            response, status = _error_response(unavailable), unavailable.status
        except AuditLogFull:
            return _error_response(errors.service_unavailable("the audit log cannot record more requests"))
        except (asyncio.CancelledError, ConnectionError):
            self._auditor.record(record, RESPONSE_COMPLETE)
            raise
        except Exception:
            log.exception("request failed", extra={"method": http.method, "path": http.path})
            bug = errors.status_error(500, "InternalError", "the server failed; the reason is in its log")
            response, status, stage = _error_response(bug), bug.status, PANIC
        self._auditor.record(record, stage, response.status, status)
        return response

    async def _serve(self, http: web.Request, record: AuditRecord) -> web.StreamResponse:
        """Authenticate, resolve, impersonate, authorize and dispatch one request. Raises `errors.StatusError`."""
        if oauth_paths.serves(http.path):
            return await self._serve_oauth(http, record)
        transport, client = http.transport, None
        try:
            certificate = self._client_certificate(transport)
            authentication = self._authenticator.authenticate(certificate, authorization_header(http.headers))
            client = authentication.user
            self._count_connection(http, client)
            route = routes.resolve(
                http.method, http.path, http.rel_url.raw_path, http.query, self._scheme, self._apis.at
            )
            attributes = attributes_of(route, http.query)
        except errors.StatusError:
            self._auditor.decide_level(record, client, PathAttributes(http.method.lower(), http.path))
            raise
        record.info = route.info if isinstance(route, ResourceRoute | ProxyRoute) else None
        record.aggregated = (route.backend.group, route.backend.version) if isinstance(route, AggregatedRoute) else None
        record.token_name = self._token_name(record.info)
        self._auditor.decide_level(record, client, attributes)
        try:
            user = self._authorizer.impersonate(client, http.headers.items())
            record.impersonated = user if user is not client else None
            decision = self._authorize(user, route, attributes, http)
        except errors.StatusError:
            annotate_decision(record, Decision(False))
            raise
        annotate_decision(record, decision)
        client_address = _peer_address(http) if user is client else ""

        def current_user() -> User:
            return self._authenticator.current_user(authentication) if user is client else user

        if not _may_run_on(route):
            return await self._dispatch(http, user, route, client_address, current_user)
        long_running = self._requests.long_running(http.method, _labels(http, record))
        with self.open_requests.open(authentication), long_running:
            return await self._dispatch(http, user, route, client_address, current_user)

    def _client_certificate(self, transport: asyncio.Transport | None) -> Mapping[str, Any] | None:
        """Return the certificate of the client, as `getpeercert` does; None if the cluster's authority issued none.

        With an identity provider whose proxy has certificates of another authority, the handshake accepts those, too.
        """
        if transport is None:
            return None
        if self._authorities:
            der = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            if der is None or not any(pki.is_issued_by(der, authority) for authority in self._authorities):
                return None
        certificate: Mapping[str, Any] | None = transport.get_extra_info("peercert")
        return certificate

    async def _serve_oauth(self, http: web.Request, record: AuditRecord) -> web.StreamResponse:
        """Serve a request to the OAuth server, which authenticates users itself.

        Queries of these paths hold codes and tokens, so they are not recorded.
        """
        record.query = ""
        self._auditor.decide_level(record, None, PathAttributes(http.method.lower(), http.path))
        tls = http.transport.get_extra_info("ssl_object") if http.transport is not None else None
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        return await self._oauth.handle(http, _peer_address(http), certificate, record.annotate)

    def _token_name(self, info: RequestInfo | None) -> str:
        """Return the name of the token object that a path names; empty if there is none of that name.

        A name that no object has may be a token in clear.
        """
        if info is None or info.resource.stored_group_resource not in TOKEN_RESOURCES:
            return ""
        key = Key(info.resource.stored_group_resource, "", info.name)
        return "" if self._store.get_uncommitted(key) is None else info.name

    def _count_connection(self, http: web.Request, user: User) -> None:
        """Count a connection for its user. Raises TooManyRequests if the user has too many."""
        if user.name == ANONYMOUS:
            return
        owner, is_exempt = connection_owner(user, _peer_address(http)), SYSTEM_MASTERS in user.groups
        if not self._listener.authenticate(http.transport, owner, is_exempt=is_exempt):
            raise errors.too_many_requests()

    def _metrics(self) -> str:
        """Return the metrics of the master, in the text format of Prometheus."""
        return format_families(
            (
                *self._requests.families(),
                *self.watches.metrics(),
                *self._authenticator.metrics(),
                *self._auditor.metrics(),
                counter(
                    "podlane_rejected_connections_total",
                    "Connections rejected by the limits of listeners.",
                    {format_labels(reason=reason): self._rejected_connections[reason] for reason in REASONS},
                ),
                *self._other_metrics(),
            )
        )

    def _authorize(
        self, user: User, route: Route, attributes: Attributes | PathAttributes, http: web.Request
    ) -> Decision:
        """Require that the user may send this request, before its body is read. Raises Forbidden."""
        match route:
            case ResourceRoute(verb, info):
                return self._authorizer.require(user, verb, info, http.query)
            case ProxyRoute(verb, info):
                decision = self._authorizer.require(user, verb, info, {})
                if verb == "get" and info.subresource in CREATED_STREAMS:
                    decision = self._authorizer.require(user, "create", info, {})
                return decision
            case ProjectRequestRoute():
                decision = self._authorizer.decide(user, attributes)
                if not decision.allowed:
                    raise projects.not_allowed(self._project_request_message)
                return decision
            case _:
                return self._authorizer.require_attributes(user, attributes)

    async def _dispatch(
        self, http: web.Request, user: User, route: Route, client_address: str, current_user: Callable[[], User]
    ) -> web.StreamResponse:
        match route:
            case ResourceRoute():
                return await self._handlers.resource(http, user, route, client_address, current_user)
            case ProxyRoute():
                return await self._handlers.proxy(http, user, route)
            case AggregatedRoute(backend):
                return await self._aggregated.serve(http, user, backend)
            case ReviewRoute():
                return await self._handlers.review(http, user, route)
            case ProjectRequestRoute():
                return await self._handlers.project_request(http, user)
            case NonResourceRoute(path=path):
                remote = None
                if path.startswith(OPENAPI_APIS):
                    remote = await self._aggregated.openapi(http, path.removeprefix(OPENAPI_APIS))
                return await self._handlers.non_resource(http) if remote is None else remote


def _labels(http: web.Request, record: AuditRecord) -> RequestLabels:
    # The query of a request that is not authenticated is not parsed.
    is_dry_run = record.info is not None and http.query.get("dryRun") == "All"
    return request_labels(record, http.headers.get("Content-Type", ""), is_dry_run=is_dry_run)


def _may_run_on(route: Route) -> bool:
    """Return whether a request may take longer than its credential is valid: a watch, or one to another server."""
    return isinstance(route, ProxyRoute | AggregatedRoute) or (
        isinstance(route, ResourceRoute) and route.verb == "watch"
    )


def _peer_address(http: web.Request) -> str:
    """Return the address of the client's end of the connection."""
    peer = http.transport.get_extra_info("peername") if http.transport is not None else None
    return str(peer[0]) if peer else ""


def _error_response(failure: errors.StatusError) -> web.Response:
    status = failure.status
    retry = status.details.retry_after_seconds if status.details else 0
    headers = CIMultiDict(warning_headers(failure.warnings))
    if retry:
        headers["Retry-After"] = str(retry)
    return web.Response(
        status=status.code, body=errors.encode_status(status), content_type="application/json", headers=headers
    )
