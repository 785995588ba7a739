"""Nodes of a Kubernetes with Docker, a node agent or kubelet, and our network."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import docker

from api.client.client import Client
from lab import demo, images
from lab.connectivity import Matrix
from lab.topology import LabNode, Process, daemon_processes, docker_process
from tests.conformance import kubernetes_master
from tests.conformance.kubelet import kubelet_settings
from tests.conformance.kubernetes_network import StockCluster
from tests.testbed.wait import wait_until


class AgentCluster(StockCluster):
    """Its nodes have Docker and our agent, and register themselves."""

    async def _register(self, client: Client) -> None:
        for node in self.lab.nodes:
            await self._join(client, node)
            self._start_docker(node)
        for node in self.lab.nodes:
            images.load(str(node.docker_socket))
            self._start_agent(node)

    def _start_agent(self, node: LabNode) -> None:
        self.start(f"{node.name} node-agent", daemon_processes(self.lab, node)[1])

    def _start_docker(self, node: LabNode) -> None:
        for folder in ("manifests", "docker-run"):
            (node.root / folder).mkdir()
        (node.root / "node-agent.yaml").write_text("# As it is.\n")
        process = docker_process(self.lab, node)
        self.start(process.name, replace(process, command=(*process.command, *kubernetes_master.WITH_RUNTIME)))
        wait_until(node.docker_socket.exists, "dockerd")

    def populate(self) -> None:
        """Create the projects of the demo, and a pod of each on each node."""
        ready = '{.items[*].status.conditions[?(@.type=="Ready")].status}'
        wait_until(lambda: self.kubectl("get", "nodes", "-o", f"jsonpath={ready}") == "True True", "nodes ready")
        for project in ("red", "blue"):
            self.kubectl("create", "namespace", project)
        for project in demo.PROJECTS:
            account = f"-n {project} get serviceaccount default --ignore-not-found -o jsonpath={{.secrets}}"
            wait_until(partial(self.kubectl, *account.split()), "an account")
        self.call_api(partial(demo.apply, lab=self.lab))
        wait_until(lambda: self.call_api(demo.pods_running).done == 6, "the pods run")

    def matrix(self) -> Matrix:
        """Return the connectivity matrix that the pods measure."""
        return self.call_api(partial(demo.show, lab=self.lab))


class KubeletCluster(AgentCluster):
    """The last node has a kubelet in place of our agent; it gives pods their network by the plugin podlane-cni."""

    def _start_agent(self, node: LabNode) -> None:
        if node != self.lab.nodes[-1]:
            super()._start_agent(node)
            return
        home = node.root / "kubelet"
        plugins = home / "plugins"
        plugins.mkdir(parents=True)
        (plugins / "podlane-cni").symlink_to(self.lab.bin_dir / "podlane-cni")
        (plugins / "loopback").symlink_to("/usr/lib/cni/loopback")
        (home / "settings.json").write_text(json.dumps(kubelet_settings(self.home / "ca.crt")))
        client = docker.APIClient(base_url=f"unix://{node.docker_socket}")
        client.tag(images.PAUSE, "k8s.gcr.io/pause", "3.2")
        client.close()
        command = (
            kubernetes_master.program("kubelet"),
            f"--config={home}/settings.json",
            f"--kubeconfig={node.kubeconfig}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            f"--root-dir={home}/state",
            f"--cert-dir={home}/pki",
            f"--docker-endpoint=unix://{node.docker_socket}",
            "--network-plugin=cni",
            f"--cni-conf-dir={node.root}/cni",
            f"--cni-bin-dir={plugins}",
            f"--cni-cache-dir={home}/cache",
            "--pod-infra-container-image=k8s.gcr.io/pause:3.2",
        )
        name = f"{node.name} node-agent"
        self.start(name, Process(name, node.namespace, command, home / "pid", node.root / "log" / "kubelet.log"))
