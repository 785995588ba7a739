"""Client of the API server: typed requests over HTTPS, and its errors as exceptions.

ClientError
├── Unreachable        no response, or one that is not HTTP; the request may or may not have had its effect
│   └── OtherAuthority     the server's certificate is not of the accepted authority; the request was not sent
├── InvalidResponse    a response that is not the requested object
└── ApiError           the API server answered with a failure Status
    ├── Forbidden      403
    ├── NotFound       404
    ├── AlreadyExists  409, reason AlreadyExists
    ├── Conflict       409, any other reason
    ├── Expired        410: events since the requested resourceVersion are no longer available
    └── Invalid        422
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from api.client.connections import Connections
from api.client.kubeconfig import Kubeconfig
from api.codec.json import DecodeError, decode_json
from api.core.auth import REVIEW_PATHS, TokenRequest, TokenRequestStatus
from api.core.node import Binding
from api.core.pod import Pod
from api.meta.types import List, ListMeta, Object, ObjectMeta, ObjectReference, Status

O = TypeVar("O", bound=Object)
T = TypeVar("T")

REQUEST_TIMEOUT_SECONDS = 30.0
OBJECTS_PER_TURN = 64
"""Objects of a list that are decoded before other tasks run: about a millisecond."""
WATCH_TIMEOUT_SECONDS = 300
"""Duration after which the API server ends a watch."""
WATCH_IDLE_SECONDS = 90.0
"""A watch that receives nothing for so long, not even a bookmark, is broken."""


class ClientError(Exception):
    """Base of the errors of requests. `str(error)` is a message for a person."""


class Unreachable(ClientError):
    """A request without a response."""


class OtherAuthority(Unreachable):
    """A server whose certificate is not of the accepted authority."""


class InvalidResponse(ClientError):
    """A response that is not the requested object."""


class ApiError(ClientError):
    """A failure response of the API server, with its Status."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.message or f"{status.code} {status.reason}")
        self.status = status


class Forbidden(ApiError):
    """The client's credentials do not allow the request."""


class NotFound(ApiError):
    """The object does not exist."""


class AlreadyExists(ApiError):
    """An object of this name exists already."""


class Conflict(ApiError):
    """The object was changed since it was read, or a precondition is not met."""


class Expired(ApiError):
    """The requested resourceVersion is too old; a new list is required."""


class Invalid(ApiError):
    """The object is not valid; `status.details.causes` lists every error."""


_BY_CODE: dict[int, type[ApiError]] = {403: Forbidden, 404: NotFound, 409: Conflict, 410: Expired, 422: Invalid}


def error_from_status(status: Status) -> ApiError:
    """Return the exception for a failure Status."""
    if status.reason == "AlreadyExists":
        return AlreadyExists(status)
    return _BY_CODE.get(status.code, ApiError)(status)


_OTHER_AUTHORITY, _OTHER_NAME, _OTHER_TIME = {7, 18, 19, 20, 21, 30}, {62, 64}, {9, 10}
"""Results of the verification of a certificate (X509_STORE_CTX_get_error(3)): X509_V_ERR_..."""


def _reason(error: Exception) -> str:
    """Return why there is no connection: the system's message if there is one, else the text or type of the error.

    Error numbers of TLS are not those of the system. An error about several addresses has no number.
    """
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        cause = error.os_error
        if isinstance(cause, socket.gaierror) and cause.strerror:
            return cause.strerror
        if cause.errno and not isinstance(cause, socket.gaierror):
            return os.strerror(cause.errno)
    return str(error) or type(error).__name__


def unreachable(server: str, error: Exception, authority: str = "that of the kubeconfig") -> Unreachable:
    """Return the exception for a request to a server that failed. `authority` is the one that is accepted."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return _certificate_error(server, error.certificate_error, authority)
    if isinstance(error, TimeoutError):
        return Unreachable(f"{server} does not answer in time")
    reason = _reason(error)
    if server.startswith("http://") and not isinstance(error, aiohttp.ClientConnectorError):
        reason += "; a master is accepted at https://"
    return Unreachable(f"{server} does not answer: {reason}")


def _certificate_error(server: str, error: Exception, authority: str) -> Unreachable:
    code, reason = getattr(error, "verify_code", 0), getattr(error, "verify_message", "") or str(error)
    if code in _OTHER_AUTHORITY:
        return OtherAuthority(f"{server}: its certificate is of another authority than {authority} ({reason})")
    problem = "not accepted"
    if code in _OTHER_NAME:
        problem = "for other names"
    if code in _OTHER_TIME:
        problem = "not valid now, or the clock of this host is wrong"
    return Unreachable(f"{server}: its certificate is {problem} ({reason})")


@dataclass(frozen=True, slots=True)
class Event(Generic[O]):
    """A watch event; `type` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: O


class _RawList(msgspec.Struct):
    metadata: ListMeta | None = None
    items: tuple[msgspec.Raw, ...] | None = None


class _WireEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


def resource_path(kind: type[Object], namespace: str = "", name: str = "", subresource: str = "") -> str:
    """Return the path of a collection, an object or a subresource."""
    prefix = "/api/v1" if kind.API_VERSION == "v1" else f"/apis/{kind.API_VERSION}"
    if namespace and kind.NAMESPACED:
        prefix += f"/namespaces/{quote(namespace, safe='')}"
    return "/".join([prefix, kind.PLURAL, *(quote(part, safe="") for part in (name, subresource) if part)])


def _ignore_response(method: str, address: str, code: int) -> None:
    """Do nothing; the default of `on_response`."""


class Client:
    """A client of the API server, used as `async with Client(kubeconfig) as client`. Every request raises ClientError.

    `on_response` is called after each request with the method, the address of the server, and the status code of the
    response, 0 if there was none. A server has `connect_seconds` to accept a connection, TLS included.

    `is_away` is set by the informers that share the client, so that one of them logs that the API server does not
    answer.
    """

    def __init__(
        self,
        kubeconfig: Kubeconfig,
        on_response: Callable[[str, str, int], None] = _ignore_response,
        connect_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> None:
        self._connections = Connections(kubeconfig)
        self._on_response = on_response
        self._connect_seconds = connect_seconds
        self.is_away = False

    async def __aenter__(self) -> Client:
        self._connections.open()
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self._connections.close()

    @property
    def kubeconfig(self) -> Kubeconfig:
        """The kubeconfig that new requests use."""
        return self._connections.kubeconfig

    async def get(self, kind: type[O], name: str, namespace: str = "") -> O:
        """Read one object."""
        path = resource_path(kind, namespace, name)
        return _decoded(await self.request("GET", path), kind, path)

    async def list(
        self, kind: type[O], namespace: str = "", field_selector: str = "", label_selector: str = ""
    ) -> List[O]:
        """Read all objects that match the selectors, as of one resourceVersion."""
        query = _query(field_selector, label_selector)
        path = resource_path(kind, namespace)
        objects = _decoded(await self.request("GET", path, query=query), List[kind], path)  # type: ignore[valid-type]
        return msgspec.structs.replace(objects, items=tuple(map(_with_type, objects.items)))

    async def list_each(
        self, kind: type[O], handle: Callable[[O], None], namespace: str = "", field_selector: str = ""
    ) -> str:
        """Read all objects, and call `handle` with one after the other. Return their resourceVersion.

        Only one of them is decoded at a time, so that a long list takes little more memory than its JSON. Other tasks
        run in between.
        """
        path = resource_path(kind, namespace)
        body = await self.request("GET", path, query=_query(field_selector, ""))
        response = _decoded(body, _RawList, path)
        for number, item in enumerate(response.items or (), start=1):
            handle(_with_type(_decoded(item, kind, path)))
            if number % OBJECTS_PER_TURN == 0:
                await asyncio.sleep(0)
        return response.metadata.resource_version if response.metadata is not None else ""

    async def watch(
        self,
        kind: type[O],
        resource_version: str,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        on_open: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[Event[O], None]:
        """Yield the events after a resourceVersion, until the API server ends the watch.

        `on_open` is called when the API server has accepted the watch, before its first event. Raises Expired if the
        resourceVersion is too old, Unreachable if the connection breaks or stays idle.
        """
        query = _query(field_selector, label_selector) | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(WATCH_TIMEOUT_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_SECONDS, sock_read=WATCH_IDLE_SECONDS)
        path = resource_path(kind, namespace)
        async with self._open_response("GET", path, query=query, timeout=timeout) as response:
            on_open()
            async for line in _split_lines(response.content):
                event = _decoded(line, _WireEvent, path)
                if event.type == "ERROR":
                    raise error_from_status(_decoded(event.object, Status, path))
                yield Event(event.type, _decoded(event.object, kind, path))

    async def create(self, obj: O) -> O:
        """Create an object."""
        return await self._send("POST", resource_path(type(obj), obj.metadata.namespace), obj)

    async def update(self, obj: O) -> O:
        """Replace an object. Raises Conflict if its resourceVersion is not the newest."""
        return await self._send("PUT", resource_path(type(obj), obj.metadata.namespace, obj.metadata.name), obj)

    async def update_status(self, obj: O) -> O:
        """Replace the status of an object."""
        path = resource_path(type(obj), obj.metadata.namespace, obj.metadata.name, "status")
        return await self._send("PUT", path, obj)

    async def patch_status(self, kind: type[O], name: str, namespace: str, merge_patch: dict[str, Any]) -> O:
        """Patch the status of an object by a JSON merge patch (RFC 7386)."""
        return await self._patch(resource_path(kind, namespace, name, "status"), kind, merge_patch)

    async def patch_status_strategically(self, kind: type[O], name: str, namespace: str, patch: dict[str, Any]) -> O:
        """Patch the status of an object by a strategic merge patch, which merges items of lists by their key."""
        content_type = "application/strategic-merge-patch+json"
        return await self._patch(resource_path(kind, namespace, name, "status"), kind, patch, content_type)

    async def patch(self, kind: type[O], name: str, namespace: str, merge_patch: dict[str, Any]) -> O:
        """Patch an object by a JSON merge patch (RFC 7386)."""
        return await self._patch(resource_path(kind, namespace, name), kind, merge_patch)

    async def _patch(
        self, path: str, kind: type[O], patch: dict[str, Any], content_type: str = "application/merge-patch+json"
    ) -> O:
        return _decoded(await self.request("PATCH", path, msgspec.json.encode(patch), content_type), kind, path)

    async def delete(
        self,
        kind: type[Object],
        name: str,
        namespace: str = "",
        grace_seconds: int | None = None,
        uid: str = "",
        resource_version: str = "",
    ) -> None:
        """Delete an object.

        `uid` and `resource_version` are preconditions: raises Conflict if the object has other values.
        """
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if any(preconditions.values()):
            options["preconditions"] = {key: value for key, value in preconditions.items() if value}
        await self.request("DELETE", resource_path(kind, namespace, name), msgspec.json.encode(options))

    async def bind(self, pod: Pod, node: str) -> None:
        """Bind a pod to a node."""
        binding = Binding(
            api_version="v1",
            kind="Binding",
            metadata=ObjectMeta(name=pod.metadata.name, namespace=pod.metadata.namespace, uid=pod.metadata.uid),
            target=ObjectReference(api_version="v1", kind="Node", name=node),
        )
        path = resource_path(Pod, pod.metadata.namespace, pod.metadata.name, "binding")
        await self.request("POST", path, msgspec.json.encode(binding))

    async def request_token(self, namespace: str, account: str, token_request: TokenRequest) -> TokenRequestStatus:
        """Request a token of a service account."""
        path = f"/api/v1/namespaces/{quote(namespace)}/serviceaccounts/{quote(account)}/token"
        body = await self.request("POST", path, msgspec.json.encode(token_request))
        return _decoded(body, TokenRequest, path).status

    async def create_review(self, review: O) -> O:
        """Create a review and return it with its status. The kinds are those in REVIEW_PATHS."""
        return await self._send("POST", REVIEW_PATHS[type(review)], review)

    async def _send(self, method: str, path: str, obj: O) -> O:
        typed = msgspec.structs.replace(obj, api_version=obj.API_VERSION, kind=obj.KIND)
        return _decoded(await self.request(method, path, msgspec.json.encode(typed)), type(obj), path)

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = "application/json",
        query: dict[str, str] | None = None,
        headers: Iterable[tuple[str, str]] = (),
    ) -> bytes:
        """Send a request and return the body of a successful response. `headers` are further headers."""
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS, connect=self._connect_seconds)
        all_headers = [*([("Content-Type", content_type)] if body is not None else []), *headers]
        async with self._open_response(
            method, path, body=body, headers=all_headers, query=query, timeout=timeout
        ) as response:
            try:
                return await response.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise self._unreachable(error) from None

    async def upload(self, path: str, body: AsyncIterator[bytes], content_type: str, idle_seconds: float) -> bytes:
        """POST a body of any length, and return the body of a successful response.

        The server has `idle_seconds` to respond after it has received the body.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_read=idle_seconds)
        headers = [("Content-Type", content_type)]
        async with self._open_response("POST", path, body=body, headers=headers, timeout=timeout) as response:
            return await response.read()

    @asynccontextmanager
    async def _open_response(
        self,
        method: str,
        path: str,
        *,
        body: bytes | AsyncIterator[bytes] | None = None,
        headers: Iterable[tuple[str, str]] = (),
        query: dict[str, str] | None = None,
        timeout: aiohttp.ClientTimeout | None = None,  # noqa: ASYNC109
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._connections.acquire() as connection:
            address = connection.server.rpartition("/")[2]
            try:
                response = await connection.http.request(
                    method,
                    connection.server + path,
                    data=body,
                    headers=headers,
                    params=query,
                    timeout=timeout,
                    server_hostname=connection.server_name,
                )
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self._on_response(method, address, 0)
                raise self._unreachable(error) from None
            self._on_response(method, address, response.status)
            async with response:
                if response.status >= 400:
                    raise await _response_error(response)
                try:
                    yield response
                except (aiohttp.ClientError, TimeoutError) as error:
                    raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> Unreachable:
        return unreachable(self._connections.server, error)


def _query(field_selector: str, label_selector: str) -> dict[str, str]:
    query = {"fieldSelector": field_selector, "labelSelector": label_selector}
    return {key: value for key, value in query.items() if value}


def _with_type(item: O) -> O:
    """Return an item of a list with apiVersion and kind, as events of a watch have them."""
    return msgspec.structs.replace(item, api_version=item.API_VERSION, kind=item.KIND)


def _decoded(data: bytes | msgspec.Raw, kind: type[T], path: str) -> T:
    try:
        return decode_json(data, kind)
    except DecodeError as error:
        raise InvalidResponse(f"the response to {path} is {error}") from None


async def _response_error(response: aiohttp.ClientResponse) -> ApiError:
    data = await response.read()
    try:
        return error_from_status(decode_json(data, Status))
    except DecodeError:
        text = data[:200].decode(errors="replace")
        return error_from_status(
            Status(status="Failure", code=response.status, reason=response.reason or "", message=text)
        )


async def _split_lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines of any length, without empty ones. `StreamReader.readline` fails at the size of its buffer."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line
