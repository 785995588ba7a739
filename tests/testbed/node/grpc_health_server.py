"""A gRPC server with a health service. As a program it takes a port and a file; it is healthy while the file exists."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream

CHECK = "/grpc.health.v1.Health/Check"


class Plain(CodecBase):
    """Messages are bytes."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> Any:
        return data


class Health:
    """`serves` tells of a service whether it does, or None when it is not known."""

    def __init__(self, serves: Callable[[bytes], bool | None]) -> None:
        self._serves = serves

    async def check(self, stream: Stream[bytes, bytes]) -> None:
        question = await stream.recv_message() or b""
        name = b"" if not question else question[2:] if question[1] < 128 else question[3:]
        serves = self._serves(name)
        if serves is None:
            raise GRPCError(Status.NOT_FOUND, "unknown service")
        await stream.send_message(b"\x08\x01" if serves else b"\x08\x02")

    def __mapping__(self) -> dict[str, Handler]:
        return {CHECK: Handler(self.check, Cardinality.UNARY_UNARY, bytes, bytes)}


async def main() -> None:
    """Serve until the end."""
    server = Server([Health(lambda _: Path(sys.argv[2]).exists())], codec=Plain())
    await server.start("0.0.0.0", int(sys.argv[1]))
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(main())
