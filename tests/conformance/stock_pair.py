"""A node of ours and a node with a kubelet in one real Kubernetes: what users of one see, users of the other see."""

from __future__ import annotations

import json
from pathlib import Path

from lab.command import run
from tests.conformance import images
from tests.conformance.components import KUBELET, kubelet_settings
from tests.conformance.stock import WITH_RUNTIME, StockNode
from tests.contract.test_docker_driver import Dockerd
from tests.e2e.cluster import wait_until

KUBELET_IP = "10.245.48.4"


class StockPair(StockNode):
    """Use as a context manager, then `agent()` and `kubelet()`. Both nodes have the same network."""

    NODES = (*StockNode.NODES, KUBELET)
    _second: Dockerd | None = None

    def kubelet(self) -> None:
        """Start the kubelet with a Docker and an address of its own."""
        run("ip", "-n", self.namespace, "addr", "add", f"{KUBELET_IP}/24", "dev", "node0")
        home = self.root / "kubelet"
        self._second = Dockerd(home / "docker", WITH_RUNTIME, self.place)
        self._second.root.mkdir(parents=True)
        self._running["dockerd of the kubelet"] = self._second.start()
        images.load(str(self._second.socket))
        (home / "settings.json").write_text(
            json.dumps({**kubelet_settings(self.root / "ca.crt"), "address": KUBELET_IP})
        )
        self._start_binary("kubelet", *_flags(self.root, home, self._second.socket))
        wait_until(lambda: self.node_condition("Ready", KUBELET) == "True", "the kubelet is Ready")

    def __exit__(self, *_: object) -> None:
        if "kubelet" in self._running:
            self._stop("kubelet")
        if self._second is not None and self._second.socket.exists():
            docker = ("docker", "-H", f"unix://{self._second.socket}")
            for identity in run(*docker, "ps", "-aq").split():
                run(*docker, "rm", "-f", identity)
        super().__exit__()


def _flags(root: Path, home: Path, docker_socket: Path) -> tuple[str, ...]:
    return (
        f"--config={home}/settings.json",
        f"--kubeconfig={root}/{KUBELET}",
        f"--hostname-override={KUBELET}",
        f"--node-ip={KUBELET_IP}",
        f"--root-dir={home}/state",
        f"--cert-dir={home}/pki",
        f"--docker-endpoint=unix://{docker_socket}",
        "--network-plugin=cni",
        f"--cni-conf-dir={root}/net.d",
        "--cni-bin-dir=/usr/lib/cni",
        f"--cni-cache-dir={home}/cni",
        "--pod-infra-container-image=k8s.gcr.io/pause:3.2",
    )
