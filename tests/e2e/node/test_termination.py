"""Termination of containers and pods: hooks, signals, order, and the status during it."""

from __future__ import annotations

import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.testbed.node.images import add_image
from tests.testbed.node.pods import NodePods, main, pod
from tests.testbed.wait import wait_until

DEAF = "trap '' TERM; while :; do sleep 0.1; done"


def says(word: str, signal: str = "TERM", before: str = "true") -> str:
    """Return a program that writes a word on a signal and ends."""
    return f"trap '{before}; echo {word} >> /out/said; exit 0' {signal}; while :; do sleep 0.05; done"


def out(path: Path) -> tuple[str, str]:
    """Return a directory of the test as a volume and as a mount."""
    return f"volumes: [{{name: out, hostPath: {{path: {path}}}}}]\n", "volumeMounts: [{name: out, mountPath: /out}]\n"


def test_sidecars_end_after_regular_containers_in_reverse_order(alone: NodePods, tmp_path: Path) -> None:
    volume, mount = out(tmp_path)
    meets = "touch /out/{0}; until test -e /out/{1}; do sleep 0.05; done"
    beside = main(says("one"), f"restartPolicy: Always\n{mount}", "one")
    beside += main(says("two"), f"restartPolicy: Always\n{mount}", "two")
    own = main(says("app", before=meets.format("a", "b")), mount, "a")
    own += main(says("app", before=meets.format("b", "a")), mount, "b")
    alone.apply(pod("ordered", own, f"{volume}initContainers:\n{beside}", grace=60))
    alone.until_ready("ordered")
    alone.delete("ordered")
    assert (tmp_path / "said").read_text().split() == ["app", "app", "two", "one"]


def test_container_gets_its_stop_signal_after_its_pre_stop_hook(alone: NodePods, tmp_path: Path) -> None:
    volume, mount = out(tmp_path)
    sleeps = "lifecycle: {stopSignal: SIGUSR1, preStop: {sleep: {seconds: 1}}}\n"
    fails = "lifecycle: {preStop: {exec: {command: [sh, -c, 'echo no; exit 7']}}}\n"
    over = "lifecycle: {preStop: {exec: {command: [touch, /out/hook]}}}\n"
    alone.apply(
        pod("wishes", main(says("usr1", "USR1"), sleeps + mount), volume, grace=60),
        pod("fails", main(says("asked"), fails + mount), volume, grace=60),
        pod("over", main("exit 0", over + mount) + main(name="side"), f"restartPolicy: Never\n{volume}"),
    )
    alone.until_ready("wishes", "fails")
    wait_until(lambda: "terminated" in alone.first_status("over")["state"], "it has ended")
    alone.delete("wishes", "fails", "over")
    assert sorted((tmp_path / "said").read_text().split()) == ["asked", "usr1"]
    assert not (tmp_path / "hook").exists(), "what has ended is not prepared for its end"
    alone.until_events(
        "fails",
        ("Normal", "Killing", "Stopping container main"),
        ("Warning", "FailedPreStopHook", "PreStopHook failed: no"),
    )


def test_labels_of_an_image_are_no_pre_stop_hook(alone: NodePods) -> None:
    """Docker gives a container the labels of its image. The agent would send the request from the node."""
    paths: list[str] = []

    class Recorder(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(204)
            self.end_headers()

    ends = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
    label = "annotation.io.kubernetes.container.preStopHandler"
    with HTTPServer(("127.0.0.1", 0), Recorder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hook = {"httpGet": {"host": "127.0.0.1", "port": server.server_port, "scheme": "HTTP", "path": "/image"}}
        for name, text in (("hooked", json.dumps(hook)), ("broken", "{")):
            add_image(alone.node, f"podlane/{name}:1", f"LABEL {label}={json.dumps(text)}")
        own = json.dumps({"preStop": {"httpGet": {**hook["httpGet"], "path": "/pod"}}})
        alone.apply(
            pod("hooked", main(ends).replace("podlane/toolbox", "podlane/hooked:1"), grace=30),
            pod("broken", main(ends).replace("podlane/toolbox", "podlane/broken:1"), grace=30),
            pod("own", main(ends, f"lifecycle: {own}"), "hostNetwork: true", grace=30),
        )
        alone.until_ready("hooked", "broken", "own")
        alone.delete("hooked", "broken", "own")
        server.shutdown()
    assert paths == ["/pod"]


def test_shorter_grace_period_shortens_termination_and_zero_deletes_the_object_at_once(alone: NodePods) -> None:
    alone.apply(pod("deaf", main(DEAF), grace=6000), pod("forced", main(DEAF), grace=6000))
    alone.until_ready("deaf", "forced")
    alone.delete("deaf", wait=False)
    alone.until_events("deaf", ("Normal", "Killing", "Stopping container main"))
    uid = alone.uid("forced")
    alone.node.kubectl("delete", "pod", "forced", "--force", "--grace-period=0")
    assert not alone.exists("forced")
    wait_until(lambda: uid not in alone.node.docker("ps", "-a", "--format", "{{.Names}}"), "nothing is left of it")
    assert alone.first_status("deaf")["state"].get("running"), "it still has its time"
    alone.node.kubectl("delete", "pod", "deaf", "--grace-period=1", "--timeout=60s")


def test_static_pod_removed_while_the_agent_is_down_has_its_full_grace_period(alone: NodePods, tmp_path: Path) -> None:
    volume, mount = out(tmp_path)
    file = alone.node.root / "manifests" / "slow.yaml"
    file.write_text(pod("slow", main(says("ended", before="sleep 4"), mount), volume, grace=60))
    wait_until(lambda: alone.node.docker("ps", "-q", "--filter", "name=k8s_main_slow"), "the static pod runs")
    with alone.node.without_agent():
        file.unlink()
    wait_until(lambda: not alone.node.docker("ps", "-aq", "--filter", "name=slow-"), "nothing is left of it")
    assert (tmp_path / "said").read_text().split() == ["ended"], "two seconds would not have been enough"


def changes(alone: NodePods, name: str) -> subprocess.Popen[str]:
    """Yield the watch events of a pod from now on, one a line."""
    path = f"/api/v1/namespaces/default/pods?watch=1&fieldSelector=metadata.name%3D{name}"
    command = ["kubectl", f"--kubeconfig={alone.node.root}/admin", "get", "--raw", path]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_deleted_pod_reports_its_final_status_before_its_object_is_removed(alone: NodePods) -> None:
    containers = main(says("x", before="exit 0")) + main("exit 3", name="side")
    alone.apply(pod("leaves", containers, "restartPolicy: Never"))
    wait_until(lambda: "terminated" in alone.statuses("leaves").get("side", {"state": {}})["state"], "one has ended")
    with changes(alone, "leaves") as watch:
        assert watch.stdout is not None
        first = json.loads(watch.stdout.readline())
        assert first["object"]["status"]["phase"] == "Running"
        alone.delete("leaves")
        rows = []
        for line in watch.stdout:
            rows.append(json.loads(line))
            if rows[-1]["type"] == "DELETED":
                break
        watch.terminate()
    seen = [
        (event["object"]["status"]["phase"], bool(event["object"]["metadata"].get("deletionTimestamp")))
        for event in rows
    ]
    assert seen[0] == ("Running", True)
    assert seen[-1] == ("Failed", True), "its phase is final before it goes"
    last = rows[-1]["object"]["status"]
    assert [status["state"]["terminated"]["exitCode"] for status in last["containerStatuses"]] == [0, 3]
    assert {
        condition["status"] for condition in last["conditions"] if condition["type"] in {"Ready", "ContainersReady"}
    } == {"False"}


def test_completed_pod_stays_visible(alone: NodePods) -> None:
    alone.apply(pod("works", main("exit 0") + main("exit 0", name="side"), "restartPolicy: OnFailure"))
    alone.until_phase("Succeeded", "works")
    alone.apply(pod("killed", main(DEAF), "restartPolicy: Never"))
    alone.until_ready("killed")
    alone.node.docker("kill", alone.first_status("killed")["containerID"].removeprefix("docker://"))
    alone.until_phase("Failed", "killed")
    assert alone.first_status("killed")["state"]["terminated"]["exitCode"] == 137
    assert alone.status("works")["phase"] == "Succeeded", "it never changes back"
    for name in ("works", "killed"):
        wait_until(lambda name=name: not alone.node.traces(name)["mounts"], "its tokens leave the memory")  # type: ignore[misc]
