"""Nodes of a Kubernetes with our agent, our network and Docker: pods of projects over two nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from api.client.client import Client
from api.core.node import Node
from api.network.types import HostSubnet
from lab.connectivity import Probe
from lab.process import run
from tests.conformance.build import CONTROL_PLANE, missing
from tests.conformance.kubernetes_nodes import AgentCluster
from tests.testbed.podlane_cli import podlane_network
from tests.testbed.wait import wait_until

LACKING = missing(CONTROL_PLANE)
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"not built ({', '.join(LACKING)}); `make conformance` builds it")

WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: red}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: podlane/toolbox
        imagePullPolicy: IfNotPresent
        command: [sh, -c, "mkdir /www && echo $(hostname) > /www/index.html && exec httpd -f -p 8080 -h /www"]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[AgentCluster]:
    with AgentCluster("podstka", 52) as running:
        running.populate()
        yield running


def fetched(member: Probe, address: str) -> str:
    """Return the page that a pod gets from the web server of another pod; empty if it gets none."""
    docker = ("docker", "-H", f"unix://{member.docker_socket}", "exec", member.container)
    ask = f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {address} 8080 | tail -n 1"
    return run(*docker, "sh", "-c", ask).strip()


def test_registered_nodes_get_host_subnets(cluster: AgentCluster) -> None:
    async def host_and_node_addresses(client: Client) -> tuple[dict[str, str], dict[str, str]]:
        subnets = (await client.list(HostSubnet)).items
        nodes = (await client.list(Node)).items
        by_address = {node.metadata.name: node.status.addresses[0].address for node in nodes}
        return {subnet.host: subnet.host_ip for subnet in subnets}, by_address

    mine, theirs = cluster.call_api(host_and_node_addresses)
    assert mine == theirs
    assert len(mine) == 2


def test_projects_are_isolated_across_nodes_and_default_reaches_all(cluster: AgentCluster) -> None:
    matrix = cluster.matrix()
    assert len(matrix.members) == 6
    assert matrix.unexpected() == (), matrix.text()
    assert {member.vnid for member in matrix.members if member.project == "default"} == {0}
    assert len({member.vnid for member in matrix.members}) == 3


def test_running_pods_follow_vnid_changes(cluster: AgentCluster) -> None:
    before = cluster.matrix().reached
    for words in (("join", "blue", "--to", "red"), ("isolate", "blue"), ("global", "blue"), ("isolate", "blue")):
        podlane_network(cluster.lab.kubeconfig, *words)
        wait_until(lambda: cluster.matrix().unexpected() == (), "everybody is where the VNIDs say")
        after = cluster.matrix().reached
        assert (after == before) == (words[0] == "isolate")


def test_scheduled_pods_have_the_vnid_of_their_project(cluster: AgentCluster) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=WEB)
    ready = ("-n", "red", "get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}")
    wait_until(lambda: cluster.kubectl(*ready) == "4", "the deployment is ready")
    rows = json.loads(cluster.kubectl("-n", "red", "get", "pods", "-l", "app=web", "-o", "json"))["items"]
    assert {pod["spec"]["nodeName"] for pod in rows} == {"node-1", "node-2"}
    members = {member.project: member for member in cluster.matrix().members}
    for pod in rows:
        assert fetched(members["red"], pod["status"]["podIP"]) == pod["metadata"]["name"]
        assert fetched(members["default"], pod["status"]["podIP"]) == pod["metadata"]["name"]
        assert not fetched(members["blue"], pod["status"]["podIP"])
    cluster.kubectl("-n", "red", "delete", "deployment", "web")
