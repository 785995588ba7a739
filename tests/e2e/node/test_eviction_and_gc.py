"""Eviction and garbage collection on a node whose thresholds, not its pods, cause the pressure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.process import run
from tests.testbed.node.images import add_image
from tests.testbed.node.single_node import NODE, SingleNode
from tests.testbed.wait import wait_until

SLEEP = "exec tail -f /dev/null"


@pytest.fixture(scope="module")
def host() -> Iterator[SingleNode]:
    with SingleNode() as running:
        running.agent()
        wait_until(lambda: running.node_condition("Ready") == "True", "the node")
        yield running


@pytest.fixture
def node(host: SingleNode) -> Iterator[SingleNode]:
    """Yield the node without pods before and after the test."""
    host.load_images()
    host.agent()
    yield host
    host.agent()
    host.kubectl("delete", "pods", "--all", "--timeout=60s")
    wait_until(lambda: not any(host.traces().values()), "nothing is left of any pod")


ONCE_DONE = "readinessProbe: {exec: {command: [test, -e, /done]}, periodSeconds: 1}"
CRITICAL = "  priorityClassName: system-cluster-critical"


def pod(name: str, command: str = SLEEP, resources: str = "{}", extra: str = "", mount: str = "") -> str:
    return f"""\
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec:
  nodeName: {NODE}
  terminationGracePeriodSeconds: 0
{extra}
  containers:
  - name: main
    image: podlane/toolbox
    imagePullPolicy: Never
    command: [sh, -c, "{command}"]
    resources: {resources}
    {mount}
"""


def start(node: SingleNode, *pods: str) -> None:
    node.kubectl("apply", "-f", "-", stdin="".join(pods))
    names = [text.split("name: ")[1].split(",")[0] for text in pods]
    for name in names:
        wait_until(lambda name=name: node.is_ready(name), f"{name} is ready")  # type: ignore[misc]


def evicted_at(node: SingleNode, pod: str) -> str:
    """Return the time of the eviction; empty before it."""
    status = node.status(pod)
    if status.get("reason") != "Evicted":
        return ""
    assert status["phase"] == "Failed"
    [mark] = [condition for condition in status["conditions"] if condition["type"] == "DisruptionTarget"]
    assert (mark["status"], mark["reason"], mark["message"]) == ("True", "TerminationByKubelet", status["message"])
    return str(mark["lastTransitionTime"])


def node_events(node: SingleNode) -> set[str]:
    """Return the reasons of the node's events."""
    of_node = "involvedObject.kind=Node"
    return set(
        node.kubectl("get", "events", f"--field-selector={of_node}", "-o", "jsonpath={.items[*].reason}").split()
    )


def test_memory_pressure_evicts_pods_over_their_request_first_and_spares_critical_pods(node: SingleNode) -> None:
    start(
        node,
        pod("modest", resources="{requests: {memory: 64Mi}}"),
        pod("hog", f"head -c 40000000 /dev/zero > /dev/shm/x; touch /done; {SLEEP}", mount=ONCE_DONE),
        pod("critical", extra=CRITICAL),
    )
    assert node.node_condition("MemoryPressure") == "False"
    node.agent("--eviction-hard=memory.available<100%")
    wait_until(lambda: evicted_at(node, "modest"), "both went")
    assert evicted_at(node, "hog") < evicted_at(node, "modest")
    message = node.status("hog")["message"]
    assert message.startswith("The node was low on resource: memory. Threshold quantity: ")
    assert "Container main was using" in message
    assert "request is 0, has larger consumption of memory. " in message
    assert node.node_condition("MemoryPressure") == "True"
    for name in ("hog", "modest"):
        wait_until(lambda name=name: not any(node.traces(name).values()), f"nothing is left of {name}")  # type: ignore[misc]
        [status] = node.status(name)["containerStatuses"]
        assert status["state"]["terminated"]["exitCode"] == 137
    assert node.is_ready("critical")
    assert {"EvictionThresholdMet", "NodeHasInsufficientMemory"} <= node_events(node)


def test_node_under_pressure_admits_critical_and_modest_pods_only(node: SingleNode) -> None:
    node.agent("--eviction-soft=memory.available<100%", "--eviction-soft-grace-period=memory.available=1h")
    wait_until(lambda: node.node_condition("MemoryPressure") == "True", "it is short of memory")
    modest = pod("modest", resources="{requests: {memory: 1Mi}}")
    start(node, modest, pod("critical", extra=CRITICAL))
    node.kubectl("apply", "-f", "-", stdin=pod("greedy"))
    wait_until(lambda: node.status("greedy").get("phase") == "Failed", "who promises nothing is refused")
    status = node.status("greedy")
    assert (status["reason"], status["message"]) == (
        "Evicted",
        "Pod was rejected: The node had condition: [MemoryPressure]. ",
    )
    assert node.is_ready("modest")
    periods = "--eviction-soft-grace-period=imagefs.available=1h"
    node.agent("--eviction-soft=imagefs.available<100%", periods)
    wait_until(lambda: node.node_condition("DiskPressure") == "True", "it is short of disk")
    node.kubectl("apply", "-f", "-", stdin=pod("wanted", resources="{requests: {memory: 1Mi}}"))
    wait_until(lambda: node.status("wanted").get("reason") == "Evicted", "nobody is taken any more")
    assert node.status("wanted")["message"] == "Pod was rejected: The node had condition: [DiskPressure]. "
    keys = node.kubectl("get", "node", NODE, "-o", "jsonpath={.spec.taints[*].key}")
    assert "node.kubernetes.io/disk-pressure" in keys
    assert {"NodeHasInsufficientMemory", "NodeHasDiskPressure"} <= node_events(node)


def test_soft_eviction_leaves_a_pod_its_grace_period(node: SingleNode) -> None:
    polite = pod("polite", "trap 'sleep 2; exit 7' TERM; tail -f /dev/null & wait")
    start(node, polite.replace("terminationGracePeriodSeconds: 0", "terminationGracePeriodSeconds: 30"))
    node.agent(
        "--eviction-soft=memory.available<100%",
        "--eviction-soft-grace-period=memory.available=0.5s",
        "--eviction-max-pod-grace-period=20",
    )
    wait_until(lambda: evicted_at(node, "polite"), "it goes")
    wait_until(lambda: not any(node.traces("polite").values()), "nothing is left of it")
    [status] = node.status("polite")["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 7


def test_pid_pressure_evicts_the_pod_with_most_processes_first(node: SingleNode) -> None:
    fork = f"for i in 1 2 3 4 5 6 7 8; do tail -f /dev/null & done; touch /done; {SLEEP}"
    start(node, pod("few"), pod("many", fork, mount=ONCE_DONE))
    node.agent("--eviction-hard=pid.available<100%")
    wait_until(lambda: evicted_at(node, "many"), "it goes")
    wait_until(lambda: evicted_at(node, "few"), "then the other")
    assert evicted_at(node, "many") < evicted_at(node, "few")
    assert node.status("many")["message"].startswith("The node was low on resource: pids. Threshold quantity: ")
    assert node.node_condition("PIDPressure") == "True"


@pytest.fixture
def small_disk(node: SingleNode) -> Iterator[SingleNode]:
    """Mount a filesystem with room for 64 MB and 1000 files at the agent's directory."""
    with node.without_agent():
        run("mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=1000", "tmpfs", str(node.state))
    yield node
    node.agent()
    node.kubectl("delete", "pods", "--all", "--timeout=60s")
    wait_until(lambda: not any(node.traces().values()), "nothing is mounted in it any more")
    with node.without_agent():
        run("umount", str(node.state))


def test_disk_pressure_evicts_the_largest_pod_and_the_condition_persists(
    small_disk: SingleNode,
) -> None:
    node, mount = small_disk, "volumeMounts: [{name: v, mountPath: /v}]"
    volume = "  volumes: [{name: v, emptyDir: {}}]"
    many = f"for i in $(seq 950); do : > /v/$i; done; {SLEEP}"
    node.agent("--eviction-hard=nodefs.inodesFree<20%", "--eviction-pressure-transition-seconds=0")
    start(node, pod("few", extra=volume, mount=mount))
    node.kubectl("apply", "-f", "-", stdin=pod("files", many, extra=volume, mount=mount))
    wait_until(lambda: evicted_at(node, "files"), "who has most files goes")
    assert node.status("files")["message"].startswith("The node was low on resource: inodes. ")
    wait_until(lambda: node.node_condition("DiskPressure") == "False", "all is well again")
    node.agent("--eviction-hard=nodefs.available<50%", "--eviction-pressure-transition-seconds=3600")
    wait_until(lambda: node.node_condition("DiskPressure") == "False", "there is room")
    large = f"head -c 50000000 /dev/zero > /v/x; {SLEEP}"
    node.kubectl("apply", "-f", "-", stdin=pod("bytes", large, extra=volume, mount=mount))
    wait_until(lambda: evicted_at(node, "bytes"), "who takes most goes")
    wait_until(lambda: not any(node.traces("bytes").values()), "its disk is free again")
    assert node.is_ready("few")
    assert node.node_condition("DiskPressure") == "True", "it stays for an hour"


DEFAULT_LIMITS = """\
apiVersion: v1
kind: LimitRange
metadata: {name: default-limits, namespace: default}
spec: {limits: [{type: Container, default: {ephemeral-storage: 2Mi}}]}
"""
"""The default limit of a requested project, but smaller."""


def test_default_limit_of_a_project_counts_volumes_volumes_of_images_and_logs(node: SingleNode) -> None:
    """Docker makes a directory for each VOLUME of an image. It is not in the writable layer and no volume of the pod.

    Logs are rotated by Docker. Those that it keeps count.
    """
    add_image(node, "podlane/volume:1", "VOLUME /kept")
    node.kubectl("apply", "-f", "-", stdin=DEFAULT_LIMITS)
    in_image = pod("image").replace("podlane/toolbox", "podlane/volume:1")
    roomy = in_image.replace("{name: image,", "{name: roomy,").replace(": {}", ": {limits: {ephemeral-storage: 64Mi}}")
    scratch = pod(
        "scratch", extra="  volumes: [{name: v, emptyDir: {}}]", mount="volumeMounts: [{name: v, mountPath: /v}]"
    )
    start(node, in_image, roomy, scratch, pod("logs"), pod("quiet"))
    node.kubectl("delete", "limitrange", "default-limits")
    node.agent("--disk-scan-seconds=0.5")
    fill = "head -c 4000000 /dev/zero"
    log = "| tr '\\0' x | fold > /proc/1/fd/1"
    writes = {"image": "> /kept/x", "roomy": "> /kept/x", "scratch": "> /v/x", "logs": log, "quiet": "> /dev/null"}
    for name, words in writes.items():
        container = node.status(name)["containerStatuses"][0]["containerID"].removeprefix("docker://")
        node.docker("exec", container, "sh", "-c", f"{fill} {words}")
    wait_until(lambda: all(evicted_at(node, name) for name in ("image", "scratch", "logs")), "they went")
    assert node.status("scratch")["message"] == (
        "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "
    )
    wait_until(lambda: len(node.docker("volume", "ls", "-q").split()) == 1, "only the volume of roomy is left")
    assert node.is_ready("roomy")
    assert node.is_ready("quiet")


def test_pods_over_their_ephemeral_storage_limit_are_evicted(node: SingleNode) -> None:
    volume = "  volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]"
    fill = "head -c 4000000 /dev/zero >"
    limit = "{limits: {ephemeral-storage: 2Mi}}"
    second = """\
  - name: side
    image: podlane/toolbox
    imagePullPolicy: Never
    command: [tail, -f, /dev/null]
    resources: {limits: {ephemeral-storage: 1Gi}}
"""
    start(
        node,
        pod("volume", extra=volume, mount="volumeMounts: [{name: v, mountPath: /v}]"),
        pod("layer", resources=limit),
        pod("pair", resources=limit) + second,
        pod("within", resources=limit),
    )
    node.agent("--disk-scan-seconds=0.5")
    for name, path in (("volume", "/v/x"), ("layer", "/tmp/x"), ("pair", "/tmp/x"), ("within", "/dev/null")):
        container = node.status(name)["containerStatuses"][0]["containerID"].removeprefix("docker://")
        node.docker("exec", container, "sh", "-c", f"{fill} {path}")
    wait_until(lambda: all(evicted_at(node, name) for name in ("volume", "layer", "pair")), "they went")
    assert node.status("pair")["message"] == 'Container main exceeded its local ephemeral storage limit "2Mi". '
    assert node.status("volume")["message"] == 'Usage of EmptyDir volume "v" exceeds the limit "1Mi". '
    assert node.status("layer")["message"] == (
        "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "
    )
    wait_until(lambda: not any(node.traces("layer").values()), "its disk is free again")
    assert node.is_ready("within")


def test_disk_pressure_removes_images_before_it_evicts_pods(node: SingleNode) -> None:
    start(node, pod("one"))
    node.import_image("podlane/unused:1")
    node.agent("--eviction-hard=imagefs.available<100%", "--image-minimum-gc-age-seconds=0")
    wait_until(lambda: evicted_at(node, "one"), "the pod went")
    assert "podlane/unused" not in node.docker("images")
    assert node.status("one")["message"].startswith("The node was low on resource: ephemeral-storage. Threshold")
    assert node.node_condition("DiskPressure") == "True"


def test_unused_images_are_removed_when_the_disk_is_too_full(node: SingleNode) -> None:
    images = node.docker("images", "-q")
    node.import_image("podlane/unused:1")
    assert node.docker("images", "-q") != images
    flags = ("--image-gc-high-threshold-percent=0", "--image-gc-low-threshold-percent=0")
    node.agent(*flags, "--image-minimum-gc-age-seconds=0")
    wait_until(lambda: "podlane/unused" not in node.docker("images"), "it is gone")
    assert "podlane/pause" in node.docker("images")
    wait_until(lambda: "FreeDiskSpaceFailed" in node_events(node), "that it is still too full is told")


def test_images_unused_for_long_are_removed(node: SingleNode) -> None:
    start(node, pod("user"))
    node.import_image("podlane/unused:1")
    node.agent("--image-maximum-gc-age-seconds=0.001", "--image-minimum-gc-age-seconds=0")
    wait_until(lambda: "podlane/unused" not in node.docker("images"), "it is gone")
    assert {"podlane/pause", "podlane/toolbox"} <= set(node.docker("images").split())
    assert node.is_ready("user")


def test_newest_dead_container_is_kept(node: SingleNode) -> None:
    node.kubectl("apply", "-f", "-", stdin=pod("crashing", "exit 1", extra=CRITICAL))

    def dead() -> list[str]:
        return node.docker("ps", "-a", "--filter", "name=k8s_main_crashing", "--format", "{{.Names}}").split()

    wait_until(lambda: sorted(name[-1] for name in dead()) == ["0", "1"], "it has ended twice")
    node.agent("--eviction-hard=imagefs.available<100%")
    wait_until(lambda: all(name[-1] != "0" for name in dead()), "the first is gone")
    assert dead(), "the newest stays"


def test_logs_are_linked_by_pod_and_by_container(node: SingleNode) -> None:
    start(node, pod("speaker", f"echo hello; {SLEEP}"))
    identity = node.status("speaker")["containerStatuses"][0]["containerID"].removeprefix("docker://")
    by_container = node.root / "logs" / "containers" / f"speaker_default_main-{identity}.log"
    wait_until(by_container.exists, "the link")
    assert "hello" in by_container.read_text()
    uid = node.kubectl("get", "pod", "speaker", "-o", "jsonpath={.metadata.uid}")
    assert by_container.readlink() == Path(node.root, "logs", "pods", f"default_speaker_{uid}", "main", "0.log")


def test_remains_of_a_pod_deleted_while_the_agent_was_down_are_removed(node: SingleNode) -> None:
    volume = "  volumes: [{name: v, emptyDir: {medium: Memory}}]"
    start(node, pod("gone", extra=volume, mount="volumeMounts: [{name: v, mountPath: /v}]"))
    wait_until(lambda: all(node.traces().values()), "containers, directories, mounts and logs")
    with node.without_agent():
        node.kubectl("delete", "pod", "gone", "--force", "--grace-period=0")
        assert all(node.traces().values())
    wait_until(lambda: not any(node.traces().values()), "nothing is left")
