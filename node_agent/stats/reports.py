"""The documents that a kubelet gives of what its node, pods and containers use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import generate_latest

from api.objects import Pod
from node_agent.observed import PodContainers


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod that is here, with its containers as they were last seen."""

    pod: Pod
    seen: PodContainers


class Reports:
    """Each document is made when it is asked for; nothing is measured while nobody asks."""

    def __init__(self, node_name: str, pods: Callable[[], Iterable[KnownPod]]) -> None:
        self._node_name = node_name
        self._pods = pods

    async def summary(self, cpu_and_memory_only: bool = False) -> bytes:
        """GET /stats/summary[?only_cpu_and_memory=true]: JSON."""
        return b'{"node":{},"pods":[]}'

    async def resource(self) -> bytes:
        """GET /metrics/resource: Prometheus text."""
        return b""

    async def cadvisor(self) -> bytes:
        """GET /metrics/cadvisor: Prometheus text."""
        return b""

    async def probes(self) -> bytes:
        """GET /metrics/probes: Prometheus text."""
        return b""

    async def metrics(self) -> bytes:
        """GET /metrics: Prometheus text."""
        return generate_latest()
