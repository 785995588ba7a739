"""gRPC probes. A module of its own because its library takes 1.5 MB and is imported on first use. Driver."""

from __future__ import annotations

import asyncio
from typing import Any

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from api.core.pod import GRPCAction
from node_agent.probes.prober import os_error_text
from node_agent.probes.state import ProbeAnswer

GRPC_CHECK = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"  # field 1 of HealthCheckResponse, a varint: 1


class _Plain(CodecBase):
    """Messages are the bytes that they are: two fields need no generated code."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> Any:
        return data


async def check(action: GRPCAction, address: str, seconds: float) -> ProbeAnswer:
    """Ask a server for the health of one of its services, or of itself."""
    name = (action.service or "").encode()
    question = b"\x0a" + _varint(len(name)) + name if name else b""
    channel = Channel(address, action.port, codec=_Plain())
    try:
        async with asyncio.timeout(seconds):
            answer = await UnaryUnaryMethod[bytes, bytes](channel, GRPC_CHECK, bytes, bytes)(question)
    except TimeoutError:
        return ProbeAnswer(False, f"timeout: no answer from {address}:{action.port} within {seconds:g}s")
    except GRPCError as error:
        return ProbeAnswer(False, f"error: health rpc failed: {error.status.name} {error.message or ''}".rstrip())
    except OSError as error:
        return ProbeAnswer(False, f"error: no health rpc with {address}:{action.port}: {os_error_text(error)}")
    except (ProtocolError, StreamTerminatedError) as error:
        return ProbeAnswer(False, f"error: no health rpc with {address}:{action.port}: {error}")
    finally:
        channel.close()
    serves = answer == SERVING
    return ProbeAnswer(serves, "" if serves else "service unhealthy (responded with something else than SERVING)")


def _varint(number: int) -> bytes:
    """Seven bits in each byte, the lowest first."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)
