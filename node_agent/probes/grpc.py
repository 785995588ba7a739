"""gRPC probes. A module of its own because its library takes 1.5 MB and is imported on first use. Driver."""

from __future__ import annotations

import asyncio
from typing import Any

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from api.core.pod import GRPCAction
from node_agent.probes.state import ProbeOutcome
from node_agent.probes.tcp import os_error_text

CHECK_METHOD = "/grpc.health.v1.Health/Check"

SERVING_RESPONSE = b"\x08\x01"
"""A HealthCheckResponse with the status SERVING: field 1, a varint, is 1."""


class _BytesCodec(CodecBase):
    """Messages as bytes. The two messages of the protocol are too small for generated code."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> Any:
        return data


async def check(action: GRPCAction, address: str, seconds: float) -> ProbeOutcome:
    """Request the health of a service, or of the server if the probe names no service."""
    service = (action.service or "").encode()
    request = b"\x0a" + _varint(len(service)) + service if service else b""
    channel = Channel(address, action.port, codec=_BytesCodec())
    try:
        async with asyncio.timeout(seconds):
            response = await UnaryUnaryMethod[bytes, bytes](channel, CHECK_METHOD, bytes, bytes)(request)
    except TimeoutError:
        return ProbeOutcome(False, f"timeout: no answer from {address}:{action.port} within {seconds:g}s")
    except GRPCError as error:
        return ProbeOutcome(False, f"error: health rpc failed: {error.status.name} {error.message or ''}".rstrip())
    except OSError as error:
        return ProbeOutcome(False, f"error: no health rpc with {address}:{action.port}: {os_error_text(error)}")
    except (ProtocolError, StreamTerminatedError) as error:
        return ProbeOutcome(False, f"error: no health rpc with {address}:{action.port}: {error}")
    finally:
        channel.close()
    if response != SERVING_RESPONSE:
        return ProbeOutcome(False, "service unhealthy (responded with something else than SERVING)")
    return ProbeOutcome(True)


def _varint(number: int) -> bytes:
    """Encode a number of protobuf: seven bits in each byte, the lowest first."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)
