"""`podlane why` in a lab: the verdict agrees with the packets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.lab.cluster import Cluster
from tests.testbed.wait import CALL_SECONDS, wait_until

NODE_PORT = """\
apiVersion: v1
kind: Service
metadata: {name: open, namespace: red}
spec: {type: NodePort, selector: {app: demo}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: red}
spec: {clusterIP: None, selector: {app: demo}, ports: [{port: 80}]}
"""


@pytest.fixture(autouse=True)
def services(cluster: Cluster) -> Iterator[None]:
    cluster.kubectl("apply", "-f", "-", stdin=NODE_PORT)
    yield
    cluster.kubectl("delete", "-f", "-", stdin=NODE_PORT)


def why(cluster: Cluster, *words: str) -> tuple[int, list[str]]:
    command: list[str | Path] = [
        Path(sys.executable).with_name("podlane"),
        "why",
        *words,
        f"--kubeconfig={cluster.lab.kubeconfig}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS, check=False)
    return done.returncode, (done.stdout + done.stderr).splitlines()


def test_the_verdict_names_the_reason_and_the_command(cluster: Cluster) -> None:
    passing = "delivered: red/red-1 reaches red/red-2 on node-2, because both belong to red (VNID 10)"
    assert why(cluster, "red/red-1", "red/red-2", "-p", "8080") == (0, [passing])
    join = "to change it: podlane network join red --to blue"
    refused = "dropped because red (VNID 10) may not reach blue (VNID 11)"
    assert why(cluster, "red/red-1", "blue/blue-2") == (1, [refused, join])
    to_service = "dropped because red (VNID 10) may not connect to the service blue/demo (VNID 11)"
    for name in ("blue/demo", "demo.blue", "demo.blue.svc.cluster.local"):
        assert why(cluster, "red/red-1", name) == (1, [to_service, join])
    code, lines = why(cluster, "red/red-1", "demo")
    assert (code, len(lines)) == (0, 1)
    assert "an endpoint of the service red/demo, because both belong to red (VNID 10)" in lines[0]
    code, lines = why(cluster, "red/red-1", "default/default-3")
    assert (code, lines[0].partition(", ")[2]) == (0, "because default has VNID 0, which is open to all projects")
    assert why(cluster, "node-1", "red/red-1") == (0, ["delivered: node-1 reaches red/red-1 on node-1"])


def test_outside_reaches_node_ports(cluster: Cluster) -> None:
    def reached() -> bool:
        return why(cluster, "outside", "red/open")[0] == 0

    wait_until(reached, "the node port is served")
    port = cluster.kubectl("get", "service", "-n", "red", "open", "-o", "jsonpath={.spec.ports[0].nodePort}").stdout
    code, lines = why(cluster, "outside", "node-2", "-p", port)
    assert (code, "an endpoint of the service red/open" in lines[0]) == (0, True)
    assert why(cluster, "outside", "red/open", "-p", "81")[1][0] == "dropped because red/open has no port 81"
    code, lines = why(cluster, "outside", "red/demo")
    assert (code, lines[1][:40]) == (1, "to change it: kubectl patch service -n r")
    code, lines = why(cluster, "outside", "red/red-1")
    assert (code, lines[1]) == (1, "to change it: kubectl expose pod -n red red-1 --type=NodePort --port=PORT")


def test_without_an_answer_the_exit_code_is_another_one(cluster: Cluster) -> None:
    assert why(cluster, "nope/a", "red/red-1") == (3, ["podlane: there is no project 'nope'"])
    headless = "podlane: the service red/headless has no cluster IP: name one of its pods or its address"
    assert why(cluster, "red/red-1", "red/headless") == (3, [headless])
    code, lines = why(cluster, "red/red-1", "mars")
    assert (code, lines[0].partition(";")[0]) == (3, "podlane: no pod, service or node has the name 'mars'")
    assert why(cluster, "outside", "outside")[0] == 2
    loopback = (
        "podlane: not judged: packets to 127.0.0.1 do not leave red/red-1: the address is that of the sender itself"
    )
    assert why(cluster, "red/red-1", "127.0.0.1") == (3, [loopback])
    stranger = "podlane: SRC is 192.0.2.1, which is no address of the cluster; outside is accepted"
    assert why(cluster, "192.0.2.1", "red/red-1") == (2, [stranger])
