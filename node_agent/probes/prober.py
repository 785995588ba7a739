"""Executes a probe or a hook: HTTP, TCP, gRPC, exec. Driver.

Requests come from the node, which reaches the pods of every project network. They go to the pod's address; with
hostNetwork a probe may name another host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from api.core.pod import HTTPGetAction, LifecycleHandler, Probe
from node_agent.docker.client import DockerClient
from node_agent.probes import tcp
from node_agent.probes.state import ProbeOutcome
from node_agent.probes.tcp import os_error_text
from reconcile.errors import DriverError

PROBE_USER_AGENT, HOOK_USER_AGENT = "kube-probe/1.36", "kube-lifecycle/1.36"
MAX_REDIRECTS = 10
MAX_BODY_BYTES = 10 << 10
REDIRECT_STATUSES = frozenset((301, 302, 303, 307, 308))


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """The container of a probe or hook: its ID, its pod's address, and its named ports."""

    container: str
    address: str
    ports: Mapping[str, int]


class Prober:
    """The executor of probes and hooks of all containers of the node. Every HTTP request has its own connection."""

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

    async def probe(self, probe: Probe, target: ProbeTarget) -> ProbeOutcome:
        """Execute a probe once, within its timeout."""
        seconds = probe.timeout_seconds
        if probe.exec is not None:
            return await self._exec(probe.exec.command, target, seconds)
        if probe.http_get is not None:
            return await self._http_get(probe.http_get, target, seconds, PROBE_USER_AGENT)
        if probe.grpc is not None:
            from node_agent.probes import grpc  # noqa: PLC0415 - 1.5 MB that few nodes need

            return await grpc.check(probe.grpc, target.address, seconds)
        assert probe.tcp_socket is not None, "validation accepts no probe without a handler"
        address = probe.tcp_socket.host or target.address
        return await tcp.connect(address, _port_number(probe.tcp_socket.port, target), seconds)

    async def run_hook(self, hook: LifecycleHandler, target: ProbeTarget, seconds: float) -> ProbeOutcome:
        """Run a hook for at most this many seconds. A hook with `tcpSocket` does nothing, as in kubelet.

        A request with HTTPS to a server of HTTP is repeated with HTTP, as in kubelet.
        """
        if hook.exec is not None:
            return await self._exec(hook.exec.command, target, seconds)
        if hook.sleep is not None:
            await asyncio.sleep(min(hook.sleep.seconds, seconds))
        if hook.http_get is None:
            return ProbeOutcome(True)
        outcome = await self._http_get(hook.http_get, target, seconds, HOOK_USER_AGENT)
        if outcome.success is False and hook.http_get.scheme == "HTTPS" and "WRONG_VERSION_NUMBER" in outcome.message:
            plain = HTTPGetAction(
                port=hook.http_get.port,
                path=hook.http_get.path,
                host=hook.http_get.host,
                http_headers=hook.http_get.http_headers,
                scheme="HTTP",
            )
            return await self._http_get(plain, target, seconds, HOOK_USER_AGENT)
        return outcome

    async def _exec(self, command: tuple[str, ...], target: ProbeTarget, seconds: float) -> ProbeOutcome:
        try:
            result = await self._docker.exec(target.container, command, seconds)
        except DriverError as error:
            return ProbeOutcome(None, str(error))
        if result.exit_code is None:
            return ProbeOutcome(False, f'command "{" ".join(command)}" timed out after {seconds:g}s')
        if result.exit_code != 0:
            return ProbeOutcome(False, result.output.strip() or f"exit code {result.exit_code}")
        return ProbeOutcome(True)

    async def _http_get(
        self, action: HTTPGetAction, target: ProbeTarget, seconds: float, user_agent: str
    ) -> ProbeOutcome:
        origin = URL.build(
            scheme=action.scheme.lower(), host=action.host or target.address, port=_port_number(action.port, target)
        )
        url = origin.join(URL(f"/{action.path.lstrip('/')}"))
        try:
            async with asyncio.timeout(seconds):
                return await self._get_following_redirects(url, _headers(action, user_agent))
        except TimeoutError:
            return ProbeOutcome(False, f'Get "{url}": no answer within {seconds:g}s')
        except aiohttp.ClientConnectorError as error:
            return ProbeOutcome(False, f'Get "{url}": {os_error_text(error.os_error)}')
        except (aiohttp.ClientError, ValueError) as error:
            return ProbeOutcome(False, f'Get "{url}": {error}')

    async def _get_following_redirects(self, url: URL, headers: CIMultiDict[str]) -> ProbeOutcome:
        """Request a URL. Redirects to the same host are followed; a redirect to another host is a success."""
        for _ in range(MAX_REDIRECTS + 1):
            async with self._session.get(url, headers=headers, allow_redirects=False) as response:
                body = await _read_body(response)
                status = response.status
                location = response.headers.get("Location", "")
            if status not in REDIRECT_STATUSES or not location:
                if 200 <= status < 400:
                    return ProbeOutcome(True)
                return ProbeOutcome(False, f"HTTP probe failed with statuscode: {status}")
            redirect = url.join(URL(location))
            if redirect.host != url.host or redirect.scheme not in {"http", "https"}:
                return ProbeOutcome(True, f"Probe terminated redirects, Response body: {body.decode(errors='replace')}")
            url = redirect
        return ProbeOutcome(False, f'Get "{url}": stopped after {MAX_REDIRECTS} redirects')


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    """Return the body, at most MAX_BODY_BYTES of it."""
    body = b""
    while len(body) < MAX_BODY_BYTES and (chunk := await response.content.read(MAX_BODY_BYTES)):
        body += chunk
    return body[:MAX_BODY_BYTES]


def _headers(action: HTTPGetAction, user_agent: str) -> CIMultiDict[str]:
    """Return the probe's headers and default ones. A probe can replace a default header; an empty one is not sent."""
    headers = CIMultiDict((header.name, header.value) for header in action.http_headers)
    defaults = {name: value for name, value in (("User-Agent", user_agent), ("Accept", "*/*")) if name not in headers}
    return CIMultiDict([*((name, value) for name, value in headers.items() if value), *defaults.items()])


def _port_number(port: int | str, target: ProbeTarget) -> int:
    return port if isinstance(port, int) else target.ports[port]
