"""Client of the API server: typed requests over HTTPS, and its errors as exceptions.

ClientError
├── Unreachable        no answer, or one that is no HTTP; the request may or may not have had its effect
├── Incomprehensible   an answer that is not the object asked for
└── ApiError           the master answered with a Status
    ├── Forbidden      403
    ├── NotFound       404
    ├── AlreadyExists  409, reason AlreadyExists
    ├── Conflict       409, any other reason
    ├── Expired        410: the revision asked for has been forgotten
    └── Invalid        422
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
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
from api.codec.kinds import NAMESPACED, PLURALS
from api.core.auth import ASKED_AT, TokenRequest, TokenRequestStatus
from api.core.node import Binding
from api.core.pod import Pod
from api.meta.types import List, Object, ObjectMeta, ObjectReference, Status

O = TypeVar("O", bound=Object)
T = TypeVar("T")

ANSWER_SECONDS = 30.0
WATCH_SECONDS = 300
SILENCE_SECONDS = 90.0
"""A watch on which nothing was heard for so long, not even a bookmark, is taken for dead."""


class ClientError(Exception):
    """`str(error)` is a sentence for a person."""


class Unreachable(ClientError):
    """No answer."""


class InvalidResponse(ClientError):
    """An answer in which we do not find what was asked for."""


class ApiError(ClientError):
    """The master's refusal, with its Status."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.message or f"{status.code} {status.reason}")
        self.status = status


class Forbidden(ApiError):
    """Our certificate does not allow this."""


class NotFound(ApiError):
    """There is no such object."""


class AlreadyExists(ApiError):
    """There is one already."""


class Conflict(ApiError):
    """The object has changed since it was read."""


class Expired(ApiError):
    """List again."""


class Invalid(ApiError):
    """The object has problems; `status.details.causes` lists every one."""


_BY_CODE: dict[int, type[ApiError]] = {403: Forbidden, 404: NotFound, 409: Conflict, 410: Expired, 422: Invalid}


def error_from_status(status: Status) -> ApiError:
    """The exception for a failure Status."""
    if status.reason == "AlreadyExists":
        return AlreadyExists(status)
    return _BY_CODE.get(status.code, ApiError)(status)


@dataclass(frozen=True, slots=True)
class Event(Generic[O]):
    """One line of a watch; `type` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: O


class _WireEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


def path_of(kind: type[Object], namespace: str = "", name: str = "", subresource: str = "") -> str:
    """The path of a collection, an object or a subresource."""
    prefix = "/api/v1" if kind.API_VERSION == "v1" else f"/apis/{kind.API_VERSION}"
    place = f"/namespaces/{quote(namespace)}" if namespace and kind in NAMESPACED else ""
    parts = [prefix + place, PLURALS[kind], *(quote(part) for part in (name, subresource) if part)]
    return "/".join(parts)


def _ignore_response(method: str, address: str, code: int) -> None:
    """Nobody counts."""


class Client:
    """Use as `async with Client(kubeconfig) as client`. Every call raises ClientError.

    `answered` hears of each request: its method, the server's address, and the code of the answer, 0 if there is none.
    """

    def __init__(self, kubeconfig: Kubeconfig, answered: Callable[[str, str, int], None] = _ignore_response) -> None:
        self._connections = Connections(kubeconfig)
        self._answered = answered

    async def __aenter__(self) -> Client:
        self._connections.open()
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self._connections.close()

    @property
    def kubeconfig(self) -> Kubeconfig:
        """As which new requests are sent."""
        return self._connections.kubeconfig

    async def get(self, kind: type[O], name: str, namespace: str = "") -> O:
        """One object."""
        path = path_of(kind, namespace, name)
        return _decoded(await self.request("GET", path), kind, path)

    async def list(
        self, kind: type[O], namespace: str = "", field_selector: str = "", label_selector: str = ""
    ) -> List[O]:
        """All objects that match, in one revision."""
        query = _query(field_selector, label_selector)
        path = path_of(kind, namespace)
        return _decoded(await self.request("GET", path, query=query), List[kind], path)  # type: ignore[valid-type]

    async def watch(
        self,
        kind: type[O],
        resource_version: str,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
    ) -> AsyncGenerator[Event[O], None]:
        """Everything that happens after a revision, until the master ends the stream.

        Raises Expired when the revision is forgotten, Unreachable when the stream breaks or falls silent.
        """
        query = _query(field_selector, label_selector) | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECONDS, sock_read=SILENCE_SECONDS)
        path = path_of(kind, namespace)
        async with self._answer("GET", path, query=query, timeout=timeout) as answer:
            async for line in _lines(answer.content):
                event = _decoded(line, _WireEvent, path)
                if event.type == "ERROR":
                    raise error_from_status(_decoded(event.object, Status, path))
                yield Event(event.type, _decoded(event.object, kind, path))

    async def create(self, obj: O) -> O:
        """Make a new object."""
        return await self._send("POST", path_of(type(obj), obj.metadata.namespace), obj)

    async def update(self, obj: O) -> O:
        """Replace an object; Conflict when its resourceVersion is not the newest."""
        return await self._send("PUT", path_of(type(obj), obj.metadata.namespace, obj.metadata.name), obj)

    async def update_status(self, obj: O) -> O:
        """Replace the status of an object."""
        path = path_of(type(obj), obj.metadata.namespace, obj.metadata.name, "status")
        return await self._send("PUT", path, obj)

    async def patch_status(self, kind: type[O], name: str, namespace: str, merge_patch: dict[str, Any]) -> O:
        """Merge into the status of an object (RFC 7386)."""
        return await self._patch(path_of(kind, namespace, name, "status"), kind, merge_patch)

    async def patch_status_strategically(self, kind: type[O], name: str, namespace: str, patch: dict[str, Any]) -> O:
        """Merge into the status of an object as Kubernetes does, list items by their key."""
        content_type = "application/strategic-merge-patch+json"
        return await self._patch(path_of(kind, namespace, name, "status"), kind, patch, content_type)

    async def patch(self, kind: type[O], name: str, namespace: str, merge_patch: dict[str, Any]) -> O:
        """Merge into an object (RFC 7386)."""
        return await self._patch(path_of(kind, namespace, name), kind, merge_patch)

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
        """Delete an object; with `uid` only if it is that one, with `resource_version` only as it was then (Conflict
        otherwise).
        """
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        conditions = {"uid": uid, "resourceVersion": resource_version}
        if any(conditions.values()):
            options["preconditions"] = {key: value for key, value in conditions.items() if value}
        await self.request("DELETE", path_of(kind, namespace, name), msgspec.json.encode(options))

    async def bind(self, pod: Pod, node: str) -> None:
        """Place a pod on a node."""
        binding = Binding(
            api_version="v1",
            kind="Binding",
            metadata=ObjectMeta(name=pod.metadata.name, namespace=pod.metadata.namespace, uid=pod.metadata.uid),
            target=ObjectReference(api_version="v1", kind="Node", name=node),
        )
        path = path_of(Pod, pod.metadata.namespace, pod.metadata.name, "binding")
        await self.request("POST", path, msgspec.json.encode(binding))

    async def request_token(self, namespace: str, account: str, wish: TokenRequest) -> TokenRequestStatus:
        """A token of a service account."""
        path = f"/api/v1/namespaces/{quote(namespace)}/serviceaccounts/{quote(account)}/token"
        return _decoded(await self.request("POST", path, msgspec.json.encode(wish)), TokenRequest, path).status

    async def ask(self, review: O) -> O:
        """A review with its answer; of the kinds in `reviews.ASKED_AT`."""
        return await self._send("POST", ASKED_AT[type(review)], review)

    async def _send(self, method: str, path: str, obj: O) -> O:
        named = msgspec.structs.replace(obj, api_version=obj.API_VERSION, kind=obj.KIND)
        return _decoded(await self.request(method, path, msgspec.json.encode(named)), type(obj), path)

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = "application/json",
        query: dict[str, str] | None = None,
    ) -> bytes:
        """Any request; the body of a good answer."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        headers = {"Content-Type": content_type} if body is not None else {}
        async with self._answer(method, path, body=body, headers=headers, query=query, timeout=timeout) as answer:
            try:
                return await answer.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise self._unreachable(error) from None

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
        timeout: aiohttp.ClientTimeout | None = None,  # noqa: ASYNC109
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._connections.one() as connection:
            try:
                answer = await connection.http.request(
                    method,
                    connection.server + path,
                    data=body,
                    headers=headers,
                    params=query,
                    timeout=timeout,
                    server_hostname=connection.server_name,
                )
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self._answered(method, connection.server.rpartition("/")[2], 0)
                raise self._unreachable(error) from None
            self._answered(method, connection.server.rpartition("/")[2], answer.status)
            async with answer:
                if answer.status >= 400:
                    raise await _failure(answer)
                try:
                    yield answer
                except (aiohttp.ClientError, TimeoutError) as error:
                    raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(f"{self._connections.server} does not answer: {error or type(error).__name__}")


def _query(field_selector: str, label_selector: str) -> dict[str, str]:
    query = {"fieldSelector": field_selector, "labelSelector": label_selector}
    return {key: value for key, value in query.items() if value}


def _decoded(data: bytes | msgspec.Raw, kind: type[T], path: str) -> T:
    try:
        return decode_json(data, kind)
    except DecodeError as error:
        raise InvalidResponse(f"the answer to {path} is {error}") from None


async def _failure(answer: aiohttp.ClientResponse) -> ApiError:
    data = await answer.read()
    try:
        return error_from_status(decode_json(data, Status))
    except DecodeError:
        text = data[:200].decode(errors="replace")
        return error_from_status(Status(status="Failure", code=answer.status, reason=answer.reason or "", message=text))


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length (readline of the stream gives up at its buffer's size)."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line
