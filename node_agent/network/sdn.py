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

ANSWER_SECONDS = 30.0


class SdnNetwork:
    """Use as `async with PodNetwork(socket) as network`."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> SdnNetwork:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(self._socket, limit=0),
            timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS),
        )
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    async def attach(self, request: AttachRequest) -> Attachment:
        """Packets flow when this returns; asking again gives the same answer."""
        return msgspec.json.decode(await self._ask("POST", "/ADD", request), type=Attachment)

    async def detach(self, sandbox: str) -> None:
        """Nothing of the sandbox is left in the network when this returns."""
        with contextlib.suppress(Gone):
            await self._ask("POST", "/DEL", DetachRequest(sandbox=sandbox))

    async def status(self) -> NetworkStatus:
        """Raises NotReady, with the reason, while no sandbox can be attached."""
        return msgspec.json.decode(await self._ask("GET", "/STATUS"), type=NetworkStatus)

    async def sandboxes(self) -> frozenset[str]:
        """Every sandbox that has a place in the network on behalf of the node agent."""
        answer = await self._ask("GET", f"/SANDBOXES?runtime={NODE_AGENT}")
        return frozenset(msgspec.json.decode(answer, type=Sandboxes).sandboxes)

    async def _ask(self, method: str, path: str, body: msgspec.Struct | None = None) -> bytes:
        if self._http is None:
            raise RuntimeError("use the network in `async with`")
        data = msgspec.json.encode(body) if body is not None else None
        try:
            async with self._http.request(method, f"http://sdn{path}", data=data) as answer:
                content, status = await answer.read(), answer.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NotReady(
                f"the sdn daemon does not answer on {self._socket}: {error or 'no answer in time'}"
            ) from None
        if status == 200:
            return content
        kind = {404: Gone, 503: NotReady}.get(status, Refused)
        raise kind(f"sdn: {_words(content)}")


def _words(content: bytes) -> str:
    try:
        return msgspec.json.decode(content, type=AttachError).msg
    except msgspec.DecodeError:
        return content[:200].decode(errors="replace")
