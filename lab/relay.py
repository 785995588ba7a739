"""Relays what nodes send to name servers and proxies at loopback addresses to this machine, which runs them.

In an internal lab it is the proxy of Docker instead, and refuses with the reason what Docker asks of registries.

A network namespace has a loopback device of its own: 127.0.0.53 of a node is not the machine's systemd-resolved.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyroute2 import netns

from lab.process import log
from lab.topology import INTERNAL_PROXY, PROXY_VARIABLES, REGISTRY, Lab

DNS_PORT = 53
MAX_QUESTIONS = 256
"""UDP questions that wait for an answer at one time. Further ones are dropped, as a full queue of the kernel would."""

ANSWER_SECONDS = 10.0
CHUNK = 1 << 16
REFUSAL = "this lab is internal (podlane lab up --internal), so registries are unreachable for its nodes"
"""The reason that pulls of an internal lab get. The node agent takes it for a temporary cause, by "unreachable": it
starts pods from images that are on the node.
"""


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """A loopback address and port of this machine. `kind` is `tcp`, `udp` or `refuse`."""

    kind: str
    address: str
    port: int

    def __str__(self) -> str:
        """Return the form of a command-line argument."""
        return f"{self.kind}:{self.address}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Return the endpoint of `str(endpoint)`."""
        kind, _, rest = text.partition(":")
        address, _, port = rest.rpartition(":")
        return cls(kind, address, int(port))

    @property
    def family(self) -> socket.AddressFamily:
        """The address family."""
        return socket.AF_INET6 if ":" in self.address else socket.AF_INET


def loopback_endpoints(resolv_conf: str, environment: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """Return the loopback endpoints that the text of a resolv.conf and the proxy variables name, each once. Pure."""
    found = set()
    for words in (line.split() for line in resolv_conf.splitlines()):
        if len(words) > 1 and words[0] == "nameserver" and _is_loopback(words[1]):
            found |= {Endpoint(kind, words[1], DNS_PORT) for kind in ("tcp", "udp")}
    for value in (environment.get(name, "") for name in PROXY_VARIABLES):
        # A proxy without a scheme is accepted by Go's and curl's readers of these variables.
        with contextlib.suppress(ValueError):
            proxy = urlsplit(value if "://" in value else f"http://{value}")
            host = "127.0.0.1" if proxy.hostname == "localhost" else proxy.hostname or ""
            if _is_loopback(host):
                found.add(Endpoint("tcp", host, proxy.port or (443 if proxy.scheme == "https" else 80)))
    return tuple(sorted(found))


def _is_loopback(text: str) -> bool:
    try:
        return ip_address(text).is_loopback
    except ValueError:
        return False


async def relay(namespaces: Sequence[str], endpoints: Sequence[Endpoint]) -> None:
    """Listen at the endpoints in every namespace, and relay to those of this namespace, until cancelled."""
    listeners = [
        (endpoint, listener)
        for namespace in namespaces
        for endpoint in endpoints
        for listener in _listener(namespace, endpoint)
    ]
    async with asyncio.TaskGroup() as group:
        for endpoint, listener in listeners:
            group.create_task(_SERVERS[endpoint.kind](listener, endpoint))


def _listener(namespace: str, endpoint: Endpoint) -> Iterator[socket.socket]:
    """Yield a bound socket of a namespace; none, after a message, if the address is taken there."""
    kind = socket.SOCK_DGRAM if endpoint.kind == "udp" else socket.SOCK_STREAM
    netns.pushns(namespace)
    try:
        listener = socket.socket(endpoint.family, kind)
    finally:
        netns.popns()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setblocking(False)
    try:
        listener.bind((endpoint.address, endpoint.port))
    except OSError as error:
        log(f"{namespace}: {endpoint} is not relayed: {error}")
        listener.close()
    else:
        yield listener


async def _serve_connections(listener: socket.socket, endpoint: Endpoint) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, forth = await asyncio.open_connection(endpoint.address, endpoint.port)
        except OSError as error:
            log(f"{endpoint}: {error}")
            writer.close()
            return
        try:
            await asyncio.gather(_copy(reader, forth), _copy(back, writer))
        finally:
            forth.close()
            writer.close()

    server = await asyncio.start_server(connected, sock=listener)
    async with server:
        await server.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end of one direction, which is passed on. A connection that breaks ends it too."""
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _serve_questions(listener: socket.socket, endpoint: Endpoint) -> None:
    loop, asking = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    try:
        while True:
            question, client = await loop.sock_recvfrom(listener, CHUNK)
            if len(asking) < MAX_QUESTIONS:
                task = asyncio.create_task(_ask(listener, endpoint, question, client))
                asking.add(task)
                task.add_done_callback(asking.discard)
    finally:
        for task in asking:
            task.cancel()
        listener.close()


async def _ask(listener: socket.socket, endpoint: Endpoint, question: bytes, client: Any) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket(endpoint.family, socket.SOCK_DGRAM) as upstream, contextlib.suppress(OSError, TimeoutError):
        upstream.setblocking(False)
        upstream.connect((endpoint.address, endpoint.port))
        async with asyncio.timeout(ANSWER_SECONDS):
            await loop.sock_sendall(upstream, question)
            answer = await loop.sock_recv(upstream, CHUNK)
        await loop.sock_sendto(listener, answer, client)


async def refuse_requests(listener: socket.socket, _: Endpoint) -> None:
    """Answer each request to a proxy with the reason why there is none. Docker shows the words of the status line."""
    body = json.dumps({"errors": [{"code": "DENIED", "message": REFUSAL}]})
    head = f"HTTP/1.1 403 {REFUSAL}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    answer = f"{head}Connection: close\r\n\r\n{body}".encode()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(connected, sock=listener)
    async with server:
        await server.serve_forever()


_SERVERS = {"tcp": _serve_connections, "udp": _serve_questions, "refuse": refuse_requests}


def main() -> None:
    """Run `python -m lab.relay NAMESPACE,... ENDPOINT...`, a process of the lab."""

    async def run() -> None:
        relaying = asyncio.ensure_future(relay(sys.argv[1].split(","), [Endpoint.parse(text) for text in sys.argv[2:]]))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, relaying.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await relaying

    asyncio.run(run())


def lab_endpoints(lab: Lab) -> tuple[Endpoint, ...]:
    """Return the endpoints at which the nodes of a lab are served."""
    registry = (Endpoint.parse(f"tcp:{REGISTRY}"),) if lab.registry else ()
    return (
        (*registry, Endpoint.parse(f"refuse:{INTERNAL_PROXY}")) if lab.internal else (*registry, *machine_endpoints())
    )


def machine_endpoints() -> tuple[Endpoint, ...]:
    """Return the loopback endpoints of this machine's /etc/resolv.conf and of the environment."""
    conf = Path("/etc/resolv.conf")
    return loopback_endpoints(conf.read_text(errors="replace") if conf.exists() else "", os.environ)


if __name__ == "__main__":
    main()
