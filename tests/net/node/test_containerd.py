"""Containers of containerd on the same network, attached by podlane-cni."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.images import toolbox
from lab.process import run
from tests.testbed.isolation.world import PlannedPod
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.wait import wait_until

PODS = (
    PlannedPod("red-far", "red", "node-2"),
    PlannedPod("admin-far", "default", "node-2"),
    PlannedPod("admin-near", "default", "node-1"),
)
CONTAINERS = {"c-red-a": "red", "c-red-b": "red", "c-blue-a": "blue"}


class Containerd:
    """A containerd with its own state. Its client finds the plugin and the network at the usual paths."""

    def __init__(self, root: Path, cluster: PacketWorld) -> None:
        self._root = root
        self._rootfs = root / "rootfs"
        self._plugins = root / "bin"
        self._plugins.mkdir()
        (self._plugins / "podlane-cni").symlink_to(Path(sys.executable).with_name("podlane-cni"))
        with tarfile.open(fileobj=io.BytesIO(toolbox())) as archive:
            archive.extractall(self._rootfs, filter="fully_trusted")
        written = cluster.nodes["node-1"].root / "cni" / "10-podlane.conflist"
        for project in sorted(set(CONTAINERS.values())):
            network = json.loads(written.read_text())
            network["plugins"][0]["project"] = project
            (root / project).mkdir()
            (root / project / written.name).write_text(json.dumps(network))
        for folder in ("upper", "work"):
            (root / folder).mkdir()
        self._socket = root / "sock"
        (root / "config.toml").write_text("version = 2\n")
        with (root / "log").open("wb") as log:
            self._daemon = subprocess.Popen(
                [
                    *("containerd", "--config", root / "config.toml", "--address", self._socket),
                    *("--root", root / "data", "--state", root / "state"),
                ],
                stdout=log,
                stderr=log,
            )
        wait_until(self._socket.exists, "containerd")

    def ctr(self, *words: str, project: str = "red") -> str:
        """Run ctr in a mount namespace in which its fixed paths are those of the test."""
        mounts = (
            "mount --make-rprivate /",
            f"mount -t overlay o -o lowerdir=/etc,upperdir={self._root}/upper,workdir={self._root}/work /etc",
            "mkdir -p /etc/cni/net.d",
            f"mount --bind {self._root}/{project} /etc/cni/net.d",
            "mount -t tmpfs t /opt",
            "mkdir -p /opt/cni/bin",
            f"mount --bind {self._plugins} /opt/cni/bin",
            'exec "$@"',
        )
        client = ("ctr", "-a", str(self._socket), *words)
        return run("unshare", "--mount", "bash", "-ec", "; ".join(mounts), "ctr", *client)

    def start(self, name: str, project: str) -> None:
        """Run a waiting container with its network."""
        self.ctr("run", "-d", "--cni", "--rootfs", str(self._rootfs), name, "/bin/sleep", "100000", project=project)

    def remove(self, name: str, project: str) -> None:
        """Detach and delete a container, as `ctr run` without -d does at its end."""
        plugin = self._plugins / "podlane-cni"
        network = json.loads((self._root / project / "10-podlane.conflist").read_text())
        words = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": f"default-{name}", "CNI_IFNAME": "eth0"}
        config = {"cniVersion": "1.0.0", "name": "podlane", **network["plugins"][0]}
        subprocess.run([plugin], input=json.dumps(config), env={**os.environ, **words}, text=True, check=True)
        self.ctr("task", "delete", "--force", name)
        self.ctr("container", "delete", name)

    def address(self, name: str) -> str:
        """Return the address of eth0 in the container."""
        words = self.execute(name, "/bin/ip", "-4", "addr", "show", "eth0").stdout.split()
        return words[words.index("inet") + 1].partition("/")[0]

    def execute(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program in a container."""
        client = [
            "ctr",
            "-a",
            str(self._socket),
            "task",
            "exec",
            "--exec-id",
            f"e{time.monotonic_ns()}",
            name,
            *command,
        ]
        return subprocess.run(client, capture_output=True, text=True, check=False)

    def stop(self) -> None:
        """Stop the daemon."""
        self._daemon.terminate()
        self._daemon.wait()


@pytest.fixture(scope="module")
def cluster() -> Iterator[PacketWorld]:
    with PacketWorld("podctrd", 18) as running:
        for project in ("red", "blue"):
            running.add_project(project)
        for planned_pod in PODS:
            running.add(planned_pod)
        running.warm_up("admin-near", "admin-far")
        yield running


@pytest.fixture(scope="module")
def containerd(cluster: PacketWorld) -> Iterator[Containerd]:
    root = Path(f"/tmp/podlane-containerd-{os.getpid()}")
    root.mkdir()
    daemon = Containerd(root, cluster)
    try:
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(root)


def test_containerd_containers_are_isolated_by_project(cluster: PacketWorld, containerd: Containerd) -> None:
    before = cluster.flows("node-1")
    for name, project in CONTAINERS.items():
        containerd.start(name, project)
    addresses = {name: containerd.address(name) for name in CONTAINERS}
    addresses |= {name: str(pod.address) for name, pod in cluster.pods.items()}

    def reaches(source: str, target: str) -> bool:
        return containerd.execute(source, "/bin/ping", "-c", "3", "-W", "1", "-A", addresses[target]).returncode == 0

    for friend in ("c-red-b", "red-far", "admin-near", "admin-far"):
        assert reaches("c-red-a", friend), friend
    for friend in ("admin-near", "admin-far"):
        assert reaches("c-blue-a", friend), friend
    assert not reaches("c-red-a", "c-blue-a")
    assert not reaches("c-blue-a", "c-red-a")
    assert not reaches("c-blue-a", "red-far")
    for name, project in CONTAINERS.items():
        containerd.remove(name, project)
    assert cluster.flows("node-1") == before


def test_cni_config_exists_only_while_the_network_is_ready(cluster: PacketWorld) -> None:
    conflist = cluster.nodes["node-1"].root / "cni" / "10-podlane.conflist"
    assert conflist.exists()
    cluster.kill("node-1 ovs-vswitchd")
    cluster.kill("node-1 sdn")
    cluster.start("node-1 sdn")
    wait_until(lambda: not conflist.exists(), "the file is taken away")
    cluster.start_switch("node-1")
    wait_until(conflist.exists, "the file is back")
