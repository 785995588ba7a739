"""The HTTPS listener: authenticates, authorizes and dispatches requests."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from api.meta.types import Object
from master import errors
from master.admission.chain import AdmissionChain
from master.auth import reviews, service_account_tokens
from master.auth.attributes import READ_VERBS, Attributes, PathAttributes, User
from master.auth.authentication import Authenticator
from master.auth.authorization import Authorizer
from master.auth.pki import Authority
from master.auth.service_account_tokens import TokenSigner
from master.config import DEFAULT_SERVICE_CONFIG, ServiceConfig
from master.registry import projects
from master.registry.metrics import MetricsReader
from master.registry.pods import PodActions
from master.registry.projects import ProjectRequests
from master.registry.registry import Registry
from master.registry.request import (
    METHOD_VERBS,
    Clock,
    Request,
    RequestInfo,
    Response,
    dry_run,
    field_manager,
    request_verb,
)
from master.resources import namespaces, virtual
from master.resources.resource import SCALE
from master.resources.scheme import COMPUTED
from master.serialization import negotiation
from master.server import handlers, nonresource, request_info, watch
from master.server.proxy.kubelet_client import KubeletClient
from master.server.proxy.pod_streams import PodStreams
from master.server.request_info import ProxyTarget
from master.storage.interface import Storage
from reconcile.errors import NotReady
from reconcile.listener import Limits, Listener

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerDependencies:
    """What the server answers with. `unready` says why the master cannot do its work yet; empty if it can.

    `address` is that by which others reach it, `nodes` leads to the servers of the nodes.
    """

    store: Storage
    authority: Authority
    tokens: TokenSigner
    clock: Clock
    unready: Callable[[], str]
    address: str
    nodes: KubeletClient
    services: ServiceConfig = DEFAULT_SERVICE_CONFIG


def tls_context(server_pem: Path, ca_pem: Path) -> ssl.SSLContext:
    """TLS that asks for a client certificate; one that our authority did not sign ends the connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(server_pem)
    context.load_verify_locations(ca_pem)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


class Server:
    """`await start(...)`, then `port` is where it listens; `await stop()` ends all requests."""

    def __init__(
        self,
        parts: ServerDependencies,
        limits: Limits = Limits(),  # noqa: B008
        body_seconds: float = handlers.BODY_TIMEOUT_SECONDS,
    ) -> None:
        self._parts = parts
        self._store = parts.store
        self._callers = Authenticator(parts.store, parts.tokens, parts.clock)
        chain = AdmissionChain(parts.clock, parts.authority.pem.decode(), parts.services)
        self._rights = Authorizer(parts.store, self._callers.asked)
        self._requests = ProjectRequests(parts.store, chain, parts.clock)
        self._objects = Registry(parts.store, parts.clock, chain, self._rights)
        self._metrics = MetricsReader(parts.store, parts.nodes, parts.clock)
        on_pods = PodActions(parts.store, parts.clock)
        self._actions = {
            ("Pod", "binding"): on_pods.bind,
            ("Pod", "eviction"): on_pods.evict,
            ("ServiceAccount", "token"): self._callers.give,
        }
        self._through = PodStreams(parts.store, parts.nodes)
        self.watches = watch.WatchHandler(parts.store, parts.clock)
        self._body_seconds = body_seconds
        app = web.Application(client_max_size=handlers.MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._listener = Listener(app, limits)

    def may(self, user: User, asked: Attributes) -> bool:
        """Whether somebody may do something."""
        return self._rights.decision(user, asked).allowed

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._listener.port

    async def start(self, address: str, port: int, context: ssl.SSLContext) -> None:
        """Listen. Raises NotReady when the address cannot be had."""
        await self._listener.start(address, port, context)

    async def stop(self) -> None:
        """End watches cleanly, let other requests finish, and listen no more."""
        self.watches.end_all()
        self._through.end_all()
        await self._listener.stop()

    # --- one request -----------------------------------------------------------------------------------------------

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(http)
        except errors.StatusError as failure:
            return _error_response(failure)
        except NotReady as error:
            return _error_response(errors.service_unavailable(str(error)))
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            log.exception("request failed", extra={"method": http.method, "path": http.path})
            return _error_response(errors.status_error(500, "InternalError", "the server failed; its log says more"))

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        certificate = http.transport.get_extra_info("peercert") if http.transport is not None else None
        caller = self._callers.user(certificate, http.headers.get("Authorization", ""))
        user = self._rights.disguised(caller, http.headers.items())
        target = request_info.resolve_proxy(http.rel_url.raw_path)
        if target is not None:
            return await self._pass(http, user, target)
        info = request_info.resolve_path(http.path)
        if info is not None:
            return await self._objects_answer(http, user, info, _address(http) if user is caller else "")
        review = request_info.resolve_review(http.path)
        if review is not None:
            return await self._review(http, user, *review)
        if http.path == projects.PROJECT_REQUESTS_PATH:
            return await self._project_request(http, user)
        self._rights.check_attributes(user, PathAttributes(request_info.path_verb(http.method), http.path))
        answer = self._page(http)
        if http.method not in ("GET", "HEAD"):
            raise errors.method_not_allowed()
        return answer

    def _page(self, http: web.Request) -> web.Response:
        tokens = self._parts.tokens
        if http.path == service_account_tokens.JWKS_PATH:
            return nonresource.json_answer(tokens.keys())
        if http.path == service_account_tokens.OPENID_CONFIGURATION_PATH:
            return nonresource.json_answer(tokens.configuration(f"https://{self._parts.address}:{self.port}"))
        return nonresource.handle(http, self._parts.unready)

    async def _pass(self, http: web.Request, user: User, target: ProxyTarget) -> web.StreamResponse:
        self._rights.check(user, METHOD_VERBS.get(http.method, ""), Request(target.info, {}, user=user))
        return await self._through.serve(http, target)

    async def _objects_answer(
        self, http: web.Request, user: User, info: RequestInfo, address: str
    ) -> web.StreamResponse:
        verb = request_verb(http.method, info, http.query)
        content_type = _content_type(http)
        manager = field_manager(http.query, http.headers)
        visible = self._rights.visible(user, info.resource)
        accept = http.headers.get("Accept", "")
        request = Request(info, http.query, accept, content_type, manager, user, visible, client_address=address)
        if not user.node:
            # The body of somebody who may do nothing is not even read.
            self._rights.check(user, verb, request)
        served = not info.subresource or info.resource.subresource(info.subresource) is not None
        if served and http.method not in ("GET", "HEAD"):
            request = replace(request, body=await self._document(http, content_type))
        if user.node:
            self._rights.check(user, verb, request)
        if verb == "watch" and (http.method == "HEAD" or info.resource in COMPUTED):
            raise errors.method_not_allowed()
        if verb == "watch":
            return await self.watches.serve(http, watch.parse_watch_options(request))
        try:
            response = await self._operate(verb, request)
        except errors.StatusError:
            if verb not in READ_VERBS:
                # It may rest on writes that are on their way to the disk: who looks again must see them.
                await self._store.write()
            raise
        headers = CIMultiDict([("Cache-Control", "no-cache, private"), *_warnings(response.warnings)])
        return web.Response(
            status=response.status, body=response.body, content_type="application/json", headers=headers
        )

    async def _operate(self, verb: str, request: Request) -> Response:
        resource, name = request.info.resource, request.info.subresource
        if resource in COMPUTED:
            return await self._metrics.answer(verb, request)
        subresource = resource.subresource(name)
        if name and (subresource is None or subresource.proxied):
            # What leads through has been let through before, if its path was written as it is written by everybody.
            raise errors.path_not_found()
        if subresource is not None and verb not in subresource.verbs:
            raise errors.method_not_allowed()
        if name == SCALE:
            return await self._objects.scale(verb, request)
        if subresource is not None and subresource.replace is None:
            return await self._actions[resource.name, name](request)
        if verb in ("get", "list"):
            return self._objects.get(request) if verb == "get" else self._objects.list_all(request)
        operations = {
            "create": self._objects.create,
            "update": self._objects.update,
            "patch": self._objects.patch,
            "delete": self._objects.delete,
            "deletecollection": self._objects.delete_all,
        }
        if verb not in operations or (verb in ("update", "patch") and not request.info.name):
            raise errors.method_not_allowed()
        if verb == "deletecollection" and resource.namespaced and not request.info.namespace:
            raise errors.method_not_allowed()
        # Of what nobody can make, who changes or deletes one is told that there is none.
        if not (name or resource.unsupported or verb in ("create", *resource.verbs)):
            raise errors.method_not_allowed()
        return await operations[verb](request)

    async def _document(self, http: web.Request, content_type: str) -> Any:
        """The body as a document; YAML takes long enough to let others go on meanwhile."""
        body = await handlers.read_body(http, self._body_seconds)
        if not body and http.method == "DELETE":
            return None
        if content_type in (negotiation.YAML, negotiation.APPLY_PATCH):
            return await asyncio.to_thread(negotiation.decode_body, http.method == "PATCH", content_type, body)
        return negotiation.decode_body(http.method == "PATCH", content_type, body)

    # --- what is no object -------------------------------------------------------------------------------------------

    async def _review(self, http: web.Request, user: User, kind: type[Object], namespace: str) -> web.StreamResponse:
        if http.method != "POST":
            raise errors.method_not_allowed()
        group, plural = virtual.REVIEW_RESOURCES[kind]
        self._rights.check_attributes(user, Attributes("create", group, plural, namespace=namespace))
        if negotiation.negotiate(http.headers.get("Accept", "")) is not negotiation.View.OBJECT:
            raise errors.not_acceptable()
        document = await self._document(http, _content_type(http))
        review = reviews.decode_review(kind, document, namespace)
        judge = reviews.ReviewBackend(self._callers.whose, self._rights.reviewed, self._rights.rules)
        answer = reviews.answer_review(review, user, judge)
        return nonresource.json_answer(
            msgspec.structs.replace(answer, api_version=kind.API_VERSION, kind=kind.KIND), 201
        )

    async def _project_request(self, http: web.Request, user: User) -> web.StreamResponse:
        asked = Attributes("create", namespaces.PROJECT_GROUP, namespaces.PROJECT_REQUESTS)
        if not self._rights.decision(user, asked).allowed:
            raise projects.not_allowed()
        if http.method == "GET":
            # A list of what is never kept: it says that one may ask.
            return web.Response(body=errors.encode_status(errors.success()), content_type="application/json")
        if http.method != "POST":
            raise errors.method_not_allowed()
        document = await self._document(http, _content_type(http))
        response = await self._requests.create(user, document, dry=dry_run(http.query))
        return web.Response(status=response.status, body=response.body, content_type="application/json")


def _content_type(http: web.Request) -> str:
    """The media type of the body, without its parameters."""
    return http.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _address(http: web.Request) -> str:
    """Where the connection came from."""
    peer = http.transport.get_extra_info("peername") if http.transport is not None else None
    return str(peer[0]) if peer else ""


def _error_response(failure: errors.StatusError) -> web.Response:
    status = failure.status
    retry = status.details.retry_after_seconds if status.details else 0
    headers = CIMultiDict(_warnings(failure.warnings))
    if retry:
        headers["Retry-After"] = str(retry)
    return web.Response(
        status=status.code, body=errors.encode_status(status), content_type="application/json", headers=headers
    )


def _warnings(texts: Iterable[str]) -> list[tuple[str, str]]:
    return [("Warning", f"299 - {_quoted(text)}") for text in texts]


def _quoted(text: str) -> str:
    """A text as the Warning header carries it (RFC 7234): quoted, in one line of ASCII."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').encode("ascii", "replace").decode("ascii")
    return '"' + "".join(c if c.isprintable() else " " for c in plain) + '"'
