"""The figures that the daemon shows on /metrics."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

ATTACH_SECONDS = Histogram(
    "podlane_sdn_attach_duration_seconds",
    "From the request on the socket to packets flowing",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
STEP_SECONDS = Histogram(
    "podlane_sdn_pass_step_duration_seconds",
    "Parts of a pass: look, verify, leave, links, ports, flows",
    ["step"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)
ATTACH_ERRORS = Counter("podlane_sdn_attach_errors_total", "Requests that were answered with an error", ["verb"])
PODS = Gauge("podlane_sdn_pods", "Sandboxes that are attached and have their flows")
PEERS = Gauge("podlane_sdn_peers", "Nodes to which there is a tunnel")
FLOWS = Gauge("podlane_sdn_flows", "Flows that the bridge holds")
FLOW_CHANGES = Counter("podlane_sdn_flow_changes_total", "Flows written or deleted", ["change"])
DROPPED = Gauge(
    "podlane_sdn_dropped_packets", "Packets dropped, by reason and by whose rows dropped them", ["reason", "owner"]
)
ADDRESSES = Gauge("podlane_sdn_addresses", "Addresses that pods of this node have or may get", ["state"])
NAMES = Counter("podlane_sdn_names_total", "Questions for names that came, and those passed on to others", ["what"])
DRIFT = Counter("podlane_sdn_drift_total", "What somebody else had changed and was put right", ["what"])
SERVICES = Gauge("podlane_sdn_services", "Services of which this node serves a port")
ENDPOINTS = Gauge("podlane_sdn_endpoints", "Endpoints of all ports that this node serves")
PROGRAMMING_SECONDS = Histogram(
    "podlane_sdn_service_programming_duration_seconds",
    "From what changed an endpoint (annotation endpoints.kubernetes.io/last-change-trigger-time) to this node's rows",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
