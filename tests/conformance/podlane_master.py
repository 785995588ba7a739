"""A master and a node of ours in one network namespace, for the specs and the components of Kubernetes."""

from __future__ import annotations

import sys
from pathlib import Path

from lab.process import run
from tests.conformance.kubernetes_master import NODE_IP, PODS, PORT, QUIET, READY_SECONDS, SERVICES, StockNode
from tests.testbed.node.single_node import NODE
from tests.testbed.wait import wait_until


class OwnNode(StockNode):
    """A context manager that runs a StockNode whose API server is Podlane's master."""

    def _start_master(self) -> None:
        run("ip", "-n", self.namespace, "route", "add", SERVICES, "dev", "node0")
        self._write_network()
        self._start("podlane-master", *master_flags(self.root))
        wait_until(self._answers, "podlane-master", READY_SECONDS)
        self.join(NODE, self.root)
        (self.root / NODE).rename(self.root / "node")

    def agent(self, *flags: str) -> None:
        """Start the agent. Our master approves its certificate requests."""
        super().agent("--server-tls-bootstrap=true", *flags)

    def join(self, name: str, home: Path) -> None:
        """Give a node the kubeconfig with which it joins, a file of its name in a folder."""
        home.mkdir(exist_ok=True)
        command = str(Path(sys.executable).parent / "podlane")
        run(
            *self.command_prefix,
            command,
            "node",
            "add",
            name,
            f"--kubeconfig={self.root}/admin",
            f"--out={home}/{name}",
        )

    def tokens(self) -> None:
        """Give service accounts the secrets that they had in the specs' release, by its own controller."""
        self._start_binary(
            "kube-controller-manager",
            f"--kubeconfig={self.root}/admin",
            "--controllers=serviceaccount-token",
            f"--service-account-private-key-file={self.root}/master/pki/sa.key",
            f"--root-ca-file={self.root}/master/pki/ca.crt",
            *QUIET,
        )


def master_flags(root: Path) -> tuple[str, ...]:
    """Return the flags of a master that serves its whole network namespace."""
    return (
        "--listen-address=0.0.0.0",
        f"--advertise-address={NODE_IP}",
        f"--port={PORT}",
        f"--state-dir={root}/master",
        f"--admin-kubeconfig={root}/admin",
        f"--service-network={SERVICES}",
        f"--cluster-network={PODS}",
        "--host-subnet-length=8",
    )
