"""/pods, /runningpods, /healthz, /configz, /stats, /metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import msgspec
from aiohttp import web
from msgspec.structs import replace

from node_agent.config import Settings
from node_agent.server.pod_lister import PodLister
from node_agent.server.server import Route
from node_agent.stats.model import PodWithContainers
from node_agent.stats.provider import StatsProvider


def pod_list(pods: Iterable[PodWithContainers]) -> bytes:
    """A PodList of whole pods."""
    return _list([replace(one.pod, api_version="", kind="") for one in pods])


def running_pod_list(pods: Iterable[PodWithContainers]) -> bytes:
    """A PodList of the pods that have a running container: names and images are all it tells."""
    return _list([_row(one) for one in pods if any(container.running for container in one.seen.all)])


def _row(known: PodWithContainers) -> object:
    meta = known.pod.metadata
    rows = [
        {"name": one.name, "image": one.image_id, "resources": {}}
        for one in known.seen.all
        if one.running and not one.is_sandbox
    ]
    return {
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "spec": {"containers": rows or None},
        "status": {},
    }


def _list(items: Sequence[object]) -> bytes:
    return msgspec.json.encode({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})


PROMETHEUS = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
MASKED = "<masked>"
"""As a kubelet shows the headers of its manifest URL."""


class StatusHandlers:
    """`stuck` says what of the agent's work has come to a halt, empty when nothing has."""

    def __init__(self, settings: Settings, pods: PodLister, reports: StatsProvider, stuck: Callable[[], str]) -> None:
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
        return _json(pod_list(self._pods.list_pods()))

    async def _running(self, _: web.Request) -> web.Response:
        return _json(running_pod_list(self._pods.list_pods()))

    async def _healthy(self, _: web.Request) -> web.Response:
        stuck = self._stuck()
        if stuck:
            return web.Response(status=500, text=f"[-]syncloop failed: {stuck}\nhealthz check failed\n")
        return web.Response(text="ok")

    async def _configuration(self, _: web.Request) -> web.Response:
        return _json(msgspec.json.encode({"kubeletconfig": redacted_settings(self._settings)}))

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


def redacted_settings(settings: Settings) -> Settings:
    """The settings as others may see them: without what is secret in them."""
    url = re.sub(r"(?<=://)[^/?#]*@", f"{MASKED}@", settings.manifest_url)
    url = re.sub(r"\?.*", f"?{MASKED}", url)
    headers = dict.fromkeys(settings.manifest_url_headers, MASKED)
    return msgspec.structs.replace(settings, manifest_url=url, manifest_url_headers=headers)


async def _ok(_: web.Request) -> web.Response:
    return web.Response(text="ok")


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
