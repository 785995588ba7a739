"""The components of Kubernetes with our master: scheduler, controller manager, kube-proxy and a second node."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab.process import run
from master.auth import pki
from tests.conformance.kubelet import KUBELET, WithKubelet, kubelet_settings
from tests.conformance.kubernetes_master import NODE_IP, PODS, PORT, QUIET
from tests.conformance.podlane_master import OwnNode
from tests.testbed.node.single_node import NODE

SCHEDULER = "stock"
"""The name by which pods ask for the scheduler of Kubernetes; ours leaves them to it."""

REFUSED = re.compile(r"Failed to (?:list|watch) \*|is forbidden|the server could not find the requested resource")


class Components(WithKubelet, OwnNode):
    """Use as a context manager; each component is started by its own method, as its own user where that one may.

    Their requests are protobuf, as is their default.
    """

    def scheduler(self) -> None:
        """kube-scheduler, for pods that name SCHEDULER."""
        document = {
            "apiVersion": "kubescheduler.config.k8s.io/v1beta1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self._kubeconfig("system:kube-scheduler"))},
            "leaderElection": {"leaderElect": False},
            "profiles": [{"schedulerName": SCHEDULER}],
        }
        config = self._written("scheduler.json", document)
        self._start_binary("kube-scheduler", f"--config={config}", "--bind-address=127.0.0.1", "--port=0")

    def controllers(self) -> None:
        """kube-controller-manager with all its controllers, as an administrator: we have no roles for each of them."""
        self._start_binary(
            "kube-controller-manager",
            f"--kubeconfig={self.root}/admin",
            f"--service-account-private-key-file={self.root}/master/pki/sa.key",
            f"--root-ca-file={self.root}/master/pki/ca.crt",
            f"--cluster-signing-cert-file={self.root}/master/pki/ca.crt",
            f"--cluster-signing-key-file={self.root}/master/pki/ca.key",
            *QUIET,
        )

    def proxy(self) -> None:
        """kube-proxy with iptables; the limits of connection tracking are the machine's."""
        self._start_binary(
            "kube-proxy",
            f"--kubeconfig={self._kubeconfig('system:kube-proxy')}",
            f"--hostname-override={NODE}",
            f"--cluster-cidr={PODS}",
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        )

    def kubelet(self) -> None:
        """kubelet with a Docker of its own, as the node KUBELET: it joins by a token of `podlane node token`."""
        home = self.root / "kubelet"
        home.mkdir()
        command = str(Path(sys.executable).parent / "podlane")
        run(*self.command_prefix, command, "node", "token", f"--kubeconfig={self.root}/admin", f"--out={home}/token")
        settings = kubelet_settings(self.root / "master" / "pki" / "ca.crt")
        # Our agent is at 10250 of the same namespace.
        settings |= {"rotateCertificates": True, "serverTLSBootstrap": True, "port": 10260}
        self._start_kubelet(settings, NODE_IP, f"--bootstrap-kubeconfig={home}/token", f"--kubeconfig={home}/{KUBELET}")

    def log(self, component: str) -> str:
        """Return the log of a component."""
        return (self.root / f"{component}.log").read_text(errors="replace")

    def refusals(self, component: str) -> list[str]:
        """Lines of its log about requests that our master did not answer as Kubernetes does."""
        return [line for line in self.log(component).splitlines() if REFUSED.search(line)]

    def unsynced(self, component: str) -> set[str]:
        """Return the caches for which a component waits."""
        waits = re.findall(r"Waiting for caches to sync for (.+?) *$", self.log(component), re.MULTILINE)
        synced = re.findall(r"Caches are synced for (.+?) *$", self.log(component), re.MULTILINE)
        return set(waits) - set(synced)

    def answer(self, url: str) -> str:
        """Return the response of curl in the node's namespace; empty if there is none."""
        command = [*self.command_prefix, "curl", "-sSf", "--max-time", "5", url]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def _kubeconfig(self, user: str) -> Path:
        """Write the kubeconfig of a user whose certificate the master's authority has signed."""
        now = datetime.now(UTC)
        ca = pki.authority(self.root / "master" / "pki", now)
        document = pki.kubeconfig(f"https://{NODE_IP}:{PORT}", ca, pki.client_identity(ca, user, (), now), user)
        return self._written(f"{user.rpartition(':')[2]}.kubeconfig", document)

    def _written(self, name: str, document: Mapping[str, Any]) -> Path:
        (self.root / name).write_text(json.dumps(document))
        return self.root / name
