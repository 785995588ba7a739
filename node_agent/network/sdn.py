"""The network `sdn`: a client of the sdn daemon's socket. Driver."""

from __future__ import annotations

import contextlib
from types import TracebackType

import aiohttp
import msgspec

from api.network.attach import (
    NODE_AGENT,
    AttachError,
    Attachment,
    AttachRequest,
    DetachRequest,
    NetworkStatus,
    Sandboxes,
)
from reconcile.errors import Gone, NotReady, Refused

REQUEST_TIMEOUT_SECONDS = 30.0


class SdnNetwork:
    """The network `sdn`: a PodNetwork. Use it as `async with SdnNetwork(socket) as network`."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> SdnNetwork:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(self._socket, limit=0),
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS),
        )
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    async def attach(self, request: AttachRequest) -> Attachment:
        """Attach a sandbox. Its packets are forwarded when this returns. Repeated calls return the same attachment."""
        return msgspec.json.decode(await self._request("POST", "/ADD", request), type=Attachment)

    async def detach(self, sandbox: str) -> None:
        """Detach a sandbox completely. Does nothing if it is not attached."""
        with contextlib.suppress(Gone):
            await self._request("POST", "/DEL", DetachRequest(sandbox=sandbox))

    async def status(self) -> NetworkStatus:
        """Return the status of the network. Raises NotReady with the reason while sandboxes cannot be attached."""
        return msgspec.json.decode(await self._request("GET", "/STATUS"), type=NetworkStatus)

    async def list_sandboxes(self) -> frozenset[str]:
        """Return the IDs of all sandboxes that were attached by the node agent."""
        content = await self._request("GET", f"/SANDBOXES?runtime={NODE_AGENT}")
        return frozenset(msgspec.json.decode(content, type=Sandboxes).sandboxes)

    async def metrics(self) -> bytes:
        """Return the metrics of the sdn daemon, which its own port shows on this host only."""
        return await self._request("GET", "/METRICS")

    async def _request(self, method: str, path: str, body: msgspec.Struct | None = None) -> bytes:
        if self._http is None:
            raise RuntimeError("use the network in `async with`")
        data = msgspec.json.encode(body) if body is not None else None
        try:
            async with self._http.request(method, f"http://sdn{path}", data=data) as response:
                content = await response.read()
                status = response.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NotReady(
                f"the sdn daemon does not answer on {self._socket}: {str(error) or 'no answer in time'}"
            ) from None
        if status == 200:
            return content
        error_type = {404: Gone, 503: NotReady}.get(status, Refused)
        raise error_type(f"sdn: {_error_message(content)}")


def _error_message(content: bytes) -> str:
    try:
        return msgspec.json.decode(content, type=AttachError).msg
    except msgspec.DecodeError:
        return content[:200].decode(errors="replace")
