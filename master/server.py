"""The HTTPS door: who is asking, may they, and which part of the master answers."""

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

from api.events import Event
from api.objects import Object, Pod
from api.queries import NodeQuery
from api.references import Reference, references
from api.storage import PersistentVolume, PersistentVolumeClaim
from master import accounts, answers, bodies, certificates, pages, request, reviews, watch, writes
from master.authorize import FOR_PODS, MASTERS, Attributes, User, may_read_path, refusal
from master.callers import Callers
from master.kinds.kind import SCALE
from master.kinds.service_account import ServiceAccount
from master.pki import Authority
from master.pod_actions import PodActions
from master.records import Key
from master.request import Target
from master.rest import Answer, Ask, Clock, Objects
from master.reviews import NonResourceAttributes, ResourceAttributes
from master.service_tokens import Issuer
from master.store import Store
from reconcile.errors import NotReady

log = logging.getLogger(__name__)

LARGEST_BODY = 3 << 20

KEYS_PATH = "/openid/v1/jwks"

CLOSING_SECONDS = 2.0
"""How long requests may still take when the server stops."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the server answers with. `unready` says why the master cannot do its work yet; empty if it can."""

    store: Store
    authority: Authority
    tokens: Issuer
    clock: Clock
    unready: Callable[[], str]


def tls(server_pem: Path, ca_pem: Path) -> ssl.SSLContext:
    """TLS that asks for a client certificate; one that our authority did not sign ends the connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(server_pem)
    context.load_verify_locations(ca_pem)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


BOUND = frozenset(("Pod", "NodeQuery"))
"""Kinds whose objects belong to the node that `spec.nodeName` names."""


def node_of(item: Object) -> str:
    """The node to which an object belongs; that of an Event is the one that tells it."""
    if isinstance(item, Event):
        return item.source.host
    return item.spec.node_name if isinstance(item, Pod | NodeQuery) else ""


class Server:
    """`await start(...)`, then `port` is where it listens; `await stop()` ends all requests."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._store = parts.store
        self._objects = Objects(parts.store, parts.clock)
        self._callers = Callers(parts.store, parts.tokens, parts.clock)
        on_pods = PodActions(parts.store, parts.clock)
        self._actions = {
            ("Pod", "binding"): on_pods.bind,
            ("Pod", "eviction"): on_pods.evict,
            ("ServiceAccount", "token"): self._callers.give,
        }
        self.watches = watch.Watches(parts.store, parts.clock)
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, address: str, port: int, context: ssl.SSLContext) -> None:
        """Listen. Raises NotReady when the address cannot be had."""
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=CLOSING_SECONDS, keepalive_timeout=75.0
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, address, port, ssl_context=context, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise NotReady(f"cannot listen on {address}:{port}: {error}") from error
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """End watches cleanly, let other requests finish, and listen no more."""
        self.watches.end_all()
        if self._runner is not None:
            await self._runner.cleanup()

    # --- one request -----------------------------------------------------------------------------------------------

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(http)
        except answers.Failure as failure:
            return _refusal(failure)
        except NotReady as error:
            return _refusal(answers.unavailable(str(error)))
        except web.HTTPRequestEntityTooLarge:
            message = f"the body is larger than {LARGEST_BODY} bytes"
            return _refusal(answers.failure(413, "RequestEntityTooLarge", message))
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            log.exception("request failed", extra={"method": http.method, "path": http.path})
            return _refusal(answers.failure(500, "InternalError", "the server failed; its log says more"))

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        certificate = http.transport.get_extra_info("peercert") if http.transport is not None else None
        user = self._callers.user(certificate, http.headers.get("Authorization", ""))
        where = request.target(http.path)
        if where is not None:
            return await self._objects_answer(http, user, where)
        review = request.review(http.path)
        if review is not None:
            return await self._review(http, user, *review)
        if http.path == certificates.PATH:
            return await self._sign(http, user)
        if not may_read_path(user, http.path):
            raise answers.forbidden_path(user.name, http.method.lower(), http.path)
        if http.method not in ("GET", "HEAD"):
            raise answers.not_allowed()
        if http.path == KEYS_PATH:
            return pages.json_answer(self._parts.tokens.keys())
        return pages.answer(http, self._parts.unready)

    async def _objects_answer(self, http: web.Request, user: User, where: Target) -> web.StreamResponse:
        verb = request.verb(http.method, where, http.query)
        content_type = _content_type(http)
        ask = Ask(
            where, http.query, http.headers.get("Accept", ""), content_type, request.owner(http.query, http.headers)
        )
        if not user.node:
            # The body of somebody who may do nothing is not even read.
            self._authorize(user, verb, ask)
        if http.method not in ("GET", "HEAD"):
            ask = replace(ask, document=await _document(http, content_type))
        if user.node:
            self._authorize(user, verb, ask)
        if verb == "watch":
            return await self.watches.serve(http, watch.wish(ask))
        answer = await self._operate(verb, ask)
        headers = CIMultiDict([("Cache-Control", "no-cache, private")])
        for warning in answer.warnings:
            headers.add("Warning", f"299 - {_quoted(warning)}")
        return web.Response(status=answer.code, body=answer.body, content_type="application/json", headers=headers)

    async def _operate(self, verb: str, ask: Ask) -> Answer:
        kind, name = ask.where.kind, ask.where.subresource
        subresource = kind.subresource(name)
        if name and subresource is None:
            raise answers.no_such_path()
        if subresource is not None and verb not in subresource.verbs:
            raise answers.not_allowed()
        if name == SCALE:
            return await self._objects.scale(verb, ask)
        if subresource is not None and subresource.part is None:
            return await self._actions[kind.name, name](ask)
        if verb in ("get", "list"):
            return self._objects.get(ask) if verb == "get" else self._objects.list_all(ask)
        operations = {
            "create": self._objects.create,
            "update": self._objects.update,
            "patch": self._objects.patch,
            "delete": self._objects.delete,
            "deletecollection": self._objects.delete_all,
        }
        if verb not in operations or (verb in ("update", "patch") and not ask.where.name):
            raise answers.not_allowed()
        return await operations[verb](ask)

    # --- who may -----------------------------------------------------------------------------------------------------

    def _authorize(self, user: User, verb: str, ask: Ask) -> None:
        why = refusal(user, self._attributes(user, verb, ask))
        if why is not None:
            raise answers.forbidden(ask.where.kind, ask.where.name, why)

    def _attributes(self, user: User, verb: str, ask: Ask) -> Attributes:
        where = ask.where
        asked_node, bound_to, body_name, body_host, grace = "", None, "", "", None
        if user.node and where.kind.name in BOUND and not where.name:
            asked_node = request.selection(where, ask.query).fields.asks_exactly("spec.nodeName") or ""
        if user.node and where.name:
            record = self._store.latest(ask.key)
            bound_to = None if record is None else node_of(record.object)
            grace = self._objects.grace(ask) if verb == "delete" else None
        if user.node and verb == "create":
            body_name, body_host = self._objects.body_name(ask), self._objects.body_host(ask)
        own = self._store.latest(Key("Node", "", user.node)) if user.node else None
        return Attributes(
            verb=verb,
            group=where.kind.group,
            resource=where.kind.plural,
            subresource=where.subresource,
            namespace=where.namespace,
            name=where.name,
            asked_node=asked_node,
            bound_to=bound_to,
            body_name=body_name,
            body_host=body_host,
            grace=grace,
            needed=bool(user.node) and self._is_needed(user.node, ask),
            pod=self._objects.body_pod(ask) if user.node and verb == "create" and where.kind.name == "Pod" else None,
            node_uid="" if own is None else own.object.metadata.uid,
        )

    def _is_needed(self, node: str, ask: Ask) -> bool:
        where = ask.where
        if where.kind.type is ServiceAccount:
            return self._is_bound_there(node, ask)
        if (where.kind.group, where.kind.plural) not in FOR_PODS:
            return False
        name = where.name or request.selection(where, ask.query).fields.asks_exactly("metadata.name")
        pods: Iterable[Pod] = (record.object for record in self._store.scan_latest(Pod.KIND, where.namespace))
        named = (one for pod in pods if pod.spec.node_name == node for one in references(pod))
        if where.kind.type is PersistentVolume:
            return any(self._has_storage(claim, name or "") for claim in named if claim.kind is PersistentVolumeClaim)
        return Reference(where.kind.type, where.namespace, name or "") in named

    def _is_bound_there(self, node: str, ask: Ask) -> bool:
        """Whether a token is asked for, for a pod on that node that runs under the account."""
        if ask.where.subresource != "token" or ask.document is None:
            return False
        reference = self._callers.asked(ask).spec.bound_object_ref
        record = reference and self._store.latest(Key(reference.kind, ask.where.namespace, reference.name))
        if reference is None or not record or not isinstance(record.object, Pod):
            return False
        pod: Pod = record.object
        account = pod.spec.service_account_name or accounts.DEFAULT
        same = reference.uid == pod.metadata.uid and account == ask.where.name
        return same and pod.spec.node_name == node

    def _has_storage(self, claim: Reference, volume: str) -> bool:
        record = self._store.latest(Key(claim.kind.KIND, claim.namespace, claim.name))
        return record is not None and record.object.spec.volume_name == volume

    # --- what is no object -------------------------------------------------------------------------------------------

    async def _review(self, http: web.Request, user: User, kind: type[Object], namespace: str) -> web.StreamResponse:
        if user == User() or (kind.KIND not in reviews.ABOUT_ONESELF and not (user.node or MASTERS in user.groups)):
            raise answers.forbidden_path(user.name, http.method.lower(), http.path)
        if http.method != "POST":
            raise answers.not_allowed()
        document = await _document(http, _content_type(http))
        review = writes.asked(kind, document, namespace)
        judge = reviews.Judge(self._callers.whose, self._refused)
        answer = reviews.answered(review, user, judge)
        return pages.json_answer(msgspec.structs.replace(answer, api_version=kind.API_VERSION, kind=kind.KIND), 201)

    def _refused(self, user: User, access: ResourceAttributes | NonResourceAttributes) -> str | None:
        """Why somebody may not do that, as a review asks it."""
        if isinstance(access, NonResourceAttributes):
            allowed = access.verb in ("get", "head") and may_read_path(user, access.path)
            return (
                None if allowed or MASTERS in user.groups else f'User "{user.name}" cannot {access.verb} {access.path}'
            )
        where = request.resource(access.group, access.resource)
        if where is None or access.verb not in (*request.VERBS.values(), "list", "watch", "deletecollection"):
            return refusal(user, Attributes(access.verb, access.group, access.resource, access.subresource))
        place = Target(where, access.namespace, access.name, access.subresource)
        return refusal(user, self._attributes(user, access.verb, Ask(place, {})))

    async def _sign(self, http: web.Request, user: User) -> web.StreamResponse:
        if MASTERS not in user.groups:
            raise answers.forbidden_path(user.name, http.method.lower(), http.path)
        if http.method != "POST":
            raise answers.not_allowed()
        signed = certificates.sign(self._parts.authority, await http.read(), self._parts.clock())
        log.info("certificate issued", extra={"request": signed["metadata"]["name"]})
        return pages.json_answer(signed, 201)


def _content_type(http: web.Request) -> str:
    """The media type of the body, without its parameters."""
    return http.headers.get("Content-Type", "").partition(";")[0].strip().lower()


async def _document(http: web.Request, content_type: str) -> Any:
    """The body as a document; YAML takes long enough to let others go on meanwhile."""
    body = await http.read()
    if not body and http.method == "DELETE":
        return None
    if content_type in (bodies.YAML, bodies.APPLY_PATCH):
        return await asyncio.to_thread(bodies.read, http.method == "PATCH", content_type, body)
    return bodies.read(http.method == "PATCH", content_type, body)


def _refusal(failure: answers.Failure) -> web.Response:
    status = failure.status
    retry = status.details.retry_after_seconds if status.details else 0
    headers = {"Retry-After": str(retry)} if retry else {}
    return web.Response(
        status=status.code, body=answers.encode(status), content_type="application/json", headers=headers
    )


def _quoted(text: str) -> str:
    """A text as the Warning header carries it (RFC 7234): quoted, in one line of ASCII."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').encode("ascii", "replace").decode("ascii")
    return '"' + "".join(c if c.isprintable() else " " for c in plain) + '"'
