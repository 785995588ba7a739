"""metrics.k8s.io: usage of nodes and pods, read from kubelets on request and cached briefly."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from api.core.node import Node
from api.core.pod import FINAL_PHASES, Pod
from api.meta.types import Object
from master import errors
from master.registry.request import Request, Response
from master.request_info import Selection, parse_selection
from master.resources.metadata import Clock
from master.resources.metrics import NODE_METRICS, NodeMetrics, PodMetrics, Summary, node_metrics, pod_metrics
from master.resources.scheme import group_resource
from master.serialization import negotiation, tables
from master.storage.interface import Storage
from reconcile.errors import NotReady

log = logging.getLogger(__name__)

SUMMARY_PATH = "/stats/summary?only_cpu_and_memory=true"
CACHE_SECONDS, REQUEST_TIMEOUT_SECONDS = 12.0, 6.0
MAX_PARALLEL_REQUESTS = 32
"""Maximum number of concurrent requests to kubelets."""


class KubeletReader(Protocol):
    """A client for the kubelets."""

    async def get(self, node: str, path: str, seconds: float = ...) -> bytes:
        """Return the whole response. Raise NotReady."""


@dataclass(frozen=True, slots=True)
class _CachedSummary:
    """The last summary of a node, None if it did not answer; with the time of `time.monotonic`."""

    until: float
    summary: Summary | None


class MetricsReader:
    """Reads metrics of kubelets.

    A node that does not answer is omitted with its pods, and no request is sent to it for a short time.
    """

    def __init__(self, storage: Storage, nodes: KubeletReader, clock: Clock) -> None:
        self._store = storage
        self._nodes = nodes
        self._clock = clock
        self._cache: dict[str, _CachedSummary] = {}
        self._requests: dict[str, asyncio.Task[Summary | None]] = {}
        self._request_slots = asyncio.Semaphore(MAX_PARALLEL_REQUESTS)

    async def answer(self, verb: str, request: Request) -> Response:
        """Return the response to GET of one object or a list. Raise StatusError."""
        resource, view = request.info.resource, negotiation.negotiate(request.accept)
        if request.info.subresource:
            raise errors.path_not_found()
        if verb not in resource.verbs:
            raise errors.method_not_allowed()
        selection = parse_selection(request.info, request.query, request.name_filter, request.record_filter)
        items = await (self._of_nodes if resource is NODE_METRICS else self._of_pods)(selection, request.info.name)
        if request.info.name:
            if not items:
                raise errors.not_found(resource, request.info.name)
            return Response(200, tables.encode_object(resource, items[0], view, self._clock()))
        return Response(200, self._encode_list(request, items))

    def _encode_list(self, request: Request, items: list[Any]) -> bytes:
        resource, view = request.info.resource, negotiation.negotiate(request.accept)
        if view.is_table:
            include, now = request.query.get("includeObject", "Metadata"), self._clock()
            rows = [tables.table_row(resource, obj, view, now, include) for obj in items]
            return tables.encode_table(view, rows, {}, tables.columns(resource))
        if view.is_metadata:
            head = {"kind": "PartialObjectMetadataList", "apiVersion": view.api_version, "metadata": {}}
            return msgspec.json.encode(
                {**head, "items": [tables.metadata_only(obj, view.api_version) for obj in items]}
            )
        head = {"kind": f"{resource.kind}List", "apiVersion": resource.type.API_VERSION, "metadata": {}}
        return msgspec.json.encode({**head, "items": items})

    async def _of_nodes(self, selection: Selection, name: str) -> list[NodeMetrics]:
        nodes = [node for node in self._stored(Node) if name in ("", node.metadata.name) and _selects(selection, node)]
        summaries = await self._summaries({node.metadata.name for node in nodes})
        now = self._clock()
        rows = (
            node_metrics(node, summaries[node.metadata.name], now) for node in nodes if node.metadata.name in summaries
        )
        return [metrics for metrics in rows if metrics is not None]

    async def _of_pods(self, selection: Selection, name: str) -> list[PodMetrics]:
        pods = [
            pod
            for pod in self._stored(Pod, selection.namespace)
            if name in ("", pod.metadata.name)
            and pod.spec.node_name
            and pod.status.phase not in FINAL_PHASES
            and _selects(selection, pod)
        ]
        return await self.pod_metrics(pods)

    async def pod_metrics(self, pods: Iterable[Pod]) -> list[PodMetrics]:
        """Return the metrics of those pods whose nodes report them. Other tasks run in between."""
        wanted = {(pod.spec.node_name, pod.metadata.namespace, pod.metadata.name): pod for pod in pods}
        summaries = await self._summaries({node for node, _, _ in wanted if node})
        now, rows = self._clock(), {}
        for node, summary in summaries.items():
            await asyncio.sleep(0)
            for stats in summary.pods:
                key = (stats.pod_ref.namespace, stats.pod_ref.name)
                pod = wanted.get((node, *key))
                metrics = None if pod is None else pod_metrics(pod, stats, now)
                if metrics is not None:
                    rows[key] = metrics
        return [rows[key] for key in sorted(rows)]

    def _stored(self, kind: type[Object], namespace: str = "") -> Iterable[Any]:
        return (record.object for record in self._store.list(group_resource(kind), namespace))

    # --- nodes -----------------------------------------------------------------------------------------------------

    async def _summaries(self, names: set[str]) -> dict[str, Summary]:
        """Return the summary of each node that answers."""
        ordered = sorted(names)
        summaries = await asyncio.gather(*(self._fetch(name) for name in ordered))
        return {name: summary for name, summary in zip(ordered, summaries, strict=True) if summary is not None}

    async def _fetch(self, name: str) -> Summary | None:
        """Return the summary of a node. Concurrent requests for the same node share one request to its kubelet."""
        known = self._cache.get(name)
        if known is not None and time.monotonic() < known.until:
            return known.summary
        if name not in self._requests:
            self._requests[name] = task = asyncio.create_task(self._read(name))
            task.add_done_callback(lambda _: self._requests.pop(name, None))
        return await asyncio.shield(self._requests[name])

    async def _read(self, name: str) -> Summary | None:
        summary: Summary | None = None
        async with self._request_slots:
            try:
                summary = msgspec.json.decode(
                    await self._nodes.get(name, SUMMARY_PATH, REQUEST_TIMEOUT_SECONDS), type=Summary
                )
            except NotReady as error:
                log.info("resource usage of node unknown", extra={"node": name, "error": error})
            except msgspec.DecodeError as error:
                log.warning("resource usage of node not readable", extra={"node": name, "error": error})
        self._cache[name] = _CachedSummary(time.monotonic() + CACHE_SECONDS, summary)
        asyncio.get_running_loop().call_later(CACHE_SECONDS, self._forget, name)
        return summary

    def _forget(self, name: str) -> None:
        known = self._cache.get(name)
        if known is not None and time.monotonic() >= known.until:
            del self._cache[name]


def _selects(selection: Selection, obj: Node | Pod) -> bool:
    """Return whether the request selects the metrics of this object."""
    labels, fields = selection.labels, selection.fields
    names = {"metadata.name": obj.metadata.name, "metadata.namespace": obj.metadata.namespace}
    return labels.matches(obj.metadata.labels) and fields.matches(names)
