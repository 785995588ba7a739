"""The summary and metrics documents of one sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from node_agent.runtime.container import group_containers
from node_agent.stats import cadvisor, metrics
from node_agent.stats.cgroup_stats import CgroupUsage
from node_agent.stats.machine import MachineStats, NetworkInterface
from node_agent.stats.metrics import ProbeMetrics
from node_agent.stats.model import (
    ContainerStats,
    DiskUsage,
    FilesystemStats,
    NodeStats,
    PodDiskUsage,
    PodStats,
    PodWithContainers,
    cpu_times,
    nano_cores,
)
from node_agent.stats.summary import summary_document
from reconcile.exposition import format_families
from tests.unit.node_agent.examples import NOW, UID, make_container, make_pod, make_sandbox

AT = 1_700_000_000.5
VOLUMES = """
  volumes:
  - {name: scratch, emptyDir: {}}
  - {name: quick, emptyDir: {medium: Memory}}
  - {name: data, persistentVolumeClaim: {claimName: mine}}
"""
POD = make_pod(spec=VOLUMES)
MAIN = replace(make_container(POD), started_at=NOW)
DISK = FilesystemStats(available=500, capacity=1000, inodes_free=70, inodes=100, reserved=100)
MEMORY = FilesystemStats(available=40, capacity=50, inodes_free=4, inodes=5)
SEEN = PodStats(
    pod=POD,
    cgroup="/kubepods/podX",
    usage=CgroupUsage(cpu=3_000_000_000, memory=900, working_set=800, tasks=5),
    at=AT,
    containers=(
        ContainerStats(
            MAIN, "/kubepods/podX/m", CgroupUsage(cpu=2_000_000_000, memory=700, working_set=600, memory_limit=1000), AT
        ),
    ),
    sandbox=ContainerStats(make_sandbox(), "/kubepods/podX/s", CgroupUsage(cpu=1_000_000_000), AT),
    interfaces=(NetworkInterface("eth0", 10, 1, 0, 0, 20, 2, 0, 0),),
    disk=PodDiskUsage(
        AT,
        rootfs={MAIN.id: DiskUsage(30, 3)},
        logs={MAIN.id: DiskUsage(4, 1)},
        volumes={"scratch": DiskUsage(5, 2), "quick": DiskUsage(6, 1)},
        memory_filesystems={"quick": MEMORY},
    ),
    claims={"data": DISK},
)
FIGURES = NodeStats(
    AT,
    MachineStats(
        cpu=9_000_000_000,
        total_memory=5000,
        memory=3000,
        working_set=2000,
        boot_time=5,
        interfaces=(NetworkInterface("eth0", 1),),
    ),
    (SEEN,),
    ("/kubepods", CgroupUsage(cpu=4_000_000_000)),
    DISK,
    DISK,
)
RATES = {"": 250_000_000, UID: 30_000_000, MAIN.id: 20_000_000, "/kubepods": 40_000_000}


def values(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Parse metrics as Prometheus does: name → labels → value."""
    values_by_name: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values_by_name.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return values_by_name


def test_summary_has_node_pod_and_container_stats() -> None:
    document = summary_document("node-1", FIGURES, RATES, cpu_and_memory_only=False)
    node, [pod_document] = document["node"], document["pods"]
    assert (node["nodeName"], node["startTime"]) == ("node-1", "1970-01-01T00:00:05Z")
    assert node["cpu"]["usageNanoCores"] == 250_000_000
    assert node["memory"]["availableBytes"] == 3000
    assert node["fs"]["usedBytes"] == node["runtime"]["imageFs"]["usedBytes"] == 400
    assert node["systemContainers"][0]["cpu"]["usageNanoCores"] == 40_000_000
    assert pod_document["podRef"] == {"name": "web", "namespace": "red", "uid": UID}
    assert (pod_document["cpu"]["usageNanoCores"], pod_document["memory"]["workingSetBytes"]) == (30_000_000, 800)
    assert (pod_document["network"]["name"], pod_document["network"]["txBytes"]) == ("eth0", 20)
    [main] = pod_document["containers"]
    assert main["cpu"] == {
        "time": "2023-11-14T22:13:20Z", "usageNanoCores": 20_000_000, "usageCoreNanoSeconds": 2_000_000_000
    }  # fmt: skip
    assert (main["memory"]["availableBytes"], main["startTime"]) == (400, "2026-01-31T12:00:00Z")
    assert (main["rootfs"]["usedBytes"], main["logs"]["inodesUsed"]) == (30, 1)


def test_summary_has_volume_stats_and_ephemeral_storage() -> None:
    [pod_document] = summary_document("node-1", FIGURES, RATES, cpu_and_memory_only=False)["pods"]
    volumes: dict[str, Any] = {volume["name"]: volume for volume in pod_document["volume"]}
    assert set(volumes) == {"scratch", "quick", "data"}
    assert (volumes["scratch"]["usedBytes"], volumes["scratch"]["capacityBytes"]) == (5, 1000)
    assert (volumes["quick"]["usedBytes"], volumes["quick"]["capacityBytes"]) == (6, 50)
    assert volumes["data"]["pvcRef"] == {"name": "mine", "namespace": "red"}
    assert volumes["data"]["usedBytes"] == 400
    assert pod_document["ephemeral-storage"]["usedBytes"] == 30 + 4 + 5, "a volume in memory takes no disk"


def test_brief_summary_has_cpu_and_memory_only() -> None:
    document = summary_document("node-1", FIGURES, RATES, cpu_and_memory_only=True)
    assert set(document["node"]) == {"nodeName", "systemContainers", "startTime", "cpu", "memory"}
    [pod_document] = document["pods"]
    assert set(pod_document) == {"podRef", "startTime", "containers", "cpu", "memory"}
    assert set(pod_document["containers"][0]) == {"name", "startTime", "cpu", "memory"}


def test_summary_of_a_host_network_pod_has_no_network() -> None:
    [pod_document] = summary_document(
        "n", replace(FIGURES, pods=(replace(SEEN, interfaces=None),)), RATES, cpu_and_memory_only=False
    )["pods"]
    assert "network" not in pod_document


def test_resource_metrics_equal_kubelets_format() -> None:
    text = format_families(metrics.resource_families(FIGURES))
    families = values(text)
    labels = (("container", "main"), ("namespace", "red"), ("pod", "web"))
    assert families["container_cpu_usage_seconds_total"] == {labels: 2.0}
    assert families["container_memory_working_set_bytes"] == {labels: 600.0}
    assert families["container_start_time_seconds"] == {labels: NOW.timestamp()}
    assert families["pod_cpu_usage_seconds_total"] == {labels[1:]: 3.0}
    assert families["node_cpu_usage_seconds_total"] == {(): 9.0}
    assert families["resource_scrape_error"] == {(): 0.0}
    assert "node_cpu_usage_seconds_total 9.0 1700000000500\n" in text


def test_cadvisor_metrics_equal_kubelets_format() -> None:
    families = values(format_families(cadvisor.cadvisor_families(FIGURES, 4, {"machine_id": "m"})))
    used = {dict(labels)["id"]: dict(labels) for labels in families["container_cpu_usage_seconds_total"]}
    assert set(used) == {"/", "/kubepods", "/kubepods/podX", "/kubepods/podX/m", "/kubepods/podX/s"}
    main = used["/kubepods/podX/m"]
    assert (main["container"], main["namespace"], main["pod"], main["name"]) == ("main", "red", "web", MAIN.id)
    assert used["/kubepods/podX/s"]["container"] == "POD"
    assert used["/kubepods/podX"]["pod"] == "web"
    sent = {dict(labels)["pod"]: value for labels, value in families["container_network_transmit_bytes_total"].items()}
    assert sent == {"": 0.0, "web": 20.0}
    assert "container_cpu_cfs_throttled_periods_total" not in families, "nothing has a limit of CPU"
    assert list(families["machine_cpu_cores"].values()) == [4.0]
    assert 30.0 in families["container_fs_usage_bytes"].values()


def test_kubelet_metrics_count_pods_and_containers() -> None:
    exited = make_container(POD, state="exited", restarts=1, ended=1)
    pods = [PodWithContainers(POD, group_containers([make_sandbox(), MAIN, exited]))]
    families = values(
        format_families(metrics.kubelet_families("node-1", pods, {(UID, "data"): DISK, (UID, "scratch"): DISK}))
    )
    assert families["kubelet_node_name"] == {(("node", "node-1"),): 1.0}
    assert families["kubelet_running_pods"] == {(): 1.0}
    states = {
        dict(labels)["container_state"]: value for labels, value in families["kubelet_running_containers"].items()
    }
    assert states == {"created": 0, "exited": 1, "running": 1}
    claim = (("namespace", "red"), ("persistentvolumeclaim", "mine"))
    assert families["kubelet_volume_stats_used_bytes"] == {claim: 400.0}
    assert families["kubelet_volume_stats_inodes_free"] == {claim: 70.0}


def test_probe_metrics_are_removed_with_their_pod() -> None:
    counts = ProbeMetrics()
    for success, seconds in ((True, 0.003), (True, 0.2), (False, 20.0), (None, 0.01)):
        counts.record(MAIN, "Liveness", success, seconds)
    families = values(format_families(counts.families()))
    results = {dict(labels)["result"]: value for labels, value in families["prober_probe_total"].items()}
    assert results == {"successful": 2, "failed": 1, "unknown": 1}
    buckets = {dict(labels)["le"]: value for labels, value in families["prober_probe_duration_seconds_bucket"].items()}
    assert (buckets["0.005"], buckets["0.01"], buckets["0.25"], buckets["10"], buckets["+Inf"]) == (1, 2, 3, 3, 4)
    [labels] = families["prober_probe_duration_seconds_sum"]
    assert dict(labels)["probe_type"] == "Liveness"
    assert families["prober_probe_duration_seconds_sum"][labels] == pytest.approx(20.213)
    counts.remove_pod(UID)
    assert format_families(counts.families()) == ""


def test_cpu_rates_are_computed_from_cpu_times() -> None:
    assert cpu_times(FIGURES) == {"": 9 * 10**9, "/kubepods": 4 * 10**9, UID: 3 * 10**9, MAIN.id: 2 * 10**9}
    assert nano_cores(10**9, 2 * 10**9, 4.0) == 250_000_000
    assert nano_cores(5 * 10**9, 10**9, 2.0) == 500_000_000, "a group that was made anew"
    assert nano_cores(1, 2, 0.0) == 0
