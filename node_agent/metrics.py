"""Metrics of the agent's own work, under kubelet's metric names. Driver."""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from prometheus_client import Counter, Histogram, disable_created_metrics

from reconcile.errors import DriverError

disable_created_metrics()  # type: ignore[no-untyped-call]

C = TypeVar("C", bound=type)
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

OPERATION_NAMES = {
    "version": "version",
    "cgroup_driver": "status",
    "root_dir": "status",
    "pod_containers": "container_status",
    "inspect": "container_status",
    "pods": "list_containers",
    "all_containers": "list_containers",
    "sandboxes": "list_podsandbox",
    "stored_images": "list_images",
    "image_sizes": "list_images",
    "image_id": "image_status",
    "pull": "pull_image",
    "remove_image": "remove_image",
    "create": "create_container",
    "start": "start_container",
    "signal": "stop_container",
    "remove": "remove_container",
    "discard": "remove_container",
    "execute": "exec_sync",
    "start_exec": "exec",
    "attach": "attach",
}
"""Method → what a kubelet calls such an operation."""


def instrumented(docker: C) -> C:
    """The class, with these of its methods counted and timed."""
    for method, operation in OPERATION_NAMES.items():
        if method in vars(docker):
            setattr(docker, method, _instrumented(vars(docker)[method], operation))
    return docker


def _instrumented(method: Callable[..., Awaitable[Any]], operation: str) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        began = time.monotonic()
        OPERATIONS.labels(operation).inc()
        try:
            return await method(*args, **kwargs)
        except DriverError:
            OPERATION_ERRORS.labels(operation).inc()
            raise
        finally:
            OPERATION_SECONDS.labels(operation).observe(time.monotonic() - began)

    return call


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
