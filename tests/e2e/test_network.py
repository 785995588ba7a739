"""The administrator's view of the pod network, through the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.cluster import Cluster


def network(cluster: Cluster, *words: str, code: int = 0) -> str:
    command = Path(sys.executable).with_name("podlane")
    done = subprocess.run(
        [command, "network", *words, "--kubeconfig", cluster.lab.kubeconfig],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_node_tells_how_its_network_is(cluster: Cluster) -> None:
    rows = {line.split()[0]: line for line in network(cluster, "status").splitlines() if line.startswith("node-")}
    assert sorted(rows) == ["node-1", "node-2", "node-3"]
    for name, row in rows.items():
        assert row.split()[-1] == "ready"
        for other in rows.keys() - {name}:
            assert f"{other} " in row
        assert "lost" not in row


def test_a_trace_asks_the_switches_on_both_nodes(cluster: Cluster) -> None:
    told = network(cluster, "trace", "red/red-1", "red/red-2", "--proto", "tcp", "--port", "8080")
    assert told.splitlines()[-1] == "delivered: red/red-1 reaches red/red-2 on node-2"
    assert "node-1, from the pod " in told
    assert "node-2, from the tunnel of " in told
    told = network(cluster, "trace", "red/red-1", "blue/blue-2")
    assert told.splitlines()[-1] == "dropped because red (VNID 10) may not reach blue (VNID 11)"
    told = network(cluster, "trace", "red/red-1", "red/red-2", "--source-address", cluster.address("blue", "blue-1"))
    assert told.splitlines()[-1].endswith("is not red/red-1's address")
    assert "neither an address nor PROJECT/POD" in network(cluster, "trace", "red/nobody", "red/red-1", code=1)
    assert not cluster.kubectl("get", "nodequeries", "-o", "name").stdout, "no question is left behind"


def test_a_question_to_nobody_is_refused(cluster: Cluster) -> None:
    query = '{"apiVersion": "podlane.io/v1", "kind": "NodeQuery", "metadata": {"name": "q"}, "spec": {"report": true}}'
    refused = cluster.kubectl("create", "-f", "-", stdin=query, check=False)
    assert "spec.nodeName" in refused.stderr
