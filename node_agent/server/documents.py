"""What the agent tells of itself and its pods: lists, health, settings and figures."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
from aiohttp import web

from node_agent.known_pods import KnownPods
from node_agent.server import pod_lists
from node_agent.server.server import Route
from node_agent.settings import Settings
from node_agent.stats.reports import Reports

PROMETHEUS = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
MASKED = "<masked>"
"""As a kubelet shows the headers of its manifest URL."""


class Documents:
    """`stuck` says what of the agent's work has come to a halt, empty when nothing has."""

    def __init__(self, settings: Settings, pods: KnownPods, reports: Reports, stuck: Callable[[], str]) -> None:
        self._settings = settings
        self._pods = pods
        self._reports = reports
        self._stuck = stuck

    def routes(self) -> tuple[Route, ...]:
        """Where each is found."""
        return (
            Route("/pods", self._known),
            Route("/pods/", self._known),
            Route("/runningpods", self._running),
            Route("/runningpods/", self._running),
            Route("/healthz", self._healthy),
            Route("/healthz/", self._healthy),
            Route("/healthz/ping", _ok),
            Route("/healthz/log", _ok),
            Route("/healthz/syncloop", self._healthy),
            Route("/configz", self._configuration),
            Route("/stats/summary", self._summary),
            Route("/metrics", self._metrics),
            Route("/metrics/resource", self._resource),
            Route("/metrics/cadvisor", self._cadvisor),
            Route("/metrics/probes", self._probes),
        )

    async def _known(self, _: web.Request) -> web.Response:
        return _json(pod_lists.known(self._pods.everything()))

    async def _running(self, _: web.Request) -> web.Response:
        return _json(pod_lists.running(self._pods.everything()))

    async def _healthy(self, _: web.Request) -> web.Response:
        stuck = self._stuck()
        if stuck:
            return web.Response(status=500, text=f"[-]syncloop failed: {stuck}\nhealthz check failed\n")
        return web.Response(text="ok")

    async def _configuration(self, _: web.Request) -> web.Response:
        return _json(msgspec.json.encode({"kubeletconfig": shown(self._settings)}))

    async def _summary(self, http: web.Request) -> web.Response:
        only = http.query.get("only_cpu_and_memory", "").lower() in ("true", "1")
        return _json(await self._reports.summary(only))

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._reports.metrics(), headers=PROMETHEUS)

    async def _resource(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._reports.resource(), headers=PROMETHEUS)

    async def _cadvisor(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._reports.cadvisor(), headers=PROMETHEUS)

    async def _probes(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._reports.probes(), headers=PROMETHEUS)


def shown(settings: Settings) -> Settings:
    """The settings as others may see them: without what is secret in them."""
    url = re.sub(r"(?<=://)[^/?#]*@", f"{MASKED}@", settings.manifest_url)
    url = re.sub(r"\?.*", f"?{MASKED}", url)
    headers = dict.fromkeys(settings.manifest_url_headers, MASKED)
    return msgspec.structs.replace(settings, manifest_url=url, manifest_url_headers=headers)


async def _ok(_: web.Request) -> web.Response:
    return web.Response(text="ok")


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
