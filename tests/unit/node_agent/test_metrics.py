"""Series of the node agent: none stays behind a pod, and no metric of its own work has a label for objects."""

from __future__ import annotations

import datetime

from prometheus_client import generate_latest
from prometheus_client.metrics import MetricWrapperBase

from node_agent import metrics
from node_agent.runtime.container import POD_UID, RuntimeContainer
from node_agent.stats.metrics import ProbeMetrics
from reconcile.exposition import format_families

FEW = {"code", "host", "method", "operation_type"}
"""Labels with few values, whatever there is in the cluster. `host` is that of the API server."""


def test_probes_of_10000_deleted_pods_leave_no_series() -> None:
    probes = ProbeMetrics()
    for number in range(10_000):
        container = RuntimeContainer(id="c", labels={POD_UID: f"uid-{number}"})
        probes.record(container, "Liveness", True, 0.1)
        if number == 0:
            assert 'result="successful"' in format_families(probes.families())
        probes.remove_pod(f"uid-{number}")
    assert format_families(probes.families()) == ""
    assert not vars(probes)["_counts"]


def test_no_metric_of_its_own_work_has_a_label_for_objects() -> None:
    found = {name: metric for name, metric in vars(metrics).items() if isinstance(metric, MetricWrapperBase)}
    assert "OPERATIONS" in found
    for name, metric in found.items():
        assert set(metric._labelnames) <= FEW, name


def test_time_until_a_certificate_ends() -> None:
    name = "kubelet_certificate_manager_client_ttl_seconds"

    def value() -> float:
        lines = generate_latest().decode().splitlines()
        return next(float(line.split(" ")[1]) for line in lines if line.startswith(f"{name} "))

    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)
    metrics.set_certificate_end(metrics.CLIENT_CERTIFICATE_TTL, end)
    assert 86400 < value() < 2 * 86400
    metrics.set_certificate_end(metrics.CLIENT_CERTIFICATE_TTL, end - datetime.timedelta(days=3))
    assert value() < 0
