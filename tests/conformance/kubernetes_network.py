"""Two nodes of a Kubernetes cluster whose pods use Podlane's network, with its API server and controllers, and
Podlane's network controllers.

All of it runs in network namespaces and uses one folder. Each node has its own Open vSwitch.
"""

from __future__ import annotations

import os
import signal
import subprocess
from ipaddress import IPv4Network
from pathlib import Path

from api.client.client import Client
from api.network.types import NetNamespace
from lab.topology import LabNode, Process
from master.controllers.network import kubernetes_service
from tests.conformance import kubernetes_master
from tests.conformance.build import CONTROL_PLANE
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.wait import wait_until

SERVICES = "172.30.0.0/16"
MANIFESTS = Path(__file__).resolve().parents[2] / "systemd" / "kubernetes"
NETWORK = "master"
"""The process that does the work of the network; the tests of packets know it by the name of the one it stands for."""


class StockCluster(PacketWorld):
    """Use as a context manager. Our network controllers run as `podlane:network`, nodes as `system:node:NAME`."""

    def __init__(self, prefix: str, third_octet: int) -> None:
        super().__init__(prefix, third_octet)
        self._programs: dict[str, Process] = {}

    @property
    def home(self) -> Path:
        """The directory of the control plane."""
        return self.lab.root / "master"

    def _start_master(self) -> None:
        address = str(self.lab.site.master)
        service = kubernetes_service.service_address(IPv4Network(SERVICES))
        nodes = tuple(node.name for node in self.lab.nodes)
        names = (service, address, "127.0.0.1", "kubernetes.default.svc")
        kubernetes_master.write_identities(self.home, f"{address}:{kubernetes_master.PORT}", names, nodes)
        self.lab.kubeconfig.write_bytes((self.home / "admin").read_bytes())
        flags = {
            "kube-apiserver": kubernetes_master.api_server(self.home, address, SERVICES, bind="0.0.0.0"),
            "kube-controller-manager": kubernetes_master.controllers(self.home),
            "kube-scheduler": kubernetes_master.scheduler(self.home),
        }
        self._start_program("etcd", *kubernetes_master.etcd(self.home))
        for name in CONTROL_PLANE:
            self._start_program(name, *flags[name])
            wait_until(self.master_answers, name, kubernetes_master.READY_SECONDS)
        wait_until(lambda: "default" in self.kubectl("get", "serviceaccounts", "-o", "name"), "the controllers")
        self.install()
        self.start(NETWORK, self.controllers())

    def install(self) -> None:
        """Install Podlane's custom resources and their RBAC rules, and wait until the API server serves them."""
        self.kubectl("apply", "-f", str(MANIFESTS / "network.yaml"))
        self.kubectl("wait", "--for=condition=Established", "crd", "--all")

    def controllers(self, name: str = NETWORK, *flags: str) -> Process:
        """Our network controllers, as they are started."""
        return Process(
            name=name,
            namespace=self.lab.site.master_namespace,
            command=(
                str(self.lab.bin_dir / "podlane-master"),
                f"--kubeconfig={self.home}/network",
                f"--service-network={SERVICES}",
                *flags,
            ),
            pid_file=self.home / f"{name}.pid",
            log_file=self.home / f"{name}.log",
        )

    def ready(self, port: int) -> str:
        """Return the response of /readyz of the controllers at this port; empty if there is none."""
        inside = ("ip", "netns", "exec", self.lab.site.master_namespace)
        command = [*inside, "curl", "-s", "--max-time", "2", f"http://127.0.0.1:{port}/readyz"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    def process_log(self, name: str) -> str:
        """Return the log of a process of the control plane."""
        return (self.home / f"{name}.log").read_text(errors="replace")

    def stop(self, name: str) -> None:
        """SIGTERM a process, and wait for its end."""
        self.signal(name, signal.SIGTERM)
        wait_until(lambda: not self.is_alive(name), f"{name} ends")

    def start_again(self, name: str) -> None:
        """Start a program of Kubernetes as it was started."""
        self.start(name, self._programs[name])

    async def _join(self, client: Client, node: LabNode) -> None:
        del client
        node.kubeconfig.write_bytes((self.home / node.name).read_bytes())

    def _start_program(self, name: str, *flags: str) -> None:
        log, pid = self.home / f"{name}.log", self.home / f"{name}.pid"
        namespace = self.lab.site.master_namespace
        self._programs[name] = Process(name, namespace, (kubernetes_master.program(name), *flags), pid, log)
        self.start_again(name)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator."""
        command = ["kubectl", f"--kubeconfig={self.lab.kubeconfig}", *words]
        environment = {**os.environ, "HOME": str(self.home)}
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def vnids(self) -> dict[str, int]:
        """Return the VNID of each project."""
        net_namespaces = self.call_api(lambda client: client.list(NetNamespace)).items
        return {net_namespace.netname: net_namespace.netid for net_namespace in net_namespaces}
