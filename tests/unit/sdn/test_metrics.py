"""Series of the sdn daemon: none stays behind a pod, and no other metric has a label for objects."""

from __future__ import annotations

from prometheus_client import generate_latest
from prometheus_client.metrics import MetricWrapperBase

from sdn import metrics

FEW = {"change", "reason", "result", "state", "step", "verb", "what"}
"""Labels with few values, whatever there is in the cluster."""


def drop_series() -> list[str]:
    lines = generate_latest().decode().splitlines()
    return [line for line in lines if line.startswith("podlane_sdn_dropped_packets{")]


def test_drops_of_deleted_pods_have_no_series() -> None:
    metrics.set_dropped_packets([("spoofed", "pod red/web", 3), ("no_pod", "node", 1)])
    assert drop_series() == [
        'podlane_sdn_dropped_packets{owner="pod red/web",reason="spoofed"} 3.0',
        'podlane_sdn_dropped_packets{owner="node",reason="no_pod"} 1.0',
    ]
    for number in range(10_000):
        metrics.set_dropped_packets([("spoofed", f"pod red/p{number}", 3), ("no_pod", "node", 1)])
    assert len(drop_series()) == 2
    metrics.set_dropped_packets([("no_pod", "node", 1)])
    assert drop_series() == ['podlane_sdn_dropped_packets{owner="node",reason="no_pod"} 1.0']


def test_no_other_metric_has_a_label_for_objects() -> None:
    found = {name: metric for name, metric in vars(metrics).items() if isinstance(metric, MetricWrapperBase)}
    assert found["DROPPED"]._labelnames == ("reason", "owner")
    for name, metric in found.items():
        assert name == "DROPPED" or set(metric._labelnames) <= FEW, name
