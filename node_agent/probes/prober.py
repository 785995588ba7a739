"""Executes a probe or a hook: HTTP, TCP, exec. Driver.

Everything goes to the pod's own address (unless it is in its node's network and names another), from the node, which
reaches every lane. Source: facts/node.md 11 and 12.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from api.core.pod import HTTPGetAction, LifecycleHandler, Probe
from node_agent.docker.client import DockerClient
from node_agent.probes.state import ProbeAnswer
from reconcile.errors import DriverError

PROBE_AGENT, HOOK_AGENT = "kube-probe/1.36", "kube-lifecycle/1.36"
MOST_REDIRECTS = 10
MOST_BODY = 10 << 10
REDIRECTS = frozenset((301, 302, 303, 307, 308))


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """Whom to ask: the container's id, its pod's address, its named ports."""

    container: str
    address: str
    ports: Mapping[str, int]


class Prober:
    """A client for all containers of the node; no connection is kept for a second question."""

    def __init__(self, docker: DockerClient) -> None:
        self._docker = docker
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=0, ssl=False),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
            timeout=aiohttp.ClientTimeout(),
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def ask(self, probe: Probe, target: ProbeTarget) -> ProbeAnswer:
        """One question, with the probe's timeout."""
        seconds = probe.timeout_seconds
        if probe.exec is not None:
            return await self._execute(probe.exec.command, target, seconds)
        if probe.http_get is not None:
            return await self._get(probe.http_get, target, seconds, PROBE_AGENT)
        if probe.grpc is not None:
            from node_agent.probes import grpc  # noqa: PLC0415 - 1.5 MB that few nodes need

            return await grpc.check(probe.grpc, target.address, seconds)
        assert probe.tcp_socket is not None
        tcp = probe.tcp_socket
        return await _connect(tcp.host or target.address, _port(tcp.port, target), seconds)

    async def carry_out(self, hook: LifecycleHandler, target: ProbeTarget, seconds: float) -> ProbeAnswer:
        """A hook, which has so many seconds; one of `tcpSocket` does nothing."""
        if hook.exec is not None:
            return await self._execute(hook.exec.command, target, seconds)
        if hook.sleep is not None:
            await asyncio.sleep(min(hook.sleep.seconds, seconds))
        if hook.http_get is None:
            return ProbeAnswer(True)
        done = await self._get(hook.http_get, target, seconds, HOOK_AGENT)
        if done.success is False and hook.http_get.scheme == "HTTPS" and "WRONG_VERSION_NUMBER" in done.words:
            plain = HTTPGetAction(
                port=hook.http_get.port,
                path=hook.http_get.path,
                host=hook.http_get.host,
                http_headers=hook.http_get.http_headers,
                scheme="HTTP",
            )
            return await self._get(plain, target, seconds, HOOK_AGENT)
        return done

    async def _execute(self, command: tuple[str, ...], target: ProbeTarget, seconds: float) -> ProbeAnswer:
        try:
            done = await self._docker.exec(target.container, command, seconds)
        except DriverError as error:
            return ProbeAnswer(None, str(error))
        if done.exit_code is None:
            return ProbeAnswer(False, f'command "{" ".join(command)}" timed out after {seconds:g}s')
        return (
            ProbeAnswer(True)
            if done.exit_code == 0
            else ProbeAnswer(False, done.output.strip() or f"exit code {done.exit_code}")
        )

    async def _get(self, action: HTTPGetAction, target: ProbeTarget, seconds: float, agent: str) -> ProbeAnswer:
        start = URL.build(
            scheme=action.scheme.lower(), host=action.host or target.address, port=_port(action.port, target)
        )
        url = start.join(URL(f"/{action.path.lstrip('/')}"))
        try:
            async with asyncio.timeout(seconds):
                return await self._follow(url, _headers(action, agent))
        except TimeoutError:
            return ProbeAnswer(False, f'Get "{url}": no answer within {seconds:g}s')
        except aiohttp.ClientConnectorError as error:
            return ProbeAnswer(False, f'Get "{url}": {os_error_text(error.os_error)}')
        except (aiohttp.ClientError, ValueError) as error:
            return ProbeAnswer(False, f'Get "{url}": {error}')

    async def _follow(self, url: URL, headers: CIMultiDict[str]) -> ProbeAnswer:
        for _ in range(MOST_REDIRECTS + 1):
            async with self._session.get(url, headers=headers, allow_redirects=False) as answer:
                body = await _read(answer)
                status, elsewhere = answer.status, answer.headers.get("Location", "")
            if status not in REDIRECTS or not elsewhere:
                good = 200 <= status < 400
                return ProbeAnswer(good, "" if good else f"HTTP probe failed with statuscode: {status}")
            to = url.join(URL(elsewhere))
            if to.host != url.host or to.scheme not in {"http", "https"}:
                return ProbeAnswer(True, f"Probe terminated redirects, Response body: {body.decode(errors='replace')}")
            url = to
        return ProbeAnswer(False, f'Get "{url}": stopped after {MOST_REDIRECTS} redirects')


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """The body, or as much of it as one may be expected to take."""
    body = b""
    while len(body) < MOST_BODY and (piece := await answer.content.read(MOST_BODY)):
        body += piece
    return body[:MOST_BODY]


def _headers(action: HTTPGetAction, agent: str) -> CIMultiDict[str]:
    """Ours, but for those that the probe sets itself; an empty one is not sent."""
    own = CIMultiDict((header.name, header.value) for header in action.http_headers)
    ours = {name: value for name, value in (("User-Agent", agent), ("Accept", "*/*")) if name not in own}
    return CIMultiDict([*((name, value) for name, value in own.items() if value), *ours.items()])


def _port(port: int | str, target: ProbeTarget) -> int:
    return port if isinstance(port, int) else target.ports[port]


def os_error_text(error: OSError) -> str:
    """The system's own words, without asyncio's."""
    return os.strerror(error.errno) if error.errno and not isinstance(error, ssl.SSLError) else str(error)


async def _connect(address: str, port: int, seconds: float) -> ProbeAnswer:
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(address, port)
    except TimeoutError:
        return ProbeAnswer(False, f"dial tcp {address}:{port}: no answer within {seconds:g}s")
    except OSError as error:
        return ProbeAnswer(False, f"dial tcp {address}:{port}: {os_error_text(error)}")
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ProbeAnswer(True)
