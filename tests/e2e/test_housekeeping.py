"""A node that runs short, and what it clears up. Its thresholds make it run short, not its pods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import wait_until
from tests.e2e.single import NODE, SingleNode

SLEEP = "exec tail -f /dev/null"


@pytest.fixture(scope="module")
def host() -> Iterator[SingleNode]:
    with SingleNode() as running:
        running.agent()
        wait_until(lambda: running.node_condition("Ready") == "True", "the node")
        yield running


@pytest.fixture
def node(host: SingleNode) -> Iterator[SingleNode]:
    """Without pods before and after."""
    host.load_images()
    host.agent()
    yield host
    host.agent()
    host.kubectl("delete", "pods", "--all", "--timeout=60s")
    wait_until(lambda: not any(host.traces().values()), "nothing is left of any pod")


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
    """When it was told to go; empty while it was not."""
    status = node.status(pod)
    if status.get("reason") != "Evicted":
        return ""
    assert status["phase"] == "Failed"
    [mark] = [row for row in status["conditions"] if row["type"] == "DisruptionTarget"]
    assert (mark["status"], mark["reason"], mark["message"]) == ("True", "TerminationByKubelet", status["message"])
    return str(mark["lastTransitionTime"])


def test_short_of_memory_who_takes_more_than_asked_goes_first_and_critical_pods_stay(node: SingleNode) -> None:
    start(
        node,
        pod("modest", resources="{requests: {memory: 64Mi}}"),
        pod("hog", f"head -c 40000000 /dev/zero > /dev/shm/x; {SLEEP}"),
        pod("critical", extra="  priority: 2000000000"),
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
        [row] = node.status(name)["containerStatuses"]
        assert row["state"]["terminated"]["exitCode"] == 137
    assert node.is_ready("critical")


def test_pods_that_take_more_disk_than_they_may_are_evicted(node: SingleNode) -> None:
    volume = "  volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]"
    fill = "head -c 4000000 /dev/zero >"
    limit = "{limits: {ephemeral-storage: 2Mi}}"
    start(
        node,
        pod("volume", extra=volume, mount="volumeMounts: [{name: v, mountPath: /v}]"),
        pod("layer", resources=limit),
        pod("within", resources=limit),
    )
    node.agent("--disk-scan-seconds=0.5")
    for name, path in (("volume", "/v/x"), ("layer", "/tmp/x"), ("within", "/dev/null")):
        container = node.status(name)["containerStatuses"][0]["containerID"].removeprefix("docker://")
        node.docker("exec", container, "sh", "-c", f"{fill} {path}")
    wait_until(lambda: evicted_at(node, "volume") and evicted_at(node, "layer"), "both went")
    assert node.status("volume")["message"] == 'Usage of EmptyDir volume "v" exceeds the limit "1Mi". '
    assert node.status("layer")["message"] == (
        "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "
    )
    wait_until(lambda: not any(node.traces("layer").values()), "its disk is free again")
    assert node.is_ready("within")


def test_short_of_disk_images_go_first_then_pods(node: SingleNode) -> None:
    start(node, pod("one"))
    node.import_image("podlane/unused:1")
    node.agent("--eviction-hard=imagefs.available<100%", "--image-minimum-gc-age-seconds=0")
    wait_until(lambda: evicted_at(node, "one"), "the pod went")
    assert "podlane/unused" not in node.docker("images")
    assert node.status("one")["message"].startswith("The node was low on resource: ephemeral-storage. Threshold")
    assert node.node_condition("DiskPressure") == "True"


def test_images_that_nobody_needs_go_when_the_disk_is_too_full(node: SingleNode) -> None:
    images = node.docker("images", "-q")
    node.import_image("podlane/unused:1")
    assert node.docker("images", "-q") != images
    flags = ("--image-gc-high-threshold-percent=0", "--image-gc-low-threshold-percent=0")
    node.agent(*flags, "--image-minimum-gc-age-seconds=0")
    wait_until(lambda: "podlane/unused" not in node.docker("images"), "it is gone")
    assert "podlane/pause" in node.docker("images")


def test_logs_are_found_by_pod_and_by_container(node: SingleNode) -> None:
    start(node, pod("speaker", f"echo hello; {SLEEP}"))
    identity = node.status("speaker")["containerStatuses"][0]["containerID"].removeprefix("docker://")
    by_container = node.root / "logs" / "containers" / f"speaker_default_main-{identity}.log"
    wait_until(by_container.exists, "the link")
    assert "hello" in by_container.read_text()
    uid = node.kubectl("get", "pod", "speaker", "-o", "jsonpath={.metadata.uid}")
    assert by_container.readlink() == Path(node.root, "logs", "pods", f"default_speaker_{uid}", "main", "0.log")


def test_what_a_pod_left_that_was_deleted_while_the_agent_was_away_is_cleared(node: SingleNode) -> None:
    volume = "  volumes: [{name: v, emptyDir: {medium: Memory}}]"
    start(node, pod("gone", extra=volume, mount="volumeMounts: [{name: v, mountPath: /v}]"))
    wait_until(lambda: all(node.traces().values()), "containers, directories, mounts and logs")
    with node.without_agent():
        node.kubectl("delete", "pod", "gone", "--force", "--grace-period=0")
        assert all(node.traces().values())
    wait_until(lambda: not any(node.traces().values()), "nothing is left")
