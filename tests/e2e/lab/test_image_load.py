"""`podlane image load`: images reach the nodes through the master."""

from __future__ import annotations

import gzip
import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import users
from tests.testbed.lab.cluster import Cluster
from tests.testbed.wait import CALL_SECONDS, wait_until

NAME = "example.test/carried:1"
COMMAND = str(Path(sys.executable).with_name("podlane"))


def load(kubeconfig: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run `podlane image load` with a kubeconfig."""
    command = [COMMAND, "image", "load", *map(str, words), f"--kubeconfig={kubeconfig}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS, check=False)


def nodes_with(cluster: Cluster, name: str) -> list[str]:
    """Return the nodes whose Docker has an image of a name."""
    return [node for node in cluster.nodes if cluster.docker(node, "images", "-q", name).strip()]


def users_of(cluster: Cluster, node: str) -> str:
    """Return the containers of the image on a node."""
    return cluster.docker(node, "ps", "-aq", f"--filter=ancestor={NAME}").strip()


@pytest.fixture
def archive(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """An image that no node has, in a file."""
    file = tmp_path / "carried.tar"
    node = next(iter(cluster.nodes))
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "filler").write_bytes(os.urandom(4 << 20))
    with tarfile.open(tmp_path / "root.tar", "w") as content:
        content.add("/bin/busybox", "busybox")
        content.add(folder / "filler", "filler")
    cluster.docker(node, "import", "--change", 'ENTRYPOINT ["/busybox"]', str(tmp_path / "root.tar"), NAME)
    cluster.docker(node, "save", f"--output={file}", NAME)
    cluster.docker(node, "rmi", NAME)
    assert nodes_with(cluster, NAME) == []
    yield file
    cluster.kubectl("-n", "red", "delete", "pod", "carried", "--grace-period=0", "--force", "--ignore-not-found")
    wait_until(lambda: not any(users_of(cluster, each) for each in cluster.nodes), "the end of the pod")
    for each in nodes_with(cluster, NAME):
        cluster.docker(each, "rmi", "-f", NAME)


def test_image_load_puts_an_image_onto_every_node_once(cluster: Cluster, archive: Path) -> None:
    first = load(cluster.lab.kubeconfig, archive, "--node", "node-2")
    assert first.returncode == 0, first.stderr
    assert nodes_with(cluster, NAME) == ["node-2"]
    compressed = archive.with_suffix(".tar.gz")
    compressed.write_bytes(gzip.compress(archive.read_bytes(), 1))
    second = load(cluster.lab.kubeconfig, compressed)
    assert second.returncode == 0, second.stderr
    assert f"node-2 has {NAME} already" in second.stdout
    assert f"node-1 has {NAME}\n" in second.stdout
    assert nodes_with(cluster, NAME) == list(cluster.nodes)
    cluster.kubectl("-n", "red", "run", "carried", f"--image={NAME}", "--", "sleep", "1000")
    cluster.wait_running("red", "carried")


def test_image_load_is_for_administrators_of_nodes(cluster: Cluster, archive: Path) -> None:
    refused = load(users.kubeconfig_file(cluster.lab, "red"), archive, "--node", "node-1")
    assert refused.returncode == 1
    assert 'cannot list resource "nodes"' in refused.stderr
    for verb, words in (("get", ("--raw",)), ("create", ("-f", str(archive), "--raw"))):
        raw = ["kubectl", f"--kubeconfig={users.kubeconfig_file(cluster.lab, 'red')}", verb, *words]
        done = subprocess.run(
            [*raw, "/api/v1/nodes/node-1/proxy/images?name=x"], capture_output=True, timeout=CALL_SECONDS, check=False
        )
        assert b"Forbidden" in done.stderr, done.stderr
    assert nodes_with(cluster, NAME) == []


def test_image_load_says_what_is_wrong(cluster: Cluster, archive: Path, tmp_path: Path) -> None:
    unknown = load(cluster.lab.kubeconfig, archive, "--node", "node-9")
    assert (unknown.returncode, unknown.stderr) == (
        1,
        "podlane: --node node-9: there is no such node; accepted: node-1, node-2, node-3\n",
    )
    (tmp_path / "text").write_text("no archive")
    wrong = load(cluster.lab.kubeconfig, tmp_path / "text")
    assert wrong.returncode == 1
    assert "an archive of `docker save` is accepted" in wrong.stderr
    # It has the index of an image, and not its layers.
    with tarfile.open(archive) as whole, tarfile.open(tmp_path / "half.tar", "w") as half:
        manifest = whole.extractfile("manifest.json")
        assert manifest is not None
        half.addfile(whole.getmember("manifest.json"), io.BytesIO(manifest.read()))
    broken = load(cluster.lab.kubeconfig, tmp_path / "half.tar", "--node", "node-1")
    assert broken.returncode == 1
    assert f"node-1 did not get {NAME}: " in broken.stderr
    assert nodes_with(cluster, NAME) == []


def test_image_load_that_is_killed_leaves_nothing_and_can_be_repeated(cluster: Cluster, archive: Path) -> None:
    process = subprocess.Popen([COMMAND, "image", "load", str(archive), f"--kubeconfig={cluster.lab.kubeconfig}"])
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    again = load(cluster.lab.kubeconfig, archive)
    assert again.returncode == 0, again.stderr
    assert nodes_with(cluster, NAME) == list(cluster.nodes)
