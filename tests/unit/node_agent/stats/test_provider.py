"""Stats documents on request, over a tree of cgroup files."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from api.core.pod import Pod
from node_agent.cgroups.hierarchy import CgroupPath
from node_agent.host import HostInfo, pod_dir
from node_agent.runtime.container import group_containers
from node_agent.stats import disk, provider
from node_agent.stats.collector import CgroupReader, StatsCollector
from node_agent.stats.disk import DiskUsageScanner
from node_agent.stats.metrics import ProbeMetrics
from node_agent.stats.model import PodWithContainers
from node_agent.stats.provider import StatsProvider
from tests.testbed.docker.fake import FakeDocker
from tests.unit.node_agent.examples import NOW, UID, make_container, make_pod, make_sandbox

POD = make_pod(
    spec="\n  volumes: [{name: scratch, emptyDir: {}}, {name: data, persistentVolumeClaim: {claimName: c}}]\n"
)
BOX = replace(make_sandbox(), pid=70)
MAIN = replace(make_container(POD), pid=71, started_at=NOW)
ABOVE = f"/kubepods/besteffort/pod{UID}"


@dataclass
class Tree:
    """Files of cgroup version 2 and of /proc."""

    root: Path

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def use(self, group: str, microseconds: int) -> None:
        self.write(f"cgroup{group}/cpu.stat", f"usage_usec {microseconds}\n")
        self.write(f"cgroup{group}/memory.current", "5000\n")
        self.write(f"cgroup{group}/memory.stat", "inactive_file 1000\n")

    def process(self, pid: int, group: str) -> None:
        self.write(f"proc/{pid}/cgroup", f"0::{group}\n")
        self.write(f"proc/{pid}/net/dev", "head\nhead\n eth0: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.write("cgroup/cgroup.controllers", "cpu memory\n")
    tree.write("proc/stat", "cpu 100 0 100 0 0 0 0 0\nbtime 5\n")
    for pid, name in ((70, f"{ABOVE}/{BOX.id}"), (71, f"{ABOVE}/{MAIN.id}")):
        tree.process(pid, name)
        tree.use(name, 1_000_000)
    tree.use(ABOVE, 2_000_000)
    tree.use("/kubepods", 3_000_000)
    return tree


class StatsHost:
    """A stats provider and its inputs."""

    def __init__(self, tree: Tree) -> None:
        self.docker = FakeDocker()
        self.host = HostInfo(str(tree.root / "pods"), 1 << 30, -1000)
        self.disks = DiskUsageScanner(self.docker, self.host)
        self.pods = [PodWithContainers(POD, group_containers([BOX, MAIN]))]
        self.claims: dict[str, str] = {}
        self.reports = StatsProvider(
            "node-1",
            str(tree.root),
            self.docker,
            StatsCollector(
                CgroupPath(("kubepods",)), CgroupReader(tree.root / "cgroup", tree.root / "proc"), tree.root / "proc"
            ),
            self.disks,
            ProbeMetrics(),
            lambda: self.pods,
            self._claims,
            asyncio.ensure_future,
        )

    def _claims(self, _: Pod) -> dict[str, str]:
        return self.claims

    async def summary(self, only: bool = False) -> Any:
        return json.loads(await self.reports.summary(only))


@pytest.fixture
def stats_host(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> StatsHost:
    monkeypatch.setattr(provider, "MIN_SAMPLE_AGE_SECONDS", 0.0)
    return StatsHost(tree)


async def test_first_stats_request_includes_a_rate(stats_host: StatsHost) -> None:
    document = await stats_host.summary(only=True)
    [pod_document] = document["pods"]
    assert pod_document["cpu"]["usageCoreNanoSeconds"] == 2_000_000_000
    assert pod_document["cpu"]["usageNanoCores"] == 0, "nothing was used between two looks"
    assert pod_document["containers"][0]["memory"]["workingSetBytes"] == 4000
    assert stats_host.docker.calls == 0


async def test_cpu_rate_is_computed_from_the_previous_sample(stats_host: StatsHost, tree: Tree) -> None:
    await stats_host.summary(only=True)
    tree.use(f"{ABOVE}/{MAIN.id}", 9_000_000)
    [pod_document] = (await stats_host.summary(only=True))["pods"]
    [main] = pod_document["containers"]
    assert main["cpu"]["usageNanoCores"] > 10**9
    assert pod_document["cpu"]["usageNanoCores"] == 0


async def test_process_with_a_reused_pid_is_not_taken_for_the_container(stats_host: StatsHost, tree: Tree) -> None:
    tree.process(71, f"{ABOVE}/somebody-else")
    tree.use(f"{ABOVE}/somebody-else", 1)
    [pod_document] = (await stats_host.summary(only=True))["pods"]
    assert pod_document["containers"] == []
    stats_host.pods = [PodWithContainers(POD, group_containers([replace(MAIN, pid=0)]))]
    assert (await stats_host.summary(only=True))["pods"] == []


async def test_pod_without_a_cgroup_uses_the_sum_of_its_containers(stats_host: StatsHost, tree: Tree) -> None:
    for pid, container in ((70, BOX), (71, MAIN)):
        tree.process(pid, f"/docker/{container.id}")
        tree.use(f"/docker/{container.id}", 500_000)
    [pod_document] = (await stats_host.summary(only=True))["pods"]
    assert pod_document["cpu"]["usageCoreNanoSeconds"] == 1_000_000_000


async def test_disk_usage_is_scanned_at_intervals(stats_host: StatsHost, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = Path(pod_dir(stats_host.host, UID)) / "volumes" / "kubernetes.io~empty-dir" / "scratch"
    scratch.mkdir(parents=True)
    (scratch / "one").write_bytes(b"x" * 100_000)

    def used_bytes(document: Any) -> int:
        [volume] = [volume for volume in document["pods"][0]["volume"] if volume["name"] == "scratch"]
        return int(volume["usedBytes"])

    first = used_bytes(await stats_host.summary())
    assert first >= 100_000
    (scratch / "two").write_bytes(b"x" * 100_000)
    assert used_bytes(await stats_host.summary()) == first
    monkeypatch.setattr(disk, "MIN_SCAN_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(disk, "SCAN_INTERVAL_FACTOR", 0)
    stats_host.disks._next_scan_at = 0.0
    await stats_host.disks.scan_if_due(stats_host.pods)
    assert used_bytes(await stats_host.summary()) >= first + 100_000
    stats_host.pods = []
    await stats_host.disks.scan_if_due([])
    assert stats_host.disks.last(UID) is None


async def test_claim_volume_stats_are_those_of_its_filesystem(stats_host: StatsHost, tree: Tree) -> None:
    stats_host.claims = {"data": str(tree.root), "gone": str(tree.root / "nowhere")}
    text = (await stats_host.reports.metrics()).decode()
    assert 'kubelet_volume_stats_capacity_bytes{namespace="red",persistentvolumeclaim="c"} ' in text
    [volume] = [volume for volume in (await stats_host.summary())["pods"][0]["volume"] if volume["name"] == "data"]
    assert volume["capacityBytes"] > 0


async def test_every_metrics_endpoint_returns_text(stats_host: StatsHost) -> None:
    assert b"node_cpu_usage_seconds_total 2.0 " in await stats_host.reports.resource()
    assert b'pod="web"' in await stats_host.reports.cadvisor()
    assert b"process_start_time_seconds " in await stats_host.reports.probes()
    assert b'kubelet_node_name{node="node-1"} 1' in await stats_host.reports.metrics()
