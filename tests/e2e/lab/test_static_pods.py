"""Static pods from a file, a URL and the local socket, and the pods that a node rejects."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.testbed.lab.cluster import Cluster
from tests.testbed.lab.manifests import pod
from tests.testbed.wait import CALL_SECONDS, wait_until


def mirror(cluster: Cluster, name: str) -> str:
    """Return the UID of the mirror pod while it is shown as running; empty otherwise."""
    actual = cluster.pod("default", name)
    if actual is None or "deletionTimestamp" in actual["metadata"] or actual["status"].get("phase") != "Running":
        return ""
    return str(actual["metadata"]["uid"])


def container(cluster: Cluster, node: str, name: str) -> str:
    """Return the id of the running container of a static pod."""
    return cluster.docker(node, "ps", "-q", "--filter", f"name=k8s_main_{name}_").strip()


def curl(cluster: Cluster, node: str, *words: str, body: str = "") -> tuple[int, dict[str, object]]:
    """Send a request to the node agent's socket."""
    socket = str(cluster.nodes[node].root / "node-agent.sock")
    command = ["curl", "-sS", "--unix-socket", socket, "-w", "\n%{http_code}", *words]
    done = subprocess.run(command, input=body, capture_output=True, text=True, timeout=CALL_SECONDS, check=True)
    text, _, code = done.stdout.rpartition("\n")
    return int(code), json.loads(text)


def test_static_pod_is_shown_by_kubectl_and_cannot_be_deleted(cluster: Cluster) -> None:
    before = cluster.settled_traces("node-2")
    file = cluster.nodes["node-2"].root / "manifests" / "shown.yaml"
    file.write_text(pod("shown", "default", grace=1))
    uid = wait_until(lambda: mirror(cluster, "shown-node-2"), "kubectl shows the static pod")
    table = cluster.kubectl("get", "pods", "-o", "wide").stdout
    [table_line] = [line for line in table.splitlines() if line.startswith("shown-node-2")]
    assert "1/1" in table_line
    assert "Running" in table_line
    runs = container(cluster, "node-2", "shown-node-2")
    cluster.kubectl("delete", "pod", "shown-node-2", "--timeout=30s")
    again = wait_until(lambda: mirror(cluster, "shown-node-2"), "it is shown again")
    assert again != uid
    assert container(cluster, "node-2", "shown-node-2") == runs, "the container runs on"
    file.write_text(pod("shown", "default", grace=1, command="sleep 1000 & wait"))
    wait_until(lambda: container(cluster, "node-2", "shown-node-2") not in {"", runs}, "the changed pod runs")
    wait_until(lambda: mirror(cluster, "shown-node-2") not in {"", again}, "the changed pod is shown")
    file.unlink()
    wait_until(lambda: cluster.pod("default", "shown-node-2") is None, "the mirror is gone")
    wait_until(lambda: cluster.traces("node-2") == before, "nothing is left of it")


def test_submitted_pod_survives_agent_restart_and_ends_on_request(cluster: Cluster) -> None:
    before = cluster.settled_traces("node-1")
    code, answer = curl(cluster, "node-1", "http://n/pods", "--data-binary", "@-", body=pod("mine", "default", grace=0))
    assert (code, answer["kind"]) == (201, "Pod")
    wait_until(lambda: mirror(cluster, "mine-node-1"), "the submitted pod is shown")
    runs = container(cluster, "node-1", "mine-node-1")
    cluster.kill(cluster.nodes["node-1"].root / "node-agent.pid")

    def listed() -> bool:
        socket = cluster.nodes["node-1"].root / "node-agent.sock"
        ask = ["curl", "-sS", "--unix-socket", str(socket), "http://n/pods"]
        return (
            "mine-node-1"
            in subprocess.run(ask, capture_output=True, text=True, timeout=CALL_SECONDS, check=False).stdout
        )

    wait_until(listed, "the agent knows it after a restart")
    bad = pod("bad", "default").replace("image: podlane/toolbox", "imagine: x").replace("main", "Main")
    code, answer = curl(cluster, "node-1", "http://n/pods", "--data-binary", "@-", body=bad)
    assert code == 422
    for path in ("spec.containers[0].imagine", "spec.containers[0].image", "spec.containers[0].name"):
        assert path in str(answer["message"])
    assert container(cluster, "node-1", "mine-node-1") == runs
    assert curl(cluster, "node-1", "-X", "DELETE", "http://n/pods/default/mine")[0] == 200
    wait_until(lambda: cluster.pod("default", "mine-node-1") is None, "the mirror is gone")
    wait_until(lambda: cluster.traces("node-1") == before, "nothing is left of it")


def test_pods_from_a_url_start_and_end_with_its_content(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.nodes["node-3"]
    settings = node.root / "node-agent.yaml"
    plain, before = settings.read_text(), cluster.settled_traces("node-3")
    page = tmp_path / "pods.yaml"
    page.write_text(pod("one", "default", grace=0) + pod("two", "default", grace=0))
    serve = (sys.executable, "-m", "http.server", "8099", "--bind", "127.0.0.1", "--directory", str(tmp_path))
    server = subprocess.Popen(
        ["nsenter", f"--net=/run/netns/{node.namespace}", *serve], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        settings.write_text("manifestUrl: http://127.0.0.1:8099/pods.yaml\n")
        cluster.kill(node.root / "node-agent.pid")
        wait_until(lambda: mirror(cluster, "one-node-3") and mirror(cluster, "two-node-3"), "both run")
        page.write_text("<html>not today</html>")
        page.write_text(pod("two", "default", grace=0))
        os.utime(page, (2_000_000_000, 2_000_000_000))
        wait_until(lambda: cluster.pod("default", "one-node-3") is None, "one is gone")
        assert mirror(cluster, "two-node-3")
    finally:
        settings.write_text(plain)
        server.send_signal(signal.SIGTERM)
        server.wait()
        cluster.kill(node.root / "node-agent.pid")
    wait_until(lambda: cluster.pod("default", "two-node-3") is None, "without the URL there is no pod")
    wait_until(lambda: cluster.traces("node-3") == before, "nothing is left of them")


def test_rejected_pod_reports_why_and_active_deadline_is_enforced(cluster: Cluster) -> None:
    picky = pod("picky", "default", "node-1", extra="\n  nodeSelector: {disk: tape}")
    huge = pod("huge", "default", "node-1").replace(
        "image: podlane/toolbox", "image: podlane/toolbox, resources: {requests: {cpu: 4000}}"
    )
    brief = pod("brief", "default", "node-1", grace=0, extra="\n  activeDeadlineSeconds: 2")
    try:
        cluster.apply(picky + huge + brief)
        for name, reason in (("picky", "NodeAffinity"), ("huge", "OutOfcpu"), ("brief", "DeadlineExceeded")):
            wait_until(lambda name=name: cluster.status("default", name).get("phase") == "Failed", name)  # type: ignore[misc]
            assert cluster.status("default", name)["reason"] == reason
            assert reason in cluster.kubectl("describe", "pod", name).stdout
        assert "NodeAffinity" in cluster.kubectl("get", "pod", "picky").stdout
        wait_until(lambda: not container(cluster, "node-1", "brief"), "the container has ended")
    finally:
        cluster.kubectl("delete", "pod", "picky", "huge", "brief", "--ignore-not-found", "--timeout=30s")
