"""A kubelet with a Docker of its own on a second node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab.process import run
from tests.conformance import images
from tests.conformance.kubernetes_master import WITH_RUNTIME, StockNode
from tests.testbed.docker.daemon import Dockerd

KUBELET = "node-2"


class WithKubelet(StockNode):
    """Use as a context manager; a subclass starts the kubelet. Both nodes have the same network."""

    _second: Dockerd | None = None

    def _start_kubelet(self, settings: dict[str, Any], address: str, *identity: str) -> None:
        home = self.root / "kubelet"
        home.mkdir(exist_ok=True)
        self._second = Dockerd(home / "docker", WITH_RUNTIME, self.command_prefix)
        self._second.root.mkdir()
        self._running["dockerd of the kubelet"] = self._second.start()
        images.load(str(self._second.socket))
        (home / "settings.json").write_text(json.dumps(settings))
        self._start_binary(
            "kubelet",
            f"--config={home}/settings.json",
            *identity,
            f"--hostname-override={KUBELET}",
            f"--node-ip={address}",
            f"--root-dir={home}/state",
            f"--cert-dir={home}/pki",
            f"--docker-endpoint=unix://{self._second.socket}",
            "--network-plugin=cni",
            f"--cni-conf-dir={self.root}/net.d",
            "--cni-bin-dir=/usr/lib/cni",
            f"--cni-cache-dir={home}/cni",
            "--pod-infra-container-image=k8s.gcr.io/pause:3.2",
        )

    def __exit__(self, *_: object) -> None:
        if "kubelet" in self._running:
            self._stop("kubelet")
        if self._second is not None and self._second.socket.exists():
            docker = ("docker", "-H", f"unix://{self._second.socket}")
            for identity in run(*docker, "ps", "-aq").split():
                run(*docker, "rm", "-f", identity)
        super().__exit__()


def kubelet_settings(authority_file: Path) -> dict[str, Any]:
    """Return the settings of a kubelet that changes no cgroups, limits and packet filters of the machine."""
    authority = {"x509": {"clientCAFile": str(authority_file)}, "anonymous": {"enabled": False}}
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {**authority, "webhook": {"enabled": True}},
        "authorization": {"mode": "Webhook"},
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "50Mi"},
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "oomScoreAdj": 0,
        "readOnlyPort": 0,
    }
