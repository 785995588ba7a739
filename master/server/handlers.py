"""One handler per kind of request: resources, watches, reviews, project requests, proxies, other paths."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from weakref import WeakValueDictionary

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from master import errors
from master.audit.policy import REQUEST_RESPONSE
from master.auth import reviews, service_account_tokens
from master.auth.attributes import User
from master.auth.authentication import Authenticator
from master.auth.authorization import Authorizer, owner_filter
from master.auth.service_account_tokens import TokenSigner
from master.registry.aggregated_apis import AggregatedAPIs
from master.registry.legacy_reviews import LEGACY_REVIEWS, LegacyReviews
from master.registry.metrics import MetricsReader
from master.registry.projects import ProjectRequests
from master.registry.registry import Registry
from master.registry.request import Request, Response, check_verb, dry_run, field_manager, request_seconds
from master.registry.security_reviews import SECURITY_REVIEWS, SecurityReviews
from master.registry.users import Users
from master.resources.resource import READ_VERBS, SCALE, AnyResource
from master.resources.scheme import COMPUTED, Scheme
from master.resources.users import CURRENT_USER, USER_IDENTITY_MAPPINGS, USERS
from master.serialization import negotiation
from master.server import nonresource, watch
from master.server.auditing import RECORD
from master.server.openapi import OpenAPIDocuments
from master.server.proxy.pod_streams import PodStreams
from master.server.routes import ProxyRoute, ResourceRoute, ReviewRoute
from master.storage.interface import Storage
from reconcile.health_checks import HealthCheck

SubresourceHandler = Callable[[Request], Awaitable[Response]]

MAX_BODY_BYTES = 3 << 20
BODY_TIMEOUT_SECONDS = 30.0
PIECE_BYTES = 64 << 10
"""Bytes of a response that are encrypted before other tasks run."""

MAX_WARNING_CHARACTERS, MAX_TRUNCATED_WARNING = 4096, 256
"""Limits of the texts of Warning headers, those of kube-apiserver: of all together, and of each one beyond that."""


class Handlers:
    """The handlers of requests that are authenticated and authorized. They raise `errors.StatusError`.

    `subresource_handlers` are those of subresources that are not part of an object, by kind and name.
    `ready` are the checks of /readyz. `issuer_url` returns the URL of the
    OpenID provider, and `server_metrics` the counters of the server.
    """

    def __init__(
        self,
        *,
        store: Storage,
        registry: Registry,
        metrics: MetricsReader,
        project_requests: ProjectRequests,
        security_reviews: SecurityReviews,
        users: Users,
        legacy_reviews: LegacyReviews,
        subresource_handlers: Mapping[tuple[str, str], SubresourceHandler],
        streams: PodStreams,
        scheme: Scheme,
        aggregated_apis: AggregatedAPIs,
        watches: watch.WatchHandler,
        authenticator: Authenticator,
        authorizer: Authorizer,
        tokens: TokenSigner,
        ready: Sequence[HealthCheck],
        issuer_url: Callable[[], str],
        server_metrics: Callable[[], str],
        body_seconds: float,
    ) -> None:
        self._store = store
        self._yaml_locks = WeakValueDictionary[str, asyncio.Lock]()
        self._registry = registry
        self._metrics = metrics
        self._project_requests = project_requests
        self._security_reviews = security_reviews
        self._users = users
        self._legacy_reviews = legacy_reviews
        self._subresource_handlers = subresource_handlers
        self._streams = streams
        self._scheme = scheme
        self._apis = aggregated_apis
        self._documents = OpenAPIDocuments(scheme)
        self._watches = watches
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._tokens = tokens
        self._ready = ready
        self._issuer_url = issuer_url
        self._server_metrics = server_metrics
        self._body_seconds = body_seconds

    # --- resources -------------------------------------------------------------------------------------------------

    async def resource(
        self,
        http: web.Request,
        user: User,
        route: ResourceRoute,
        client_address: str,
        current_user: Callable[[], User],
    ) -> web.StreamResponse:
        """Handle a request for objects. The response to a watch is a stream.

        `current_user` returns the user with the groups of today.
        """
        verb, info, record = route.verb, route.info, http[RECORD]
        seconds = 0.0 if verb == "watch" else request_seconds(http.query)
        content_type = _content_type(http)
        body = negotiation.Body(None)
        is_served = not info.subresource or info.resource.subresource(info.subresource) is not None
        if verb == "create" and not info.subresource:
            check_verb(verb, info)  # Before the body is decoded, which fails for kinds without a protobuf message.
        if is_served and http.method not in ("GET", "HEAD"):
            _check_content_type(info.resource, http.method, content_type)
            body = await self._read_document(http, content_type, user)
            record.request_object = body.document
        request = Request(
            info,
            http.query,
            accept=http.headers.get("Accept", ""),
            content_type=content_type,
            field_manager=field_manager(http.query, http.headers),
            user=user,
            name_filter=self._authorizer.name_filter(user, info.resource, current_user),
            record_filter=owner_filter(user, info.resource),
            body=body.document,
            duplicate_fields=body.duplicate_fields,
            client_address=client_address,
            annotate=record.annotate,
        )
        if verb not in READ_VERBS:
            request.write.deadline = asyncio.get_running_loop().time() + seconds
        if verb == "watch":
            if http.method == "HEAD" or "watch" not in info.resource.verbs:
                raise errors.method_not_allowed()
            return await self._watches.serve(http, watch.parse_watch_options(request))
        try:
            response = await self._operate(verb, request)
        except errors.StatusError:
            if verb not in READ_VERBS:
                # The error may be based on writes that are not yet durable. Wait for them, so that a client that reads
                # after the error sees that state.
                await self._store.write()
            raise
        headers = CIMultiDict(
            [
                ("Cache-Control", "no-cache, private"),
                *warning_headers((*_deprecation(info.resource), *response.warnings)),
            ]
        )
        content: bytes | AsyncIterator[bytes] = response.body
        if response.parts:
            content = _in_pieces(response.parts)
            headers["Content-Length"] = str(sum(map(len, response.parts)))
        if record.level.includes(REQUEST_RESPONSE):
            record.response_object = response.body or b"".join(response.parts)
        return web.Response(status=response.status, body=content, content_type="application/json", headers=headers)

    async def _operate(self, verb: str, request: Request) -> Response:
        resource, subresource_name = request.info.resource, request.info.subresource
        if resource is USER_IDENTITY_MAPPINGS:
            return await self._users.answer_mapping(verb, request)
        if resource in COMPUTED:
            return await self._metrics.answer(verb, request)
        if resource is USERS and request.info.name == CURRENT_USER and verb == "get" and not subresource_name:
            return self._users.current(request)
        subresource = resource.subresource(subresource_name)
        if subresource_name and (subresource is None or subresource.proxied):
            if resource.documents is not None and subresource_name in ("status", SCALE):
                raise errors.not_found(resource, request.info.name)
            # Proxied subresources have a route of their own; a path that only decodes to one is not found.
            raise errors.path_not_found()
        if subresource is not None and verb not in subresource.verbs:
            raise errors.method_not_allowed()
        if subresource_name == SCALE:
            return await self._registry.scale(verb, request)
        if subresource is not None and subresource.replace is None:
            return await self._subresource_handlers[resource.kind, subresource_name](request)
        return await self._operate_on_objects(verb, request)

    async def _operate_on_objects(self, verb: str, request: Request) -> Response:
        info = request.info
        if not info.subresource:
            check_verb(verb, info)
        if verb == "get":
            return await self._registry.get(request)
        if verb == "list":
            return await self._registry.list_all(request)
        operations = {
            "create": self._registry.create,
            "update": self._registry.update,
            "patch": self._registry.patch,
            "delete": self._registry.delete,
            "deletecollection": self._registry.delete_all,
        }
        return await operations[verb](request)

    async def _read_document(self, http: web.Request, content_type: str, user: User) -> negotiation.Body:
        """Read the body and decode it. YAML is decoded in a thread, because it takes long, and one body of a user at
        a time, because threads share the interpreter.
        """
        body = await _read_body(http, self._body_seconds)
        if not body and http.method == "DELETE":
            return negotiation.Body(None)
        is_patch = http.method == "PATCH"
        if content_type in (negotiation.YAML, negotiation.APPLY_PATCH):
            async with self._yaml_locks.setdefault(user.name, asyncio.Lock()):
                return await asyncio.to_thread(negotiation.decode_body, is_patch, content_type, body)
        return negotiation.decode_body(is_patch, content_type, body)

    # --- requests that are not about stored objects ----------------------------------------------------------------

    async def review(self, http: web.Request, user: User, route: ReviewRoute) -> web.StreamResponse:
        """Respond to a review."""
        if http.method != "POST":
            raise errors.method_not_allowed()
        if negotiation.negotiate(http.headers.get("Accept", "")) is not negotiation.View.OBJECT:
            raise errors.not_acceptable()
        document = (await self._read_document(http, _content_type(http), user)).document
        review = reviews.decode_review(route.kind, document, route.namespace)
        if route.kind in SECURITY_REVIEWS:
            answer = self._security_reviews.answer(review, user, route.namespace)
        elif route.kind in LEGACY_REVIEWS:
            answer = await self._legacy_reviews.answer(review, user, route.namespace)
        else:
            backend = reviews.ReviewBackend(
                self._authenticator.review_token, self._authorizer.decide_review, self._authorizer.rules_for
            )
            answer = reviews.answer_review(review, user, backend)
        return nonresource.json_response(
            msgspec.structs.replace(answer, api_version=answer.API_VERSION, kind=answer.KIND), 201
        )

    async def project_request(self, http: web.Request, user: User) -> web.StreamResponse:
        """Create the requested project. GET returns success if the user may request one: OpenShift clients ask so."""
        if http.method == "GET":
            return web.Response(body=errors.encode_status(errors.success()), content_type="application/json")
        if http.method != "POST":
            raise errors.method_not_allowed()
        document = (await self._read_document(http, _content_type(http), user)).document
        http[RECORD].request_object = document
        response = await self._project_requests.create(
            self._authorizer.requester(user), document, dry_run=dry_run(http.query)
        )
        return web.Response(status=response.status, body=response.body, content_type="application/json")

    async def proxy(self, http: web.Request, user: User, route: ProxyRoute) -> web.StreamResponse:
        """Forward the request to a node or a pod."""
        return await self._streams.serve(http, self._authorizer.requester(user), route)

    async def non_resource(self, http: web.Request) -> web.Response:
        """Respond to a GET of a path that names no resource."""
        if http.path == service_account_tokens.JWKS_PATH:
            response = nonresource.json_response(self._tokens.jwks())
        elif http.path == service_account_tokens.OPENID_CONFIGURATION_PATH:
            response = nonresource.json_response(self._tokens.openid_configuration(self._issuer_url()))
        else:
            response = await nonresource.handle(
                http, self._scheme, self._documents, self._ready, self._server_metrics, self._apis.versions()
            )
        if http.method not in ("GET", "HEAD"):
            raise errors.method_not_allowed()
        return response


async def _in_pieces(parts: Iterable[bytes | memoryview]) -> AsyncIterator[bytes]:
    """Yield the parts of a body joined to pieces of about PIECE_BYTES, and let other tasks run after each of them."""
    piece: list[bytes | memoryview] = []
    size = 0
    for part in parts:
        piece.append(part)
        size += len(part)
        if size >= PIECE_BYTES:
            yield b"".join(piece)
            await asyncio.sleep(0)
            piece, size = [], 0
    yield b"".join(piece)


def _deprecation(resource: AnyResource) -> tuple[str, ...]:
    """Return the warning that every request for a deprecated version gets."""
    return (resource.deprecation_warning,) if resource.deprecation_warning else ()


def _check_content_type(resource: AnyResource, method: str, content_type: str) -> None:
    """Require a body that a custom resource can have: it has no messages in protobuf. Raises UnsupportedMediaType."""
    if resource.documents is not None and method in ("POST", "PUT") and content_type.endswith("protobuf"):
        raise errors.unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: "
            f"application/json, {negotiation.YAML}"
        )


def _content_type(http: web.Request) -> str:
    """Return the media type of the body, without its parameters."""
    return http.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def warning_headers(texts: Collection[str]) -> list[tuple[str, str]]:
    """Return a Warning header for each different text.

    If they have more than MAX_WARNING_CHARACTERS together, each is truncated, and the last ones are dropped.
    """
    if not texts:
        return []
    different = [text for text in dict.fromkeys(texts) if text]
    if sum(map(len, different)) > MAX_WARNING_CHARACTERS:
        different = _truncated(different)
    return [("Warning", f"299 - {_quoted(text)}") for text in different]


def _truncated(texts: Iterable[str]) -> list[str]:
    truncated: list[str] = []
    written = 0
    for text in texts:
        if written >= MAX_WARNING_CHARACTERS:
            break
        truncated.append(text[:MAX_TRUNCATED_WARNING])
        written += len(truncated[-1])
    return truncated


def _quoted(text: str) -> str:
    """Return the text as a quoted string of the Warning header (RFC 7234): one line of ASCII."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').encode("ascii", "replace").decode("ascii")
    return '"' + "".join(c if c.isprintable() else " " for c in plain) + '"'


async def _read_body(http: web.Request, seconds: float) -> bytes:
    """Read the whole body of a request, within `seconds`. Raises StatusError."""
    try:
        async with asyncio.timeout(seconds):
            return await http.read()
    except TimeoutError:
        raise errors.status_error(408, "Timeout", f"the body was not received within {seconds:.0f} seconds") from None
    except web.HTTPRequestEntityTooLarge:
        message = f"Request entity too large: limit is {MAX_BODY_BYTES}"
        raise errors.status_error(413, "RequestEntityTooLarge", message) from None
    except web.RequestPayloadError as error:
        raise errors.bad_request(f"the body does not match its headers: {error}") from None
