"""The command `podlane network`, as an administrator uses it."""

from __future__ import annotations

import socket
from pathlib import Path

from lab.process import run
from tests.testbed.lab.cluster import Cluster
from tests.testbed.namespaces import inside
from tests.testbed.podlane_cli import podlane_network
from tests.testbed.traffic import Ping


def test_podlane_network_status_lists_every_node_as_ready(cluster: Cluster) -> None:
    rows = {
        line.split()[0]: line
        for line in podlane_network(cluster.lab.kubeconfig, "status").splitlines()
        if line.startswith("node-")
    }
    assert sorted(rows) == ["node-1", "node-2", "node-3"]
    for name, status_line in rows.items():
        assert status_line.split()[-1] == "ready"
        for other in rows.keys() - {name}:
            assert f"{other} " in status_line
        assert "lost" not in status_line


def test_podlane_network_trace_queries_switches_of_both_nodes(cluster: Cluster) -> None:
    def trace(*words: str, code: int = 0) -> list[str]:
        return podlane_network(cluster.lab.kubeconfig, "trace", "red/red-1", *words, code=code).splitlines()

    reported = trace("red/red-2", "--proto", "tcp", "--port", "8080")
    assert reported[-1] == "delivered: red/red-1 reaches red/red-2 on node-2"
    assert [line.partition(" of")[0] for line in reported if line.startswith("node-2")] == ["node-2, from the tunnel"]
    dropped = trace("blue/blue-2")
    assert dropped[-1] == "dropped because red (VNID 10) may not reach blue (VNID 11)"
    assert [line for line in dropped if line.endswith("  drop (other_project)")] == dropped[-3:-2]
    borrowed = cluster.address("blue", "blue-1")
    assert trace("red/red-2", "--source-address", borrowed)[-1].endswith("is not red/red-1's address")
    assert trace("red/red-2", "--vlan", "10")[-1] == "dropped because red/red-1's frames may carry no VLAN tag"
    assert trace("blue/blue-2", "--proto", "arp")[-1].startswith(
        "answered: the switch of node-1 gives red/red-1 the MAC"
    )
    stranger = trace("red/red-2", "--from-tunnel", "10.9.9.9", "--vnid", "10")
    assert stranger[-1] == "dropped because node-2 rejects tunnel packets from 10.9.9.9: no node has this address"
    assert "has the name 'red/nobody'; an address, a node, PROJECT/POD" in trace("red/nobody", code=1)[-1]
    assert "--vnid requires --from-tunnel" in trace("red/red-2", "--vnid", "10", code=2)[-1]
    assert not cluster.kubectl("get", "nodequeries", "-o", "name").stdout, "no question is left behind"


def test_podlane_network_trace_says_what_the_firewall_of_a_node_does_with_a_packet(cluster: Cluster) -> None:
    here = cluster.nodes["node-1"]
    with inside(here.namespace):
        server = socket.create_server(("", 0))
    port = server.getsockname()[1]

    def trace(number: int) -> str:
        words = ("trace", "red/red-1", "node-1", "--proto", "tcp", "--port", str(number))
        return podlane_network(cluster.lab.kubeconfig, *words).splitlines()[-1]

    def connects(number: int) -> bool:
        gateway = cluster.address("red", "red-1").rpartition(".")[0] + ".1"
        return cluster.execute("red", "red-1", "nc", "-w", "3", gateway, str(number)).returncode == 0

    with server, inside(here.namespace), socket.create_connection(("127.0.0.1", port)):
        assert trace(port).startswith("dropped because the firewall of node-1 rejects what comes from the pod network")
        assert not connects(port)
    assert trace(53) == "delivered: red/red-1 reaches node-1 itself"
    assert connects(53)
    needs_port = podlane_network(cluster.lab.kubeconfig, "trace", "red/red-1", "node-1", "--proto", "tcp", code=2)
    assert "--port is required with --proto tcp" in needs_port


def test_podlane_network_capture_writes_packets_of_a_port(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "red-1.pcap"
    netns = f"/proc/{cluster.pid('red', 'red-1')}/ns/net"
    stream = Ping(netns, cluster.address("red", "red-2"))
    words = ("capture", "red/red-1", "--packets", "20", "--seconds", "20", "--out", str(out))
    podlane_network(cluster.lab.kubeconfig, *words)
    stream.end()
    rows = run("tcpdump", "-n", "-r", str(out)).splitlines()
    assert len(rows) == 20
    assert sum("ICMP echo" in line and cluster.address("red", "red-2") in line for line in rows) >= 15
    reported = podlane_network(cluster.lab.kubeconfig, "capture", "red/red-1", "--packets", "9999", code=2)
    assert "is not a whole number from 1 to 1000" in reported


def test_node_query_without_a_node_name_is_rejected(cluster: Cluster) -> None:
    query = '{"apiVersion": "podlane.io/v1", "kind": "NodeQuery", "metadata": {"name": "q"}, "spec": {"report": true}}'
    refused = cluster.kubectl("create", "-f", "-", stdin=query, check=False)
    assert "spec.nodeName" in refused.stderr
