"""Probes of the doctor: connections, DNS queries, HTTP requests. Driver."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

import aiohttp

from cli.doctor.checks import REFUSED

PROBE_SECONDS = 2.0
MAX_BODY = 1 << 20
_A, _NS, _IN = 1, 2, 1


async def tcp_problem(address: str, port: int, seconds: float = PROBE_SECONDS) -> str:
    """Return why a connection fails; empty if it succeeds. `refused` comes from a host that answers."""
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(address, port)
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except ConnectionRefusedError:
        return REFUSED
    except OSError as error:
        return error.strerror or str(error)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


@dataclass(frozen=True, slots=True)
class Response:
    """A response: its status, its body, and its headers in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


async def http_get(url: str, unix_socket: str = "", seconds: float = PROBE_SECONDS, limit: int = MAX_BODY) -> Response:
    """Return the response to a request without credentials. Certificates are not verified, so no secret may be sent.

    Raises OSError if there is none in time.
    """
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    connector = aiohttp.UnixConnector(unix_socket) if unix_socket else aiohttp.TCPConnector(ssl=tls)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=seconds)) as http,
            http.get(url, allow_redirects=False) as response,
        ):
            body = await _read(response.content, limit)
            return Response(response.status, body, {key.lower(): value for key, value in response.headers.items()})
    except TimeoutError:
        raise OSError(f"no answer within {seconds:g} s") from None
    except aiohttp.ClientConnectorError as error:
        raise OSError(error.os_error.strerror or str(error.os_error)) from None
    except aiohttp.ClientError as error:
        raise OSError(str(error) or type(error).__name__) from None


async def _read(stream: aiohttp.StreamReader, limit: int) -> bytes:
    """Return at most `limit` bytes of a body."""
    body = bytearray()
    while len(body) < limit and (data := await stream.read(limit - len(body))):
        body += data
    return bytes(body)


async def seconds_ahead(url: str) -> float:
    """Return the seconds by which this clock is ahead of a server's, to a second. Raises OSError."""
    before = time.time()
    response = await http_get(url)
    after = time.time()
    try:
        moment = parsedate_to_datetime(response.headers.get("date", "")).timestamp()
    except (TypeError, ValueError):
        raise OSError("the answer has no date") from None
    # The header has whole seconds: the server's clock was between `moment` and a second later.
    if before - 1 <= moment <= after:
        return 0.0
    return (before + after) / 2 - (moment + 0.5)


async def dns_problem(server: str, name: str, kind: int = _A, seconds: float = PROBE_SECONDS) -> str:
    """Return why a name server gives no answer to a query by UDP; empty if it gives one."""
    loop, number = asyncio.get_running_loop(), secrets.randbits(16)
    labels = b"".join(bytes([len(label)]) + label for label in name.encode().split(b".") if label)
    query = struct.pack("!6H", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, _IN)
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as udp:
        udp.setblocking(False)
        try:
            udp.connect((server, 53))
            async with asyncio.timeout(seconds):
                await loop.sock_sendall(udp, query)
                while True:
                    answer = await loop.sock_recv(udp, 4096)
                    if len(answer) >= 12 and struct.unpack_from("!H", answer)[0] == number:
                        break
        except TimeoutError:
            return f"no answer within {seconds:g} s"
        except OSError as error:
            return error.strerror or str(error)
    code, answers = answer[3] & 0x0F, struct.unpack_from("!H", answer, 6)[0]
    if kind == _A and (code or not answers):
        return f"it knows no address of {name} (code {code})"
    return ""


async def upstream_problem(server: str) -> str:
    """Return why a name server does not answer a query for the root; empty if it does, with whatever result."""
    return await dns_problem(server, "", _NS)
