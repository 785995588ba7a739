"""/pods, /runningpods, /healthz, /configz, /stats, /metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import msgspec
from aiohttp import web
from msgspec.structs import replace

from node_agent.config import Settings
from node_agent.network.plugin import PodNetwork
from node_agent.server.pod_lister import PodLister
from node_agent.server.server import Handler, Route
from node_agent.stats.model import PodWithContainers
from node_agent.stats.provider import StatsProvider
from reconcile.health_checks import LOG, PING, HealthCheck, report, report_of

PROMETHEUS_HEADERS = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
MASKED = "<masked>"
"""The text by which the kubelet replaces secrets in its configuration."""


class StatusHandlers:
    """Handlers for the state of the node. `hung_reason` returns which loop of the agent hangs, empty if none does."""

    def __init__(
        self,
        settings: Settings,
        pods: PodLister,
        stats: StatsProvider,
        network: PodNetwork,
        hung_reason: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._pods = pods
        self._stats = stats
        self._network = network
        self._checks = (PING, LOG, HealthCheck("syncloop", hung_reason))

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the handlers."""
        return (
            Route("/pods", self._get_pods),
            Route("/pods/", self._get_pods),
            Route("/runningpods", self._get_running_pods),
            Route("/runningpods/", self._get_running_pods),
            Route("/healthz", self._get_health),
            Route("/healthz/", self._get_health),
            *(Route(f"/healthz/{check.name}", _check_handler(check)) for check in self._checks),
            Route("/configz", self._get_configuration),
            Route("/stats/summary", self._get_summary),
            Route("/metrics", self._get_metrics),
            Route("/metrics/resource", self._get_resource_metrics),
            Route("/metrics/cadvisor", self._get_cadvisor_metrics),
            Route("/metrics/probes", self._get_probe_metrics),
            Route("/metrics/sdn", self._get_network_metrics),
        )

    async def _get_pods(self, _: web.Request) -> web.Response:
        return _json_response(pod_list(self._pods.list_pods()))

    async def _get_running_pods(self, _: web.Request) -> web.Response:
        return _json_response(running_pod_list(self._pods.list_pods()))

    async def _get_health(self, request: web.Request) -> web.Response:
        exclude = request.query.getall("exclude", [])
        made = report("healthz", self._checks, verbose="verbose" in request.query, exclude=exclude, with_reasons=True)
        return web.Response(status=500 if made.problems else 200, text=made.text)

    async def _get_configuration(self, _: web.Request) -> web.Response:
        return _json_response(msgspec.json.encode({"kubeletconfig": redacted_settings(self._settings)}))

    async def _get_summary(self, request: web.Request) -> web.Response:
        only_cpu_and_memory = request.query.get("only_cpu_and_memory", "").lower() in ("true", "1")
        return _json_response(await self._stats.summary(only_cpu_and_memory))

    async def _get_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._stats.metrics(), headers=PROMETHEUS_HEADERS)

    async def _get_resource_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._stats.resource(), headers=PROMETHEUS_HEADERS)

    async def _get_cadvisor_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._stats.cadvisor(), headers=PROMETHEUS_HEADERS)

    async def _get_network_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._network.metrics(), headers=PROMETHEUS_HEADERS)

    async def _get_probe_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._stats.probes(), headers=PROMETHEUS_HEADERS)


def pod_list(pods: Iterable[PodWithContainers]) -> bytes:
    """Return a PodList of complete pods."""
    return _encode_pod_list([replace(pod_with_containers.pod, api_version="", kind="") for pod_with_containers in pods])


def running_pod_list(pods: Iterable[PodWithContainers]) -> bytes:
    """Return a PodList of the pods with a running container, which has only the names and images of containers."""
    running = [
        pod_with_containers
        for pod_with_containers in pods
        if any(container.running for container in pod_with_containers.containers.all)
    ]
    return _encode_pod_list([_running_pod(pod_with_containers) for pod_with_containers in running])


def _running_pod(pod_with_containers: PodWithContainers) -> object:
    meta = pod_with_containers.pod.metadata
    containers = [
        {"name": container.name, "image": container.image_id, "resources": {}}
        for container in pod_with_containers.containers.all
        if container.running and not container.is_sandbox
    ]
    return {
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "spec": {"containers": containers or None},
        "status": {},
    }


def _encode_pod_list(items: Sequence[object]) -> bytes:
    return msgspec.json.encode({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})


def redacted_settings(settings: Settings) -> Settings:
    """Return the settings without secrets: credentials in the manifest URL, its query, and its headers."""
    url = re.sub(r"(?<=://)[^/?#]*@", f"{MASKED}@", settings.manifest_url)
    url = re.sub(r"\?.*", f"?{MASKED}", url)
    headers = dict.fromkeys(settings.manifest_url_headers, MASKED)
    return replace(settings, manifest_url=url, manifest_url_headers=headers)


def _check_handler(check: HealthCheck) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        made = report_of(check)
        return web.Response(status=500 if made.problems else 200, text=made.text)

    return handle


def _json_response(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
