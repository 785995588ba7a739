"""Metrics of the agent's own work, under kubelet's metric names. Driver."""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from prometheus_client import Counter, Histogram, disable_created_metrics

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
SYNC_DURATION = Histogram("kubelet_pod_worker_duration_seconds", "Passes of the workers of pods", ["operation_type"])
RELIST_DURATION = Histogram("kubelet_pleg_relist_duration_seconds", "Comparisons with a list of all containers")
OPERATIONS = Counter("kubelet_runtime_operations_total", "What Docker was asked to do", ["operation_type"])
OPERATION_ERRORS = Counter(
    "kubelet_runtime_operations_errors_total", "What Docker was asked to do and has not done", ["operation_type"]
)
OPERATION_SECONDS = Histogram(
    "kubelet_runtime_operations_duration_seconds",
    "How long Docker took for what it was asked to do",
    ["operation_type"],
    buckets=tuple(0.005 * 2.5**step for step in range(14)),
)
REQUESTS = Counter("rest_client_requests_total", "Requests to the master", ["code", "host", "method"])


def operation(name: str) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Count and time the calls of a method of the Docker client under kubelet's name for the operation."""

    def decorate(method: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @functools.wraps(method)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            began = time.monotonic()
            OPERATIONS.labels(name).inc()
            try:
                return await method(*args, **kwargs)
            except DriverError:
                OPERATION_ERRORS.labels(name).inc()
                raise
            finally:
                OPERATION_SECONDS.labels(name).observe(time.monotonic() - began)

        return call

    return decorate


class SyncTimer:
    """Times the passes of one worker, and the start of its pod: `create` is the first pass, `update` one after a newer
    wish, `sync` another, and `terminated` one of a pod that goes.
    """

    def __init__(self, work: Work, going: Callable[[], bool]) -> None:
        self._work = work
        self._going = going
        self._began = time.monotonic()
        self.next = "create"

    def told(self, before: str, phase: str) -> None:
        """The pod is in another phase than before."""
        if phase == "Running" != before:
            POD_START_DURATION.observe(time.monotonic() - self._began)

    async def one(self) -> None:
        """One pass."""
        kind, self.next = "terminated" if self._going() else self.next, "sync"
        with SYNC_DURATION.labels(kind).time():
            await self._work()


def count_request(method: str, host: str, code: int) -> None:
    """The master has answered a request; 0: it has not."""
    REQUESTS.labels(str(code) if code else "<error>", host, method).inc()
