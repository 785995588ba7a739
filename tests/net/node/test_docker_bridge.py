"""Containers outside pods: dockerd starts them on lbr0, and br0 gives them a project's VNID."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import docker
import pytest

from lab import images
from lab.topology import docker_process
from sdn.model.match import mac_number
from sdn.topology import mac_of
from tests.testbed import frames
from tests.testbed.isolation.world import PlannedPod, arrives, reaches
from tests.testbed.netns.packet_world import PacketWorld, running_world
from tests.testbed.traffic import Ping
from tests.testbed.wait import wait_until

PODS = (
    PlannedPod("red-near", "red", "node-1"),
    PlannedPod("red-far", "red", "node-2"),
    PlannedPod("blue-near", "blue", "node-1"),
    PlannedPod("blue-far", "blue", "node-2"),
    PlannedPod("admin-a", "default", "node-1"),
    PlannedPod("admin-b", "default", "node-2"),
)
CONTAINERS = ("box-a", "box-b")


class Dockerd:
    """The dockerd of a node, started as by its unit, with the options that the sdn daemon has written."""

    def __init__(self, cluster: PacketWorld, node: str) -> None:
        here = cluster.nodes[node]
        (here.root / "docker-run").mkdir(exist_ok=True)
        (here.root / "docker.json").write_text("{}")
        specification = docker_process(cluster.lab, here)
        options = _options(here.root / "docker-network")
        command = [word for word in specification.command if word != "--bridge=none"]
        self._process = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{here.namespace}", *command, *options],
            env={**os.environ, **dict(specification.environment)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(lambda: here.docker_socket.exists(), "dockerd")
        images.load(str(here.docker_socket))
        self.client: Any = docker.APIClient(base_url=f"unix://{here.docker_socket}", version="1.41")

    def run(self, name: str, **host_config: Any) -> Any:
        """Start a container as `docker run -d` does, and return Docker's output."""
        config = self.client.create_host_config(**host_config)
        ports = list(host_config.get("port_bindings", {}))
        command = ["httpd", "-f", "-h", "/etc"]
        self.client.create_container(images.TOOLBOX, command, name=name, host_config=config, ports=ports)
        self.client.start(name)
        return self.client.inspect_container(name)

    def stop(self) -> None:
        """Stop the containers before the daemon, so that nothing of them is left."""
        for container in self.client.containers(all=True):
            self.client.remove_container(container["Id"], force=True)
        self.client.close()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()


def _options(file: Path) -> list[str]:
    wait_until(file.exists, "dockerd's options")
    name, _, value = file.read_text().strip().partition("=")
    assert name == "DOCKER_NETWORK_OPTIONS"
    return shlex.split(shlex.split(value)[0])


def restart_with(cluster: PacketWorld, project: str) -> None:
    """Restart the sdn daemon of node-1 with a project for containers outside pods."""
    usual = cluster.specification("node-1 sdn")
    file = cluster.nodes["node-1"].root / "docker-network"
    flags = (f"--docker-project={project}", f"--docker-options-file={file}", "--resync-seconds=1")
    if cluster.is_alive("node-1 sdn"):
        cluster.kill("node-1 sdn")
    cluster.start("node-1 sdn", replace(usual, command=(*usual.command, *flags)))
    wait_until(lambda: cluster.network_ready("node-1"), "the daemon")


@pytest.fixture(scope="module")
def cluster() -> Iterator[PacketWorld]:
    with running_world("poddock", 25, PODS) as running:
        restart_with(running, "red")
        dockerd = Dockerd(running, "node-1")
        try:
            for name in CONTAINERS:
                seen = dockerd.run(name, port_bindings={80: 8080} if name == "box-a" else {})
                address = IPv4Address(seen["NetworkSettings"]["IPAddress"])
                running.adopt(PlannedPod(name, "red", "node-1"), seen["State"]["Pid"], address)
            yield running
        finally:
            dockerd.stop()


def test_docker_allocates_addresses_of_its_part_of_the_subnet(cluster: PacketWorld) -> None:
    part = IPv4Network((int(cluster.gateway("node-1")) - 1 + 384, 25))
    assert all(cluster.pods[name].address in part for name in CONTAINERS)
    assert not any(pod.address in part for name, pod in cluster.pods.items() if name not in CONTAINERS)


def test_container_reaches_only_its_project(cluster: PacketWorld) -> None:
    for friend in ("red-near", "red-far", "admin-a", "admin-b"):
        assert reaches(cluster, "box-a", friend), friend
        assert reaches(cluster, friend, "box-a"), friend
    for foe in ("blue-near", "blue-far"):
        assert not reaches(cluster, "box-a", foe), foe
        assert not reaches(cluster, foe, "box-a"), foe


def test_container_cannot_spoof_addresses_outside_dockers_range(cluster: PacketWorld) -> None:
    assert arrives(cluster, "box-a", "red-near")
    for owner in ("red-near", "red-far", "admin-a"):
        for target in ("red-near", "red-far", "blue-near"):
            assert not arrives(cluster, "box-a", target, ip_src=cluster.pods[owner].address), f"{owner} at {target}"
    assert not arrives(cluster, "box-a", "blue-near", ip_src=cluster.gateway("node-1"))
    assert not arrives(cluster, "box-a", "red-near", vlan=10)
    assert not arrives(cluster, "blue-near", "box-a", ip_src=cluster.pods["box-b"].address)


@pytest.mark.parametrize("target", ["box-b", "red-near", "red-far", "node", "outside"])
def test_container_exchanges_packets_with_pods_and_the_outside(cluster: PacketWorld, target: str) -> None:
    known = {name: str(pod.address) for name, pod in cluster.pods.items()}
    known |= {"node": str(cluster.gateway("node-1")), "outside": str(cluster.lab.site.outside)}
    stream = Ping(f"/run/netns/{cluster.pod_namespace('box-a')}", known[target])
    assert stream.lost() == 0


def test_web_server_in_a_container_is_reached_by_pods_node_and_published_port(cluster: PacketWorld) -> None:
    address = cluster.pods["box-a"].address
    for namespace, url in (
        (cluster.pod_namespace("red-near"), f"http://{address}/passwd"),
        (cluster.pod_namespace("red-far"), f"http://{address}/passwd"),
        (cluster.nodes["node-1"].namespace, f"http://{address}/passwd"),
        (cluster.nodes["node-2"].namespace, f"http://{cluster.node_address('node-1')}:8080/passwd"),
    ):
        curl = ["curl", "-sS", "-m", "10", url]
        done = subprocess.run(["ip", "netns", "exec", namespace, *curl], capture_output=True, text=True, check=False)
        assert "root:" in done.stdout, f"{url} from {namespace}: {done.stderr}"


def test_docker_bridge_delivers_no_packet_to_the_node(cluster: PacketWorld) -> None:
    """A tunnel packet of a container that bypasses br0 would leave with the node's address, and peers would
    accept it.
    """
    bridge = mac_number(cluster.in_node("node-1", "cat", "/sys/class/net/lbr0/address").strip())
    box, outside = cluster.pods["box-a"], cluster.lab.site.outside
    for gateway, leaves in ((mac_of(cluster.gateway("node-1")), True), (bridge, False)):
        marker = frames.new_marker()
        frame = frames.ethernet(gateway, box.mac, frames.IPV4, frames.udp(box.address, outside, marker))
        assert cluster.leaves_cluster("box-a", frame, marker) == leaves, f"{gateway:x}"


def test_docker_bridge_delivers_no_packet_to_the_node_without_its_guard(cluster: PacketWorld) -> None:
    bridge = mac_number(cluster.in_node("node-1", "cat", "/sys/class/net/lbr0/address").strip())
    box, outside = cluster.pods["box-a"], cluster.lab.site.outside
    cluster.kill("node-1 sdn")
    cluster.in_node("node-1", "nft", "delete", "table", "netdev", "podlane-guard")
    marker = frames.new_marker()
    frame = frames.ethernet(bridge, box.mac, frames.IPV4, frames.udp(box.address, outside, marker))
    assert not cluster.leaves_cluster("box-a", frame, marker)
    restart_with(cluster, "red")


def test_container_traffic_loses_no_packet_when_the_daemon_is_killed(cluster: PacketWorld) -> None:
    before = cluster.flows("node-1"), cluster.in_node("node-1", "ip", "-br", "addr")
    streams = [Ping(f"/run/netns/{cluster.pod_namespace('box-a')}", str(cluster.pods["red-near"].address))]
    streams.append(Ping(f"/run/netns/{cluster.pod_namespace('red-near')}", str(cluster.pods["box-a"].address)))
    for _ in range(2):
        restart_with(cluster, "red")
        streams[0].wait_for_answers(5)
    assert [stream.lost() for stream in streams] == [0, 0]
    assert (cluster.flows("node-1"), cluster.in_node("node-1", "ip", "-br", "addr")) == before


@pytest.mark.parametrize(
    "harm",
    [
        "ip link set vlinuxbr nomaster",
        "ip link set vlinuxbr down",
        "ip link del vlinuxbr",
        "ip addr flush dev lbr0",
        "nft delete chain netdev podlane-guard lbr0",
    ],
)
def test_changes_to_the_docker_bridge_are_repaired(cluster: PacketWorld, harm: str) -> None:
    cluster.in_node("node-1", *harm.split())
    wait_until(lambda: "lbr0" in cluster.in_node("node-1", "nft", "list", "table", "netdev", "podlane-guard"), "guard")
    wait_until(lambda: answers(cluster), "the container is back")
    assert not reaches(cluster, "blue-near", "box-a")


def answers(cluster: PacketWorld) -> bool:
    """Return whether the container answers a ping of its own project."""
    command = ["ping", "-c", "1", "-W", "1", str(cluster.pods["box-a"].address)]
    namespace = cluster.pod_namespace("red-near")
    return (
        subprocess.run(["ip", "netns", "exec", namespace, *command], capture_output=True, check=False).returncode == 0
    )


def test_container_bridge_project_can_be_changed_and_removed(cluster: PacketWorld) -> None:
    restart_with(cluster, "blue")
    assert reaches(cluster, "box-a", "blue-far")
    assert not reaches(cluster, "box-a", "red-near")
    restart_with(cluster, "default")
    for other in ("red-near", "red-far", "blue-near", "blue-far"):
        assert reaches(cluster, "box-a", other), other
        assert reaches(cluster, other, "box-a"), other
    restart_with(cluster, "nobody")
    assert not answers(cluster)
    restart_with(cluster, "")
    assert "lbr0" not in cluster.in_node("node-1", "ip", "link")
    assert "vovsbr" not in cluster.vsctl("node-1", "list-ports", "br0")
    assert not (cluster.nodes["node-1"].root / "docker-network").exists()
