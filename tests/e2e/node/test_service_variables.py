"""Environment variables of services."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.testbed.node.single_node import SingleNode
from tests.testbed.wait import wait_until

SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web-ui}
spec: {ports: [{port: 80, name: http}]}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  nodeName: node-1
  enableServiceLinks: LINKS
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: podlane/toolbox, command: [sleep, "100000"], imagePullPolicy: Never}]
"""


@pytest.fixture
def node() -> Iterator[SingleNode]:
    with SingleNode() as single_node:
        single_node.agent()
        yield single_node


def test_enable_service_links_sets_environment_variables_of_services(node: SingleNode) -> None:
    node.kubectl("apply", "-f", "-", stdin=SERVICE)
    address = json.loads(node.kubectl("get", "service", "web-ui", "-o", "json"))["spec"]["clusterIP"]
    for name, links in (("linked", "true"), ("alone", "false")):
        node.kubectl("apply", "-f", "-", stdin=POD.replace("NAME", name).replace("LINKS", links))
    actual = {}
    for name in ("linked", "alone"):
        wait_until(lambda name=name: node.status(name).get("phase") == "Running", f"{name} runs")  # type: ignore[misc]
        (identity,) = node.docker("ps", "-q", "--filter", f"name=k8s_main_{name}_").split()
        lines = node.docker("exec", identity, "env").split("\n")
        actual[name] = {line for line in lines if line.startswith("WEB_UI_")}
    assert actual["alone"] == set()
    assert actual["linked"] >= {f"WEB_UI_SERVICE_HOST={address}", "WEB_UI_SERVICE_PORT_HTTP=80"}
    assert f"WEB_UI_PORT_80_TCP=tcp://{address}:80" in actual["linked"]
