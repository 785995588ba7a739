"""Sources of static pods: files, a URL and the local socket."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.node.single_node import NODE, SingleNode
from tests.testbed.wait import wait_until

POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  terminationGracePeriodSeconds: {grace}
  containers:
  - {{name: main, image: podlane/toolbox, imagePullPolicy: Never, command: [sh, -c, "{command}"]{more}}}
"""
SLEEP = "exec tail -f /dev/null"


def manifest(name: str, command: str = SLEEP, more: str = "", grace: int = 0) -> str:
    return POD.format(name=name, command=command, more=more, grace=grace)


class Site(ThreadingHTTPServer):
    """A web server with one page, a list of pods in JSON, that records request headers."""

    def __init__(self) -> None:
        self.requests: list[dict[str, str]] = []
        spec = {"containers": [{"name": "main", "image": "podlane/toolbox", "imagePullPolicy": "Never"}]}
        spec["containers"][0]["command"] = ["tail", "-f", "/dev/null"]  # type: ignore[assignment]
        items = [{"metadata": {"name": name}, "spec": spec} for name in ("paged", "listed")]
        self.page = json.dumps({"apiVersion": "v1", "kind": "PodList", "items": items}).encode()
        super().__init__(("127.0.0.1", 0), Page)


class Page(BaseHTTPRequestHandler):
    """A handler that answers 304 to a client that has the page."""

    server: Site

    def do_GET(self) -> None:
        self.server.requests.append(dict(self.headers))
        known = self.headers.get("If-None-Match") == '"1"'
        self.send_response(304 if known else 200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", "0" if known else str(len(self.server.page)))
        self.end_headers()
        if not known:
            self.wfile.write(self.server.page)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def flags(site: Site) -> tuple[str, ...]:
    url = f"http://127.0.0.1:{site.server_port}/pods.json"
    return f"--manifest-url={url}", "--manifest-url-headers={X-Rack: '7'}"


@pytest.fixture(scope="module")
def host(flags: tuple[str, ...]) -> Iterator[SingleNode]:
    with SingleNode() as running:
        running.agent(*flags)
        wait_until(lambda: running.node_condition("Ready") == "True", "the node")
        yield running


@pytest.fixture
def node(host: SingleNode) -> Iterator[SingleNode]:
    yield host
    for file in (host.root / "manifests").iterdir():
        file.unlink() if file.is_file() else None
    host.kubectl("delete", "pods", "--field-selector=spec.restartPolicy=Never", "--timeout=60s")
    wait_until(lambda: set(mirrors(host)) <= {"paged-node-1", "listed-node-1"}, "no static pod is left")


def mirrors(node: SingleNode) -> dict[str, dict[str, Any]]:
    """Return the mirror pods on the master by name."""
    rows = json.loads(node.kubectl("get", "pods", "-o", "json"))["items"]
    return {pod["metadata"]["name"]: pod for pod in rows}


def runs(node: SingleNode, name: str) -> str:
    """Return the id of the pod's container."""
    return node.docker("ps", "-q", "--no-trunc", "--filter", f"name=k8s_main_{name}_").strip()


def is_ready(node: SingleNode, name: str) -> bool:
    return name in mirrors(node) and node.is_ready(name)


def refusals(node: SingleNode) -> str:
    """Return the messages of the node's events with the reason FailedValidation."""
    selector = "--field-selector=reason=FailedValidation"
    return node.kubectl("get", "events", selector, "-o", "jsonpath={range .items[*]}{.message}{'\\n'}{end}")


def podlane(node: SingleNode, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("podlane")), "pod", *words, f"--socket={node.root}/agent.sock"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def test_manifest_directory_yields_pods_of_all_valid_visible_files(node: SingleNode) -> None:
    folder = node.root / "manifests"
    (folder / "inner").mkdir()
    (folder / "inner" / "deep.yaml").write_text(manifest("deep"))
    (folder / ".hidden.yaml").write_text(manifest("hidden"))
    (folder / "a-broken.yaml").write_text(manifest("broken").replace("image:", "imagine:"))
    (folder / "b-needy.yaml").write_text(manifest("needy", more=", envFrom: [{secretRef: {name: s}}]"))
    (folder / "web.json").write_text(json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "x"}}))
    (folder / "z-good.yaml").write_text(manifest("good") + "---\n" + manifest("second"))
    wait_until(lambda: is_ready(node, "good-node-1") and is_ready(node, "second-node-1"), "the good ones run")
    wait_until(lambda: refusals(node).count("is not accepted") >= 3, "what is wrong is told")
    reported = refusals(node)
    assert "a-broken.yaml document 1 is not accepted: " in reported
    assert "spec.containers[0].imagine: is not a field" in reported
    assert "spec.containers[0].envFrom[0].secretRef" in reported
    assert "web.json document 1 is not accepted: kind: " in reported
    assert set(mirrors(node)) <= {"good-node-1", "second-node-1", "paged-node-1", "listed-node-1"}


def test_static_pod_has_kubelets_name_annotations_and_mirror_pod(node: SingleNode) -> None:
    (node.root / "manifests" / "web.yaml").write_text(manifest("web"))
    wait_until(lambda: is_ready(node, "web-node-1"), "it runs")
    mirror = mirrors(node)["web-node-1"]
    meta, spec = mirror["metadata"], mirror["spec"]
    notes = meta["annotations"]
    uid = notes["kubernetes.io/config.hash"]
    assert re.fullmatch("[0-9a-f]{32}", uid)
    assert notes["kubernetes.io/config.mirror"] == uid != meta["uid"]
    assert (notes["kubernetes.io/config.source"], meta["namespace"], spec["nodeName"]) == ("file", "default", NODE)
    assert notes["kubernetes.io/config.seen"]
    owner = json.loads(node.kubectl("get", "node", NODE, "-o", "json"))["metadata"]["uid"]
    assert meta["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": owner, "controller": True}
    ]
    assert {"operator": "Exists", "effect": "NoExecute"} in spec["tolerations"]
    sandbox = node.docker("ps", "-q", "--filter", "name=k8s_POD_web-node-1_").strip()
    labels = json.loads(node.docker("inspect", sandbox))[0]["Config"]["Labels"]
    assert (labels["io.kubernetes.pod.uid"], labels["app"]) == (uid, "web")
    assert labels["annotation.kubernetes.io/config.source"] == "file"


def test_agent_restart_keeps_reported_status_of_a_static_pod(node: SingleNode, flags: tuple[str, ...]) -> None:
    probe = ", readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1, failureThreshold: 1000}"
    (node.root / "manifests" / "web.yaml").write_text(manifest("web", f"touch /tmp/ready; {SLEEP}", probe))
    wait_until(lambda: is_ready(node, "web-node-1"), "it is ready")
    before, container = node.status("web-node-1"), runs(node, "web-node-1")
    node.docker("exec", container, "rm", "/tmp/ready")
    node.agent(*flags)
    (node.root / "manifests" / "next.yaml").write_text(manifest("next"))
    wait_until(lambda: is_ready(node, "next-node-1"), "the new agent is at work")
    after = node.status("web-node-1")
    assert (after["startTime"], after["conditions"]) == (before["startTime"], before["conditions"])
    assert after["containerStatuses"] == before["containerStatuses"]
    assert runs(node, "web-node-1") == container


def test_rejected_static_pod_stays_rejected(node: SingleNode, flags: tuple[str, ...]) -> None:
    text = manifest("picky").replace("spec:", "spec:\n  nodeSelector: {disk: ssd}")
    (node.root / "manifests" / "picky.yaml").write_text(text)
    wait_until(lambda: mirrors(node).get("picky-node-1", {}).get("status", {}).get("reason") == "NodeAffinity", "no")
    node.kubectl("label", "node", NODE, "disk=ssd")
    node.agent(*flags)
    (node.root / "manifests" / "other.yaml").write_text(text.replace("picky", "other"))
    wait_until(lambda: is_ready(node, "other-node-1"), "others are taken now")
    status = node.status("picky-node-1")
    assert (status["phase"], status["reason"]) == ("Failed", "NodeAffinity")
    node.kubectl("label", "node", NODE, "disk-")


def test_podlane_pod_submits_and_deletes_pods(node: SingleNode, flags: tuple[str, ...]) -> None:
    mode = (node.root / "agent.sock").stat().st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
    done = podlane(node, "submit", "-", text=manifest("mine"))
    assert (done.returncode, done.stdout) == (0, "default/mine: submitted, runs as mine-node-1\n")
    wait_until(lambda: is_ready(node, "mine-node-1"), "it runs")
    assert mirrors(node)["mine-node-1"]["metadata"]["annotations"]["kubernetes.io/config.source"] == "http"
    bad = podlane(node, "submit", "-", text=manifest("bad").replace("image:", "imagine:"))
    assert bad.returncode == 1
    assert "spec.containers[0].imagine" in bad.stdout
    (node.root / "manifests" / "double.yaml").write_text(manifest("mine", "sleep 1000"))
    wait_until(lambda: "Duplicate pod name" in refusals(node), "the second of that name is told of")
    assert podlane(node, "delete", "mine").returncode == 0
    wait_until(
        lambda: "sleep 1000" in json.dumps(mirrors(node).get("mine-node-1", {})), "the other one takes its place"
    )
    assert podlane(node, "delete", "mine").returncode == 1


def test_nothing_is_cleaned_up_before_every_source_has_synced(node: SingleNode, flags: tuple[str, ...]) -> None:
    node.kubectl("apply", "-f", "-", stdin=of_master("left"))
    wait_until(lambda: node.is_ready("left"), "it runs")
    with node.without_agent():
        node.kubectl("delete", "pod", "left", "--force", "--grace-period=0")
    node.agent("--manifest-url=http://127.0.0.1:1/pods")
    node.kubectl("apply", "-f", "-", stdin=of_master("next"))
    wait_until(lambda: node.is_ready("next"), "the agent is at work")
    assert runs(node, "left")
    node.agent(*flags)
    wait_until(lambda: not runs(node, "left"), "now it is known that nobody wants it")


def test_static_pod_preempts_other_pods(node: SingleNode, flags: tuple[str, ...]) -> None:
    node.kubectl("apply", "-f", "-", stdin=of_master("guest"))
    others = ("guest", "paged-node-1", "listed-node-1")
    wait_until(lambda: all(is_ready(node, name) for name in others), "three pods run")
    node.agent(*flags, "--max-pods=3")
    wait_until(lambda: node.kubectl("get", "node", NODE, "-o", "jsonpath={.status.capacity.pods}") == "3", "a limit")
    (node.root / "manifests" / "first.yaml").write_text(manifest("first"))
    wait_until(lambda: is_ready(node, "first-node-1"), "the static pod runs")
    wait_until(lambda: node.status("guest").get("reason") == "Preempting", "the other one had to go")
    assert node.status("guest")["phase"] == "Failed"
    node.agent(*flags)


def of_master(name: str) -> str:
    return manifest(name).replace("spec:", f"spec:\n  nodeName: {NODE}\n  restartPolicy: Never")


def test_manifest_url_is_requested_with_its_headers_and_etag(node: SingleNode, site: Site) -> None:
    wait_until(lambda: is_ready(node, "paged-node-1") and is_ready(node, "listed-node-1"), "every pod of the list runs")
    assert mirrors(node)["paged-node-1"]["metadata"]["annotations"]["kubernetes.io/config.source"] == "http"
    assert all(requested["X-Rack"] == "7" for requested in site.requests)
    wait_until(lambda: any(headers.get("If-None-Match") == '"1"' for headers in site.requests), "it is asked again")
    assert runs(node, "paged-node-1")
