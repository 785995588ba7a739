"""Prometheus metrics of the daemon, and the count of drift."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from prometheus_client import Counter, Gauge, Histogram

from sdn.topology import NodeNetwork

T = TypeVar("T")

log = logging.getLogger(__name__)

ATTACH_SECONDS = Histogram(
    "podlane_sdn_attach_duration_seconds",
    "Time from the request on the socket until packets flow",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
STEP_SECONDS = Histogram(
    "podlane_sdn_pass_step_duration_seconds",
    "Steps of a pass: observe, host, detach, links, ports, flows",
    ["step"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)
ATTACH_ERRORS = Counter("podlane_sdn_attach_errors_total", "Requests to the CNI socket that failed", ["verb"])
PODS = Gauge("podlane_sdn_pods", "Pods that are attached and have flows")
PEERS = Gauge("podlane_sdn_peers", "Peers of the tunnel")
LOST_PEERS = Gauge("podlane_sdn_lost_peers", "Peers that do not answer through the tunnel, of those that are probed")
FLOWS = Gauge("podlane_sdn_flows", "Flows on br0, without those of services")
FLOW_CHANGES = Counter("podlane_sdn_flow_changes_total", "Flows added and removed", ["change"])
DROPPED = Gauge(
    "podlane_sdn_dropped_packets",
    "Packets dropped, by reason and owner as listed in docs/pipeline.md; updated at each resync",
    ["reason", "owner"],
)
ADDRESSES = Gauge("podlane_sdn_addresses", "Pod addresses of this node, used and free", ["state"])
DNS_QUERIES = Counter(
    "podlane_sdn_dns_queries_total",
    "DNS queries that the node answered itself (answered) and that it forwarded to other servers (forwarded)",
    ["result"],
)
NAMES = Counter(
    "podlane_sdn_names_total",
    "Former name of podlane_sdn_dns_queries_total, until the next release: queries received (asked) and forwarded",
    ["what"],
)
DRIFT = Counter("podlane_sdn_drift_total", "Changes by other programs that were reverted", ["what"])
SERVICES = Gauge("podlane_sdn_services", "Services with a port that this node serves")
ENDPOINTS = Gauge("podlane_sdn_endpoints", "Endpoints of all service ports of this node")
PROGRAMMING_SECONDS = Histogram(
    "podlane_sdn_service_programming_duration_seconds",
    "Time from the trigger of a change (endpoints.kubernetes.io/last-change-trigger-time) until it is programmed",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)


class Drift:
    """Counts changes by other programs that were reverted."""

    def __init__(self) -> None:
        self.count = 0

    def record(self, what: str, detail: str = "") -> None:
        """Count a reverted change. `what` names the kind of object and is one of few words, a metric label."""
        self.count += 1
        DRIFT.labels(what).inc()
        log.warning("drift: reverted a change by another program", extra={"what": f"{what} {detail}".strip()})


def set_pod_counts(network: NodeNetwork) -> None:
    """Set the gauges of pods, pod addresses and peers."""
    used = len({pod.address for pod in network.pods})
    PODS.set(len(network.pods))
    ADDRESSES.labels("used").set(used)
    ADDRESSES.labels("free").set(int(network.node.last_pod) - int(network.node.first_pod) + 1 - used)
    PEERS.set(len(network.peers))


def set_dropped_packets(counters: Iterable[tuple[str, str, int]]) -> None:
    """Set the counts of dropped packets, each with its reason and owner. Those of pods that are gone disappear."""
    DROPPED.clear()
    for reason, owner, packets in counters:
        DROPPED.labels(reason, owner).set(packets)


async def timed(step: str, work: Awaitable[T]) -> T:
    """Await `work` and observe its time as a step of the pass."""
    with STEP_SECONDS.labels(step).time():
        return await work
