"""Metrics of the cluster and of the master as a whole: conditions of nodes, ends of certificates, version. Pure."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from api.core.node import Node
from reconcile.exposition import MetricFamily, format_labels, gauge

MAX_CONDITIONS = 16
"""Conditions of a node that have series. A node writes its conditions itself."""

_CONDITION_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,62}")
_STATUSES = {"true": "True", "false": "False", "unknown": "Unknown"}


def node_metrics(nodes: Iterable[Node]) -> Iterator[MetricFamily]:
    """Yield metrics of nodes, under the names of kube-state-metrics."""
    nodes = list(nodes)
    yield gauge(
        "kube_node_status_condition",
        "The condition of a node: 1 for its status, 0 for the others.",
        {
            format_labels(node=node.metadata.name, condition=condition.type, status=label): int(
                condition.status == status
            )
            for node in nodes
            for condition in islice(node.status.conditions, MAX_CONDITIONS)
            if _CONDITION_TYPE.fullmatch(condition.type)
            for label, status in _STATUSES.items()
        },
    )
    yield gauge(
        "kube_node_spec_unschedulable",
        "Whether a node gets no new pods.",
        {format_labels(node=node.metadata.name): int(node.spec.unschedulable) for node in nodes},
    )


def certificate_metrics(ends: Mapping[str, datetime.datetime]) -> MetricFamily:
    """Return the ends of the master's certificates, by name."""
    return gauge(
        "podlane_certificate_expiration_timestamp_seconds",
        "When a certificate of the master ends, in seconds since 1970.",
        {format_labels(certificate=name): end.timestamp() for name, end in ends.items()},
    )


def version_metrics(version: Mapping[str, str], release: str) -> Iterator[MetricFamily]:
    """Yield the served version of Kubernetes and the release of Podlane."""
    labels = {"major": "major", "minor": "minor", "gitVersion": "git_version", "platform": "platform"}
    yield gauge(
        "kubernetes_build_info",
        "The version of Kubernetes whose API is served.",
        {format_labels(**{label: version[key] for key, label in labels.items()}): 1},
    )
    yield gauge("podlane_build_info", "The release of Podlane.", {format_labels(version=release): 1})
