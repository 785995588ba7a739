"""Pod subresources that kubelets serve: log, exec, attach, portforward, proxy.

Data is forwarded and not interpreted. Raises `StatusError`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, MultiMapping

from api.core.pod import Pod
from api.meta.schema import FORBIDDEN, INVALID, NOT_SUPPORTED, FieldError
from api.meta.types import StatusDetails
from master import errors
from master.admission.external_calls import PendingWrite
from master.admission.plugin import AdmissionRequest, Operation
from master.auth.rbac import Requester
from master.registry.creation import ObjectCreation
from master.registry.decoding import random_letters
from master.registry.guaranteed_update import WriteDecision, decided
from master.resources.pods import PODS
from master.resources.scheme import group_resource
from master.server import routes
from master.server.proxy import forwarding, proxy
from master.server.proxy.forwarding import Forwarder
from master.server.proxy.kubelet_client import KubeletClient, Unreachable
from master.server.proxy.node_streams import NodeStreams
from master.server.proxy.proxy import ProxyHandler
from master.server.routes import ProxyRoute
from master.storage.interface import Key, Storage, Transaction

MAX_ERROR_BYTES = 50_000
"""Maximum size of the error message that is read from a kubelet, in bytes."""


class PodStreams:
    """The handler of proxied subresources: `serve` handles one request, `end_all` closes all connections."""

    def __init__(self, storage: Storage, nodes: KubeletClient, creation: ObjectCreation) -> None:
        self._store = storage
        self._nodes = nodes
        self._chain = creation.chain
        self._caller = creation.caller
        self._scheme = creation.scheme
        self._clock = creation.clock
        self._node_streams = NodeStreams()
        self._forwarder = Forwarder()
        self._proxies = ProxyHandler(storage, nodes, self._forwarder)

    def end_all(self) -> None:
        """Close everything that is being forwarded."""
        self._forwarder.end_all()

    async def serve(self, http: web.Request, requester: Requester, route: ProxyRoute) -> web.StreamResponse:
        """Forward a request to the kubelet, pod or service that it names."""
        part = route.info.subresource
        allowed = {routes.PROXY: proxy.PROXY_METHODS, "log": {"GET"}}.get(part, {"GET", "POST"})
        if http.method not in allowed:
            raise errors.method_not_allowed()
        if part == "log":
            return await self._log(http, route)
        if "dryRun" in http.query:
            raise errors.bad_request("dryRun is not supported")
        if part == routes.PROXY:
            await self._admit_proxy(http, requester, route)
            return await self._proxies.serve(http, route)
        return await self._upgrade(http, requester, route)

    def _pod(self, route: ProxyRoute) -> Pod:
        info = route.info
        record = self._store.get_uncommitted(Key(group_resource(Pod), info.namespace, info.name))
        if record is None:
            raise errors.not_found(PODS, info.name)
        return record.object  # type: ignore[no-any-return]

    async def _admit(self, http: web.Request, requester: Requester, route: ProxyRoute, pod: Pod) -> None:
        """Let the admission plugins validate a connection to a pod. Raises the error of the plugin that rejects it."""
        body = connect_options(route.info.subresource, http.query)
        await self._decide_connection(requester, route, pod, body, self._chain.validate)

    async def _admit_proxy(self, http: web.Request, requester: Requester, route: ProxyRoute) -> None:
        """Let webhooks validate requests to a node, pod or service. A missing object is left to the proxy."""
        backend, resource = proxy.parse_backend(route.info.name), route.info.resource
        if backend is None:
            return
        namespace = route.info.namespace if resource.namespaced else ""
        record = self._store.get_uncommitted(Key(resource.stored_group_resource, namespace, backend.name))
        if record is not None:
            body = {"kind": f"{resource.kind}ProxyOptions", "apiVersion": "v1", "path": route.path}
            await self._decide_connection(requester, route, record.object, body, self._chain.validate_action)

    async def _decide_connection(
        self,
        requester: Requester,
        route: ProxyRoute,
        obj: Any,
        body: Mapping[str, Any],
        validate: Callable[[AdmissionRequest, Any, Transaction], None],
    ) -> None:
        """Call `validate` until it needs no further external calls."""
        write = PendingWrite()

        def decide() -> WriteDecision[None]:
            admission = AdmissionRequest(
                operation=Operation.CONNECT,
                resource=route.info.resource,
                now=self._clock(),
                random_suffix=random_letters,
                subresource=route.info.subresource,
                requester=requester,
                body=body,
                external=write.external,
                scheme=self._scheme,
            )
            validate(admission, obj, Transaction(self._store))
            return WriteDecision(lambda _: None)

        await decided(decide, write, self._caller)

    async def _log(self, http: web.Request, route: ProxyRoute) -> web.StreamResponse:
        options = parse_log_options(http.query, route.info.name)
        pod = self._pod(route)
        container = container_name(pod, options.container)
        if not pod.spec.node_name:
            return web.Response(status=204)
        path = log_path(pod, container, options)
        with self._node_streams.open(pod.spec.node_name, route.info.namespace):
            return await self._forward_log(http, pod, path, options)

    async def _forward_log(self, http: web.Request, pod: Pod, path: str, options: LogOptions) -> web.StreamResponse:
        address = self._nodes.address(pod.spec.node_name)
        try:
            response = await self._nodes.open(pod.spec.node_name, "GET", path, verify=not options.insecure_backend)
        except Unreachable as error:
            raise errors.status_error(500, "", f'Get "https://{address}{path}": {error}') from error
        if not 200 <= response.status <= 206:
            raise log_error(response.status, await refusal(response), pod.metadata.name)
        if http.headers.get("Upgrade", "").lower() == "websocket":
            return await self._forwarder.websocket_log(http, response)
        headers = CIMultiDict(
            [
                ("Content-Type", "text/plain"),
                ("Cache-Control", "no-cache, private"),
                ("X-Content-Type-Options", "nosniff"),
            ]
        )
        return await self._forwarder.copy_response(http, response, headers)

    async def _upgrade(self, http: web.Request, requester: Requester, route: ProxyRoute) -> web.StreamResponse:
        pod = self._pod(route)
        await self._admit(http, requester, route, pod)
        path = stream_path(route.info.subresource, pod, http.query)
        node = node_of(pod)
        self._nodes.address(node)
        if not forwarding.wants_upgrade(http.headers.getall("Connection", [])):
            raise errors.bad_request("Upgrade request required")
        forwarded = forwarding.request_headers(list(http.headers.items()), upgrade=True)
        headers = CIMultiDict([pair for pair in forwarded if pair[0].lower() != "host"])
        with self._node_streams.open(node, route.info.namespace):
            return await self._forward_upgrade(http, node, path, headers)

    async def _forward_upgrade(
        self, http: web.Request, node: str, path: str, headers: CIMultiDict[str]
    ) -> web.StreamResponse:
        try:
            response = await self._nodes.open(node, http.method, path, headers)
        except Unreachable as error:
            raise errors.status_error(500, "", f"error dialing backend: {error}") from error
        if response.status == 101:
            return await self._forwarder.upgrade(http, response)
        if response.status < 400:
            response.close()
            raise errors.status_error(500, "", f"invalid upgrade response: status code {response.status}")
        try:
            back = CIMultiDict(forwarding.response_headers(list(response.headers.items())))
        except errors.StatusError:
            response.close()
            raise
        return await self._forwarder.copy_response(http, response, back)


async def refusal(response: aiohttp.ClientResponse) -> str:
    """Return the message of a backend that rejects a request."""
    try:
        body = await response.content.read(MAX_ERROR_BYTES)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise errors.internal_error(str(error)) from error
    finally:
        response.close()
    return body.decode(errors="replace").rstrip("\n")


INT64_BOUND = 1 << 63

LOG_STREAMS = ("All", "Stderr", "Stdout")

STREAM_FLAGS = (("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty"))
"""(parameter of the API server, parameter of a kubelet)"""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The options of a log: the container, the kubelet's parameters, and whether the kubelet's TLS is not verified."""

    container: str
    parameters: tuple[tuple[str, str], ...]
    insecure_backend: bool


def parse_log_options(query: MultiMapping[str], pod: str) -> LogOptions:
    """Return the options of GET pods/NAME/log."""
    numbers = {name: _int_option(query, name) for name in ("sinceSeconds", "tailLines", "limitBytes")}
    since = _time_option(query, "sinceTime")
    problems = tuple(_log_option_problems(query, numbers, since))
    if problems:
        raise errors.invalid_as("", "PodLogOptions", pod, problems)
    flags = [(name, "true") for name in ("follow", "previous", "timestamps") if bool_option(query, name)]
    numeric = [(name, str(number)) for name, number in numbers.items() if number is not None]
    times = [("sinceTime", since)] if since else []
    stream = query.get("stream", "")
    streams = [("stream", stream)] if stream not in ("", "All") else []
    insecure = bool_option(query, "insecureSkipTLSVerifyBackend")
    return LogOptions(query.get("container", ""), (*flags, *numeric, *times, *streams), insecure)


def _log_option_problems(query: MultiMapping[str], numbers: dict[str, int | None], since: str) -> Iterator[FieldError]:
    tail, most, seconds = numbers["tailLines"], numbers["limitBytes"], numbers["sinceSeconds"]
    if tail is not None and tail < 0:
        yield FieldError("tailLines", str(tail), "must be greater than or equal to 0", INVALID)
    if most is not None and most < 1:
        yield FieldError("limitBytes", str(most), "must be greater than 0", INVALID)
    if seconds is not None and since:
        yield FieldError("", "given", "at most one of `sinceTime` or `sinceSeconds` may be specified", FORBIDDEN)
    elif seconds is not None and seconds < 1:
        yield FieldError("sinceSeconds", str(seconds), "must be greater than 0", INVALID)
    stream = query.get("stream", "")
    if stream and stream not in LOG_STREAMS:
        accepted = ", ".join(f'"{stream}"' for stream in LOG_STREAMS)
        yield FieldError("stream", f'"{stream}"', f"supported values: {accepted}", NOT_SUPPORTED)
    elif stream not in ("", "All") and tail is not None:
        reason = "`tailLines` and specific `stream` are mutually exclusive for now"
        yield FieldError("", "given", reason, FORBIDDEN)


OPTIONS_KINDS = {"exec": "PodExecOptions", "attach": "PodAttachOptions", "portforward": "PodPortForwardOptions"}


def connect_options(subresource: str, query: MultiMapping[str]) -> dict[str, Any]:
    """Return the options of a connection to a pod, as webhooks see them."""
    options: dict[str, Any] = {"kind": OPTIONS_KINDS[subresource], "apiVersion": "v1"}
    if subresource == "portforward":
        ports = [text for value in query.getall("ports", []) for text in value.split(",")]
        if ports and all(text.isascii() and text.isdecimal() and len(text) < 6 for text in ports):
            options["ports"] = [int(text) for text in ports]
        return options
    options |= {name: True for name, _ in STREAM_FLAGS if bool_option(query, name)}
    if query.get("container"):
        options["container"] = query["container"]
    if subresource == "exec":
        options["command"] = query.getall("command", [])
    return options


def bool_option(query: MultiMapping[str], name: str) -> bool:
    """Return the value of a flag: true for every value but 0 and false, also for an empty one."""
    return name in query and query[name].lower() not in ("0", "false")


def _int_option(query: MultiMapping[str], name: str) -> int | None:
    if name not in query:
        return None
    return _parse_int(query[name], INT64_BOUND)


def _parse_int(text: str, bound: int) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdecimal()):
        raise errors.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    if len(digits.lstrip("0")) > 19 or not -bound <= (number := int(text)) < bound:
        raise errors.bad_request(f'strconv.ParseInt: parsing "{text}": value out of range')
    return number


def _time_option(query: MultiMapping[str], name: str) -> str:
    """Return the time in whole seconds, as kube-apiserver sends it to kubelets."""
    text = query.get(name, "")
    if not text:
        return ""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or "T" not in text:
        form = "2006-01-02T15:04:05Z07:00"
        raise errors.bad_request(f'parsing time "{text}" as "{form}": cannot parse "{text}" as "2006"')
    return moment.replace(microsecond=0).isoformat().replace("+00:00", "Z")


# --- requests to kubelets ---------------------------------------------------------------------------------------------


def log_path(pod: Pod, container: str, options: LogOptions) -> str:
    """Return the path of a container's log on its kubelet."""
    return _kubelet_path("containerLogs", pod, container, list(options.parameters))


def stream_path(action: str, pod: Pod, query: MultiMapping[str]) -> str:
    """Return the path of a stream on the kubelet; `action` is exec, attach or portforward."""
    if action == "portforward":
        ports = [str(_parse_int(port, 1 << 31)) for text in query.getall("ports", []) for port in text.split(",")]
        return _kubelet_path("portForward", pod, "", [("port", ",".join(ports))] if ports else [])
    container = container_name(pod, query.get("container", ""))
    flags = [(kubelet_name, "1") for name, kubelet_name in STREAM_FLAGS if bool_option(query, name)]
    command = [("command", word) for word in query.getall("command", [])] if action == "exec" else []
    return _kubelet_path(action, pod, container, flags + command)


def _kubelet_path(action: str, pod: Pod, container: str, parameters: list[tuple[str, str]]) -> str:
    parts = [action, pod.metadata.namespace, pod.metadata.name, *([container] if container else [])]
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    return f"{path}?{urlencode(parameters)}" if parameters else path


def container_name(pod: Pod, name: str) -> str:
    """Return the name of the requested container, or of the only one. Raises BadRequest."""
    spec = pod.spec
    known = [container.name for container in (*spec.init_containers, *spec.containers, *spec.ephemeral_containers)]
    if name:
        if name not in known:
            raise errors.bad_request(f"container {name} is not valid for pod {pod.metadata.name}")
        return name
    if len(spec.containers) != 1:
        listed = " ".join(known)
        message = f"a container name must be specified for pod {pod.metadata.name}, choose one of: [{listed}]"
        raise errors.bad_request(message)
    return spec.containers[0].name


def node_of(pod: Pod) -> str:
    """Return the node of a pod. Raises BadRequest if it has none."""
    if not pod.spec.node_name:
        raise errors.bad_request(f"pod {pod.metadata.name} does not have a host assigned")
    return pod.spec.node_name


# --- errors of kubelets -----------------------------------------------------------------------------------------------

_STATUS_MESSAGES = {
    401: ("Unauthorized", "the server has asked for the client to provide credentials"),
    404: ("NotFound", "the server could not find the requested resource"),
    405: ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
    409: ("Conflict", "the server reported a conflict"),
    422: ("Invalid", "the server rejected our request due to an error in our request"),
    429: ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: (
        "Timeout",
        "the server was unable to return a response in the time allotted, but may still be processing the request",
    ),
}
_REASONS_WITH_OWN_MESSAGE = {403: "Forbidden", 415: "UnsupportedMediaType", 406: "NotAcceptable"}


def log_error(code: int, text: str, pod: str) -> errors.StatusError:
    """Return the error for a kubelet's error response to a log request."""
    if code == 500:
        return errors.internal_error(text)
    if code == 400:
        return errors.bad_request(text)
    reason, message = _STATUS_MESSAGES.get(code, ("", ""))
    if code in _REASONS_WITH_OWN_MESSAGE:
        reason, message = _REASONS_WITH_OWN_MESSAGE[code], text
    elif not message and code > 500:
        reason = "InternalError"
        message = f'an error on the server ("{text}") has prevented the request from succeeding'
    elif not message:
        message = f"the server responded with the status code {code} but did not return more information"
    details = StatusDetails(name=pod, kind="pods/log")
    return errors.status_error(code, reason, f"{message} ( pods/log {pod})", details)
