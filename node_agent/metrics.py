"""Metrics of the agent's own work, under kubelet's metric names. Driver.

They are in the registry of the Prometheus client library, which ports 10248 and 10250 show at `/metrics`. Metrics of
containers, volumes and probes: `node_agent/stats/metrics.py`.
"""

from __future__ import annotations

import datetime
import functools
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

from reconcile.errors import DriverError

disable_created_metrics()  # type: ignore[no-untyped-call]

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[[], Awaitable[None]]

POD_START_DURATION = Histogram(
    "kubelet_pod_start_duration_seconds",
    "From the moment the agent sees a pod for the first time to the pod running",
    buckets=(0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 600, 1200, 1800, 3600),
)
SYNC_DURATION = Histogram(
    "kubelet_pod_worker_duration_seconds", "Duration of the syncs of pod workers", ["operation_type"]
)
RELIST_DURATION = Histogram(
    "kubelet_pleg_relist_duration_seconds", "Duration of relists: comparisons with a list of all containers"
)
OPERATIONS = Counter("kubelet_runtime_operations_total", "Requests to Docker", ["operation_type"])
OPERATION_ERRORS = Counter(
    "kubelet_runtime_operations_errors_total", "Requests to Docker that failed", ["operation_type"]
)
OPERATION_SECONDS = Histogram(
    "kubelet_runtime_operations_duration_seconds",
    "Duration of requests to Docker",
    ["operation_type"],
    buckets=tuple(0.005 * 2.5**step for step in range(14)),
)
SKIPPED_HOST_PORTS = Gauge(
    "podlane_node_agent_skipped_host_ports", "Host ports of pods that are not opened; events of the pods say why"
)
CLIENT_CERTIFICATE_TTL = Gauge(
    "kubelet_certificate_manager_client_ttl_seconds",
    "Seconds until the client certificate ends; +Inf if the agent does not renew it",
)
SERVING_CERTIFICATE_TTL = Gauge(
    "kubelet_certificate_manager_server_ttl_seconds",
    "Seconds until the certificate of the server ends; +Inf if it is of a file that others renew",
)
for certificate_ttl in (CLIENT_CERTIFICATE_TTL, SERVING_CERTIFICATE_TTL):
    certificate_ttl.set(math.inf)
REQUESTS = Counter("rest_client_requests_total", "Requests to the API server", ["code", "host", "method"])


def operation(name: str) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Count and time the calls of a method of the Docker client under kubelet's name for the operation."""

    def decorate(method: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @functools.wraps(method)
        async def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            started_at = time.monotonic()
            OPERATIONS.labels(name).inc()
            try:
                return await method(*args, **kwargs)
            except DriverError:
                OPERATION_ERRORS.labels(name).inc()
                raise
            finally:
                OPERATION_SECONDS.labels(name).observe(time.monotonic() - started_at)

        return timed

    return decorate


class SyncTimer:
    """Measures the syncs of one pod worker, and the start of its pod.

    `next_operation` is the operation type of the next sync: `create` for the first one, `update` after a change of the
    pod, and `sync` otherwise. The syncs of a terminating pod count as `terminated`.
    """

    def __init__(self, sync: Work, is_terminating: Callable[[], bool]) -> None:
        self._sync = sync
        self._is_terminating = is_terminating
        self._created_at = time.monotonic()
        self.next_operation = "create"

    def phase_changed(self, before: str, after: str) -> None:
        """Observe the start duration when the pod's phase becomes Running."""
        if after == "Running" != before:
            POD_START_DURATION.observe(time.monotonic() - self._created_at)

    async def run(self) -> None:
        """Run one sync and observe its duration."""
        operation = "terminated" if self._is_terminating() else self.next_operation
        self.next_operation = "sync"
        with SYNC_DURATION.labels(operation).time():
            await self._sync()


def set_certificate_end(ttl: Gauge, end: datetime.datetime) -> None:
    """Let a gauge show the seconds until `end`."""
    ttl.set_function(lambda: end.timestamp() - time.time())


def count_request(method: str, host: str, code: int) -> None:
    """Count a request to the API server. Code 0 means that no response arrived."""
    REQUESTS.labels(str(code) if code else "<error>", host, method).inc()
