"""SIGKILL of every daemon under traffic: no packet is lost, and the state afterwards is as before."""

from __future__ import annotations

import contextlib
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import psutil
import pytest

from lab.process import LabError
from tests.testbed.lab.cluster import Cluster
from tests.testbed.lab.manifests import namespace, pod
from tests.testbed.traffic import Ping
from tests.testbed.wait import wait_until


def pid_files(cluster: Cluster, daemon: str) -> list[Path]:
    if daemon == "master":
        return [cluster.lab.root / "master" / "master.pid"]
    return [node.root / f"{daemon}.pid" for node in cluster.lab.nodes[:2]]


def ready(cluster: Cluster) -> bool:
    done = cluster.kubectl("get", "nodes", "--no-headers", check=False)
    return done.returncode == 0 and done.stdout.count(" Ready ") == len(cluster.nodes)


@pytest.mark.parametrize("daemon", ["sdn", "node-agent", "master"])
def test_no_packet_is_lost_when_a_daemon_is_killed(cluster: Cluster, daemon: str) -> None:
    before = {node: cluster.settled_traces(node) for node in cluster.nodes}
    pods = cluster.kubectl("get", "pods", "-A", "-o", "wide", "--no-headers").stdout.split()
    netns = f"/proc/{cluster.pid('red', 'red-1')}/ns/net"
    streams = [Ping(netns, cluster.address("red", name)) for name in ("red-2", "red-3")]
    for _ in range(2):
        for pid_file in pid_files(cluster, daemon):
            cluster.kill(pid_file)
        for stream in streams:
            stream.wait_for_answers(50)
    wait_until(lambda: ready(cluster), "all nodes are ready")
    assert [stream.lost() for stream in streams] == [0, 0]
    wait_until(lambda: {node: cluster.traces(node) for node in cluster.nodes} == before, "the nodes are as before")
    after = cluster.kubectl("get", "pods", "-A", "-o", "wide", "--no-headers").stdout.split()
    ages = ("s", "m", "h")
    assert [word for word in after if not word.endswith(ages)] == [word for word in pods if not word.endswith(ages)]


def test_pods_start_and_end_while_daemons_are_killed(cluster: Cluster) -> None:
    before = {node: cluster.settled_traces(node) for node in cluster.nodes}
    # On one node: the switch in user space may lose a tunnelled packet whenever a link is added or removed.
    stream = Ping(f"/proc/{cluster.pid('red', 'red-1')}/ns/net", cluster.address("default", "default-1"))
    names = [f"storm-{number}" for number in range(6)]
    cluster.apply(namespace("storm"))
    cluster.apply("".join(pod(name, "storm", f"node-{1 + index % 3}", grace=1) for index, name in enumerate(names)))
    for daemon in ("sdn", "node-agent", "master"):
        for pid_file in pid_files(cluster, daemon):
            cluster.kill(pid_file)
    wait_until(lambda: ready(cluster), "all nodes are ready")
    cluster.wait_running("storm", *names)
    addresses = {cluster.address("storm", name) for name in names}
    assert len(addresses) == len(names)
    cluster.kubectl("delete", "namespace", "storm", "--wait=false")
    for daemon in ("node-agent", "sdn", "master"):
        for pid_file in pid_files(cluster, daemon):
            cluster.kill(pid_file)
    wait_until(lambda: ready(cluster), "all nodes are ready")
    wait_until(lambda: {node: cluster.traces(node) for node in cluster.nodes} == before, "the nodes are as before")
    assert stream.lost() == 0


def test_sandbox_removed_while_the_agent_is_down_leaves_no_port(cluster: Cluster) -> None:
    """The test holds the network namespace open; otherwise the kernel would remove the port."""
    node = cluster.nodes["node-1"]
    before = cluster.settled_traces("node-1")
    cluster.apply(namespace("lost") + pod("one", "lost", "node-1"))
    cluster.wait_running("lost", "one")
    [port] = set(cluster.traces("node-1")["ports"]) - set(before["ports"])
    agent = psutil.Process(int((node.root / "node-agent.pid").read_text()))
    with Path(f"/proc/{cluster.pid('lost', 'one')}/ns/net").open():
        agent.suspend()
        try:
            ours = cluster.docker("node-1", "ps", "-aq", "--filter", "label=io.kubernetes.pod.namespace=lost").split()
            cluster.docker("node-1", "rm", "-f", *ours)
            cluster.kubectl("-n", "lost", "delete", "pod", "one", "--force", "--grace-period=0")
            assert port in cluster.traces("node-1")["ports"]
        finally:
            cluster.kill(node.root / "node-agent.pid")
        wait_until(lambda: cluster.traces("node-1") == before, "the node is as before")
    cluster.kubectl("delete", "namespace", "lost", "--timeout=60s")


def test_restarted_switch_connects_the_same_pods(cluster: Cluster) -> None:
    node = cluster.nodes["node-1"]
    before = cluster.settled_traces("node-1")
    cluster.kill(node.ovs / "ovs-vswitchd.pid")

    def as_before() -> bool:
        with contextlib.suppress(LabError):
            return bool(cluster.traces("node-1")["flows"] == before["flows"])
        return False

    wait_until(as_before, "the flows")
    wait_until(lambda: cluster.pings(("red", "red-1"), cluster.address("red", "red-2")), "packets to another node")
    assert cluster.pings(("red", "red-1"), str(cluster.lab.site.outside))
    assert cluster.traces("node-1") == before


def test_pods_return_after_docker_restarts(cluster: Cluster) -> None:
    cluster.kill(cluster.nodes["node-3"].root / "dockerd.pid")
    wait_until(lambda: ready(cluster), "all nodes are ready")
    wait_until(lambda: cluster.pings(("red", "red-1"), cluster.address("red", "red-3")), "the pod answers")


def test_pods_get_new_addresses_when_the_nodes_subnet_changes(cluster: Cluster) -> None:
    before = cluster.kubectl("get", "hostsubnet", "node-3", "-o", "jsonpath={.subnet}").stdout
    assert IPv4Address(cluster.address("red", "red-3")) in IPv4Network(before)
    cluster.kubectl("delete", "node", "node-3")

    def moved() -> bool:
        subnet = cluster.kubectl("get", "hostsubnet", "node-3", "-o", "jsonpath={.subnet}", check=False).stdout
        return subnet not in {"", before} and IPv4Address(cluster.address("red", "red-3")) in IPv4Network(subnet)

    wait_until(moved, "red-3 has an address of the new subnet")
    cluster.wait_running("red", "red-3")
    wait_until(lambda: cluster.pings(("red", "red-1"), cluster.address("red", "red-3")), "red-1 reaches red-3")
    assert not cluster.pings(("blue", "blue-1"), cluster.address("red", "red-3"))
    hosts = cluster.execute("red", "red-3", "cat", "/etc/hosts").stdout
    assert f"{cluster.address('red', 'red-3')}\tred-3" in hosts
    assert not [line for line in hosts.splitlines() if line and line[0].isdigit() and _is_in(line.split()[0], before)]


def _is_in(address: str, subnet: str) -> bool:
    return ":" not in address and IPv4Address(address) in IPv4Network(subnet)
