"""A machine with only a bootstrap token becomes a node whose serving certificate the master verifies."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.client.kubeconfig import Kubeconfig
from api.pki import keys
from lab.process import run
from tests.conformance.kubernetes_master import NODE_IP
from tests.conformance.podlane_master import OwnNode, master_flags
from tests.testbed.node.single_node import NODE, SingleNode
from tests.testbed.wait import wait_until

FIRST = "podlane:first-certificates"
HEALTH = ("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/healthz")


class Joining(OwnNode):
    """A node with a bootstrap token in a file, and without a certificate."""

    def load_images(self) -> None:
        SingleNode.load_images(self)

    def _start_master(self) -> None:
        self._start("podlane-master", *master_flags(self.root))
        wait_until(self._answers, "podlane-master")
        command = Path(sys.executable).with_name("podlane")
        words = ("node", "token", f"--kubeconfig={self.root}/admin", f"--out={self.root}/token", "--hours=1")
        run(*self.command_prefix, str(command), *words)

    def agent(self, *flags: str) -> None:
        SingleNode.agent(
            self,
            f"--bootstrap-kubeconfig={self.root}/token",
            "--server-tls-bootstrap=true",
            f"--node-ip={NODE_IP}",
            f"--address={NODE_IP}",
            "--port=10250",
            *flags,
        )

    def requests(self) -> dict[str, list[str]]:
        """Return the conditions of certificate requests by name."""
        rows = json.loads(self.kubectl("get", "csr", "-o", "json"))["items"]
        return {
            csr["metadata"]["name"]: [condition["type"] for condition in csr["status"].get("conditions", [])]
            for csr in rows
        }

    def agent_log(self) -> str:
        return (self.root / "podlane-node-agent.log").read_text()


@pytest.fixture
def node() -> Iterator[Joining]:
    with Joining() as joining:
        yield joining


def test_machine_joins_by_bootstrap_token_and_master_verifies_its_server(node: Joining) -> None:
    node.agent()
    wait_until(lambda: node.node_condition("Ready") == "True", "the node is Ready")
    wait_until(lambda: list(node.requests().values()) == [["Approved"]] * 2, "both certificates are approved")
    certificate = keys.parse_certificate(Kubeconfig.load(node.root / "node").certificate)
    assert certificate.subject.user == f"system:node:{NODE}"
    wait_until(lambda: "system:node:node-1" in node.agent_log(), "the serving certificate is in use")
    assert node.kubectl(*HEALTH) == "ok"


def test_killed_agent_finds_its_pending_signing_request_again(node: Joining) -> None:
    node.kubectl(
        "annotate", "clusterrolebinding", FIRST, "rbac.authorization.kubernetes.io/autoupdate=false", "--overwrite"
    )
    node.kubectl("patch", "clusterrolebinding", FIRST, "--type=merge", '--patch={"subjects": []}')
    node.agent()
    wait_until(lambda: list(node.requests().values()) == [[]], "the request waits")
    (name,) = node.requests()
    wait_until(lambda: f"kubectl certificate approve {name}" in node.agent_log(), "the log says for whom")
    os.kill(node.agent_pid, signal.SIGKILL)
    node.agent()
    wait_until(lambda: node.agent_log().count(f"kubectl certificate approve {name}") == 2, "it waits again")
    assert list(node.requests()) == [name]
    assert not (node.root / "node").exists()
    node.kubectl("certificate", "approve", name)
    wait_until(lambda: node.node_condition("Ready") == "True", "the node is Ready")
    wait_until(lambda: set(node.requests()) > {name}, "the request for the serving certificate")
