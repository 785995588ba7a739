"""A node with Podlane's agent and a node with a kubelet in one cluster, to compare their behaviour for users."""

from __future__ import annotations

from lab.process import run
from tests.conformance.kubelet import KUBELET, WithKubelet, kubelet_settings
from tests.testbed.wait import wait_until

KUBELET_IP = "10.245.48.4"


class StockPair(WithKubelet):
    """Use as a context manager, then `agent()` and `kubelet()`."""

    NODES = (*WithKubelet.NODES, KUBELET)

    def kubelet(self) -> None:
        """Start the kubelet, with an address of its own."""
        run("ip", "-n", self.namespace, "addr", "add", f"{KUBELET_IP}/24", "dev", "node0")
        settings = {**kubelet_settings(self.root / "ca.crt"), "address": KUBELET_IP}
        self._start_kubelet(settings, KUBELET_IP, f"--kubeconfig={self.root}/{KUBELET}")
        wait_until(lambda: self.node_condition("Ready", KUBELET) == "True", "the kubelet is Ready")
