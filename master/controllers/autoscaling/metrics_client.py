"""Reads metrics of extension API servers for HorizontalPodAutoscalers, and declares what reads the usage of pods."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from api.core.pod import Pod
from api.meta.quantity import BadQuantity
from master.controllers.autoscaling.metric_queries import VERSIONS, Answer, MetricQuery, decode_values, not_served
from master.controllers.autoscaling.replica_calculator import MetricError
from master.errors import StatusError
from master.resources.metrics import PodMetrics
from reconcile.errors import NotReady

QUERY_SECONDS = 5.0
MAX_PARALLEL_QUERIES = 16


class PodMetricsReader(Protocol):
    """The collector of the usage of pods."""

    async def pod_metrics(self, pods: Iterable[Pod]) -> list[PodMetrics]:
        """Return the usage of those pods whose nodes report it."""


class ExtensionAPIs(Protocol):
    """The API groups that extension API servers serve."""

    def served_version(self, group: str, versions: Sequence[str]) -> str:
        """Return the first of these versions of a group that an extension API server serves; empty if none is."""

    async def get(self, path: str, parameters: Mapping[str, str]) -> bytes:
        """Return the body of the response to a GET. Raise StatusError for an error status, NotReady without a response.

        `path` begins with /apis/ and is quoted; `parameters` are not. The caller limits the time.
        """


class NoExtensionAPIs:
    """The extension APIs of a cluster without extension API servers."""

    def served_version(self, group: str, versions: Sequence[str]) -> str:
        """Return an empty version."""
        return ""

    async def get(self, path: str, parameters: Mapping[str, str]) -> bytes:
        """Raise NotReady."""
        raise NotReady(f"{path}: no extension API server serves it")


async def ask(queries: Iterable[MetricQuery], apis: ExtensionAPIs, now: datetime.datetime) -> dict[MetricQuery, Answer]:
    """Return the answers to queries: values, or why there are none. They run at the same time, each within
    QUERY_SECONDS.
    """
    slots = asyncio.Semaphore(MAX_PARALLEL_QUERIES)

    async def answer(query: MetricQuery) -> Answer:
        api = query.group.partition(".")[0]
        try:
            version = apis.served_version(query.group, VERSIONS[query.group])
            if not version:
                raise MetricError(not_served(query))
            async with slots, asyncio.timeout(QUERY_SECONDS):
                body = await apis.get(query.path(version), dict(query.parameters))
            values = decode_values(body, now)
        except TimeoutError:
            return MetricError(f"unable to fetch metrics from {api} metrics API: no answer within {QUERY_SECONDS:.0f}s")
        except (MetricError, NotReady, StatusError, msgspec.DecodeError, BadQuantity) as error:
            message = error.status.message if isinstance(error, StatusError) else str(error)
            return MetricError(f"unable to fetch metrics from {api} metrics API: {message}")
        return values or MetricError(f"no metrics returned from {api} metrics API")

    asked = tuple(dict.fromkeys(queries))
    return dict(zip(asked, await asyncio.gather(*map(answer, asked)), strict=True))
