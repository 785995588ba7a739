"""Resource limits: QoS classes, and the cgroup limits of containers, pods and all pods together.

The tests use the cgroup version and driver of the machine; tests/vm runs them on machines with other ones.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import psutil
import pytest

from lab.process import LabError
from node_agent.cgroups import hierarchy
from node_agent.cgroups.cgroupfs import MOUNT, CgroupfsDriver
from node_agent.cgroups.hierarchy import CgroupPath
from node_agent.node.host_facts import min_oom_score
from tests.testbed.node.single_node import NODE, SingleNode
from tests.testbed.wait import DEADLINE_SECONDS, wait_until

SLEEP = "[tail, -f, /dev/null]"
MEGABYTE = 1 << 20
PIDS = 60

PODS = {
    "guaranteed": "[{name: main, resources: {limits: {cpu: 500m, memory: 64Mi}}}]",
    "burstable": "[{name: main, resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 250m, memory: 64Mi}}},"
    " {name: side, resources: {requests: {cpu: 200m}}}]",
    "limited": "[{name: main, resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 250m, memory: 64Mi}}},"
    " {name: side, resources: {limits: {cpu: 20m, memory: 16Mi}}}]",
    "besteffort": "[{name: main}]",
    "bomb": "[{name: main}, {name: side}]",
    "tiny": "[{name: main, resources: {requests: {cpu: 1m}, limits: {cpu: 1m}}}]",
    "critical": "[{name: main}]",
    "first": "[{name: main, resources: {requests: {cpu: 100m, memory: 16Mi}, limits: {cpu: 100m, memory: 16Mi}}}]",
}
INIT = {
    "first": "[{name: step, resources: {requests: {cpu: 400m, memory: 48Mi}, limits: {cpu: 400m, memory: 48Mi}}},"
    " {name: helper, restartPolicy: Always,"
    " resources: {requests: {cpu: 50m, memory: 8Mi}, limits: {cpu: 50m, memory: 8Mi}}}]"
}
PRIORITY = {"critical": "priorityClassName: system-node-critical\n  priority: 2000001000"}
CLASSES = {
    "guaranteed": "Guaranteed",
    "burstable": "Burstable",
    "limited": "Burstable",
    "besteffort": "BestEffort",
    "bomb": "BestEffort",
    "tiny": "Burstable",
    "critical": "BestEffort",
    "first": "Guaranteed",
}
BURSTABLE_MILLI = 300 + 120 + 1


@dataclass(frozen=True)
class Kernel:
    """The limits of a cgroup in the kernel; 0 is no limit. `quota` is in µs per 100 ms."""

    weight: int
    quota: int
    memory: int


class Node:
    """A node with pods of every class, and the limits of their cgroups in the kernel."""

    def __init__(self, single: SingleNode, client: Any) -> None:
        self.single = single
        self._client = client
        self.driver = client.info()["CgroupDriver"]
        self.version = CgroupfsDriver().version
        self.root = f"/{single.root.name}"
        actual = json.loads(single.kubectl("get", "pods", "-o", "json"))["items"]
        self.pods: dict[str, dict[str, Any]] = {pod["metadata"]["name"]: pod for pod in actual}

    def docker_name(self, pod: str, container: str) -> str:
        return f"k8s_{container}_{pod}_default_{self.pods[pod]['metadata']['uid']}_0"

    def inspect(self, pod: str, container: str = "main") -> dict[str, Any]:
        """Return the configuration that Docker has for a container."""
        actual: dict[str, Any] = self._client.inspect_container(self.docker_name(pod, container))
        return actual

    def directory(self, group: CgroupPath) -> str:
        return hierarchy.slice_path(group) if self.driver == "systemd" else hierarchy.cgroupfs_path(group)

    def group(self, pod: str) -> CgroupPath:
        meta = self.pods[pod]["metadata"]
        middle = hierarchy.QOS_PARENTS.get(CLASSES[pod], ())
        return hierarchy.pods_cgroup(self.root).child(*middle, f"pod{meta['uid']}")

    def of_container(self, pod: str, container: str = "main") -> str:
        """Return the cgroup of the container's first process, for every hierarchy that limits it."""
        pid = self.inspect(pod, container)["State"]["Pid"]
        rows = (line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
        kinds = {"cpu", "memory", "pids"} if self.version == 1 else {""}
        (path,) = {path for _, controllers, path in rows if kinds & set(controllers.split(","))}
        return path

    def value(self, directory: str, controller: str, file: str) -> str:
        top = MOUNT / controller if self.version == 1 else MOUNT
        return (top / directory.lstrip("/") / file).read_text().strip()

    def kernel(self, directory: str) -> Kernel:
        if self.version == 2:
            quota = self.value(directory, "", "cpu.max").split()[0].replace("max", "0")
            memory = self.value(directory, "", "memory.max").replace("max", "0")
            return Kernel(int(self.value(directory, "", "cpu.weight")), int(quota), int(memory))
        shares, quota, memory = (
            self.value(directory, controller, file)
            for controller, file in (
                ("cpu", "cpu.shares"),
                ("cpu", "cpu.cfs_quota_us"),
                ("memory", "memory.limit_in_bytes"),
            )
        )
        endless = int(memory) > 1 << 60
        return Kernel(int(shares), max(int(quota), 0), 0 if endless else int(memory))

    def wanted(self, shares: int, quota: int, memory: int) -> Kernel:
        return Kernel(shares if self.version == 1 else hierarchy.cpu_weight(shares), quota, memory)

    def exists(self, directory: str) -> bool:
        return CgroupfsDriver().has_directory(directory)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with SingleNode() as single:
        single.agent(f"--pod-pids-limit={PIDS}")
        wait_until(lambda: single.node_condition("Ready") == "True", "the node")
        single.kubectl("apply", "-f", "-", stdin="".join(manifest(name) for name in PODS))
        single.kubectl("wait", "--for=condition=Ready", "pods", "--all", f"--timeout={DEADLINE_SECONDS:.0f}s")
        with contextlib.closing(docker.APIClient(f"unix://{single.root}/docker/docker.sock", version="1.41")) as client:
            yield Node(single, client)


def manifest(name: str) -> str:
    """Return a pod whose containers wait, except the init container `step`."""
    more = "image: podlane/toolbox, imagePullPolicy: Never, "
    containers = PODS[name].replace("{name", f"{{{more}command: {SLEEP}, name")
    init = INIT.get(name, "[]").replace("{name: step", f"{{{more}command: ['true'], name: step")
    init = init.replace("{name: helper", f"{{{more}command: {SLEEP}, name: helper")
    return f"""\
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec:
  nodeName: {NODE}
  terminationGracePeriodSeconds: 0
  {PRIORITY.get(name, "priority: 0")}
  initContainers: {init}
  containers: {containers}
"""


@pytest.mark.parametrize(("name", "kind"), CLASSES.items())
def test_qos_class_follows_from_a_pods_resources(node: Node, name: str, kind: str) -> None:
    assert node.pods[name]["status"]["qosClass"] == kind


@pytest.mark.parametrize("name", ["guaranteed", "burstable", "besteffort"])
def test_container_cgroup_is_in_its_pods_cgroup_and_qos_cgroup(node: Node, name: str) -> None:
    middle = {"guaranteed": "", "burstable": "burstable", "besteffort": "besteffort"}[name]
    uid, identity = node.pods[name]["metadata"]["uid"], node.inspect(name)["Id"]
    names = [node.root.strip("/"), "kubepods", *([middle] if middle else []), f"pod{uid}"]
    if node.driver == "systemd":
        parts = [name.replace("-", "_") for name in names]
        chain = "".join(f"/{'-'.join(parts[: depth + 1])}.slice" for depth in range(len(parts)))
        wanted = f"{chain}/docker-{identity}.scope"
    else:
        wanted = f"/{'/'.join(names)}/{identity}"
    assert node.of_container(name) == wanted


def test_container_cgroup_has_shares_quota_and_memory_of_its_resources(node: Node) -> None:
    main, side = node.inspect("burstable")["HostConfig"], node.inspect("burstable", "side")["HostConfig"]
    keys = ("CpuShares", "CpuPeriod", "CpuQuota", "Memory", "MemorySwap")
    assert [main[key] for key in keys] == [102, 100_000, 25_000, 64 * MEGABYTE, 64 * MEGABYTE]
    assert [side[key] for key in keys] == [204, 0, 0, 0, 0]
    assert node.kernel(node.of_container("burstable")) == node.wanted(102, 25_000, 64 * MEGABYTE)
    assert node.kernel(node.of_container("burstable", "side")) == node.wanted(204, 0, 0)


def test_missing_request_defaults_to_the_limit(node: Node) -> None:
    assert node.inspect("guaranteed")["HostConfig"]["CpuShares"] == 512
    resources = node.pods["guaranteed"]["spec"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"] == {"cpu": "500m", "memory": "64Mi"}


def test_small_or_missing_cpu_request_gets_the_kernels_minimum(node: Node) -> None:
    for name in ("besteffort", "tiny"):
        assert node.inspect(name)["HostConfig"]["CpuShares"] == 2
        assert node.kernel(node.of_container(name)).weight == node.wanted(2, 0, 0).weight
    assert node.kernel(node.of_container("tiny")).quota == 1_000


def test_pod_cgroup_has_summed_requests_and_limits_when_every_container_has_one(node: Node) -> None:
    kernel = {name: node.kernel(node.directory(node.group(name))) for name in PODS}
    assert kernel["guaranteed"] == node.wanted(512, 50_000, 64 * MEGABYTE)
    assert kernel["burstable"] == node.wanted(307, 0, 0)
    assert kernel["limited"] == node.wanted(122, 27_000, 80 * MEGABYTE)
    assert kernel["besteffort"] == node.wanted(2, 0, 0)


def test_pod_cgroup_covers_its_most_demanding_init_container(node: Node) -> None:
    """The 400m and 48Mi of the step exceed the sum of the sidecar and the container."""
    assert node.kernel(node.directory(node.group("first"))) == node.wanted(409, 40_000, 48 * MEGABYTE)


def test_oom_score_is_higher_for_smaller_requests(node: Node) -> None:
    """No score is below the lowest that this machine permits, which may be the agent's own."""
    least, memory = min_oom_score(), psutil.virtual_memory().total
    requested = 1000 - 1000 * 32 * MEGABYTE // memory
    scores = {
        ("guaranteed", "main"): max(-997, least),
        ("guaranteed", "POD"): max(-998, least),
        ("burstable", "main"): max(min(max(requested, 3), 999), least),
        ("burstable", "side"): 999,
        ("besteffort", "main"): 1000,
    }
    for (name, container), score in scores.items():
        actual = node.inspect(name, container)
        assert actual["HostConfig"]["OomScoreAdj"] == score
        assert int(Path(f"/proc/{actual['State']['Pid']}/oom_score_adj").read_text()) == score


def test_node_critical_pod_has_a_low_oom_score(node: Node) -> None:
    assert node.inspect("critical")["HostConfig"]["OomScoreAdj"] == max(-997, min_oom_score())


def test_kubepods_and_qos_cgroups_have_their_shares(node: Node) -> None:
    top = hierarchy.pods_cgroup(node.root)
    everyone, burstable, best_effort = (
        node.directory(top.child(*names)) for names in ((), *hierarchy.QOS_PARENTS.values())
    )
    memory = psutil.virtual_memory().total
    cpus = psutil.cpu_count() or 1
    assert node.kernel(everyone) == node.wanted(1024 * cpus, 0, memory)
    assert node.kernel(best_effort) == node.wanted(2, 0, 0)
    shares = BURSTABLE_MILLI * 1024 // 1000
    wait_until(lambda: node.kernel(burstable) == node.wanted(shares, 0, 0), "burstable pods have their share")


def test_pod_has_at_most_pod_pids_limit_processes(node: Node) -> None:
    directory = node.directory(node.group("besteffort"))
    assert node.value(directory, "pids", "pids.max") == str(PIDS)
    flood = f"for i in $(seq {2 * PIDS}); do sleep 60 & done"
    name = node.docker_name("besteffort", "main")
    output = node.single.docker("exec", name, "sh", "-c", f"({flood}) 2>&1 || true; killall sleep")
    assert "can't fork" in output
    assert "Resource temporarily unavailable" in output


def test_fork_bomb_ends_at_the_limit_of_its_pod_and_disturbs_no_other_pod(node: Node) -> None:
    """Another container of the same pod is at the limit, too. A container outside of pods has no limit."""
    bomb = f"for i in $(seq {2 * PIDS}); do tail -f /dev/null & done"
    forks = ("sh", "-c", "(true; echo fine) | cat")
    group = node.directory(node.group("bomb"))
    main, side, other = (node.docker_name(*pod) for pod in (("bomb", "main"), ("bomb", "side"), ("guaranteed", "main")))
    single = node.single
    assert single.docker("exec", side, *forks).strip() == "fine"
    flags = ("-d", "--network=none", "--name=free", "--entrypoint=")
    single.docker("run", *flags, "podlane/toolbox", "sh", "-c", f"{bomb}; wait")
    try:
        wait_until(lambda: len(single.docker("top", "free", "-o", "pid").split()) > 2 * PIDS, "nothing stops this one")
        single.docker("exec", "-d", main, "sh", "-c", f"{bomb}; wait")
        # The shell ends when it cannot fork, and what it has started stays.
        wait_until(lambda: int(node.value(group, "pids", "pids.current")) >= PIDS - 2, "the pod has met its limit")
        assert single.docker("exec", other, *forks).strip() == "fine"
        with pytest.raises(LabError, match="can't fork: Resource temporarily unavailable"):
            single.docker("exec", side, *forks)
    finally:
        single.docker("rm", "-f", "free")
        single.kubectl("delete", "pod", "bomb", f"--timeout={DEADLINE_SECONDS:.0f}s")


def test_allocatable_is_capacity_without_reserved_and_eviction_threshold(node: Node) -> None:
    status = json.loads(node.single.kubectl("get", "node", NODE, "-o", "json"))["status"]
    capacity, allocatable = status["capacity"], status["allocatable"]
    assert capacity["memory"] == f"{psutil.virtual_memory().total // 1024}Ki"
    assert int(allocatable["memory"][:-2]) == int(capacity["memory"][:-2]) - 100 * 1024
    assert allocatable["cpu"] == capacity["cpu"] == str(psutil.cpu_count())
    disk = int(capacity["ephemeral-storage"][:-2]) * 1024
    assert int(allocatable["ephemeral-storage"]) == disk - int(disk * 0.1)


def test_pod_cgroup_is_removed_with_its_pod_and_orphaned_ones_too(node: Node) -> None:
    directory, share = (
        node.directory(node.group("limited")),
        node.directory(hierarchy.pods_cgroup(node.root).child("burstable")),
    )
    before = node.kernel(share)
    stranger = CgroupPath((*hierarchy.pods_cgroup(node.root).child("burstable").names, "pod0123-4567"))
    CgroupfsDriver().create(stranger, hierarchy.CgroupLimits())
    assert node.exists(directory)
    assert node.exists(hierarchy.cgroupfs_path(stranger))
    node.single.kubectl("delete", "pod", "limited", f"--timeout={DEADLINE_SECONDS:.0f}s")
    wait_until(lambda: not node.exists(directory), "the group of the pod is gone")
    with node.single.without_agent():  # Orphans are searched once a minute, and when an agent starts.
        pass
    wait_until(lambda: not node.exists(hierarchy.cgroupfs_path(stranger)), "the group of no pod is gone")
    wait_until(lambda: node.kernel(share).weight < before.weight, "others of its class have the smaller share")
    assert node.exists(node.directory(node.group("burstable")))


def test_restarted_agent_keeps_cgroups_of_running_pods(node: Node) -> None:
    directory = node.directory(node.group("guaranteed"))
    before = node.kernel(directory), node.inspect("guaranteed")["State"]["Pid"]
    with node.single.without_agent():
        pass
    wait_until(lambda: node.single.node_condition("Ready") == "True", "the node")
    wait_until(lambda: node.single.is_ready("guaranteed"), "the pod")
    assert (node.kernel(directory), node.inspect("guaranteed")["State"]["Pid"]) == before
