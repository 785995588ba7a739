"""A lab as its user has it: kubectl, docker, and the files on the nodes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from lab.process import run
from lab.topology import Lab, LabNode, Site
from tests.testbed.apiserver.sync_client import SyncClient
from tests.testbed.flow_dump import daemon_flows
from tests.testbed.wait import CALL_SECONDS, wait_until

# Several checkouts can run tests at once, each with its own networks.
OCTET = int(os.environ.get("PODLANE_E2E_OCTET", "24"))
SITE = Site(f"podt{OCTET}", IPv4Network(f"10.245.{OCTET}.0/24"))


class Cluster:
    """A running lab."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.lab = lab
        self._home = home
        self.client = SyncClient(lab.kubeconfig)

    @property
    def nodes(self) -> dict[str, LabNode]:
        return {node.name: node for node in self.lab.nodes}

    def kubectl(self, *words: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator."""
        done = subprocess.run(
            ["kubectl", f"--kubeconfig={self.lab.kubeconfig}", *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=CALL_SECONDS,
            check=False,
            env={**os.environ, "HOME": str(self._home)},
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done

    def apply(self, manifest: str) -> None:
        """Apply a manifest."""
        self.client.apply(manifest)

    def pod(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return a pod, None if there is none."""
        return self.client.get(f"/api/v1/namespaces/{namespace}/pods/{name}") or None

    def status(self, namespace: str, name: str) -> dict[str, Any]:
        """Return the status of a pod, empty if there is none."""
        status: dict[str, Any] = (self.pod(namespace, name) or {}).get("status", {})
        return status

    def wait_running(self, namespace: str, *names: str) -> None:
        """Wait until these pods are ready."""
        for name in names:
            wait_until(lambda name=name: self._is_ready(namespace, name), f"{namespace}/{name} runs")  # type: ignore[misc]

    def _is_ready(self, namespace: str, name: str) -> bool:
        conditions = self.status(namespace, name).get("conditions", [])
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def address(self, namespace: str, name: str) -> str:
        """Return the address of a pod."""
        return str(self.status(namespace, name)["podIP"])

    def container(self, namespace: str, name: str, container: str | None = None) -> str:
        """Return the ID of a pod's container."""
        rows = self.status(namespace, name)["containerStatuses"]
        status = next(status for status in rows if container in {None, status["name"]})
        return str(status["containerID"]).removeprefix("docker://")

    def docker(self, node: str, *words: str) -> str:
        """Run docker on a node."""
        return run("docker", "-H", f"unix://{self.nodes[node].docker_socket}", *words)

    def node_of(self, namespace: str, name: str) -> str:
        """Return the node of a pod."""
        pod = self.pod(namespace, name)
        assert pod is not None
        return str(pod["spec"]["nodeName"])

    def execute(self, namespace: str, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program in a pod's first container."""
        socket = self.nodes[self.node_of(namespace, name)].docker_socket
        container = self.container(namespace, name)
        return subprocess.run(
            ["docker", "-H", f"unix://{socket}", "exec", container, *command],
            capture_output=True,
            text=True,
            timeout=CALL_SECONDS,
            check=False,
        )

    def pings(self, source: tuple[str, str], address: str) -> bool:
        """Return whether one of three pings is answered."""
        return self.execute(*source, "ping", "-c", "3", "-W", "1", "-A", address).returncode == 0

    def pid(self, namespace: str, name: str) -> int:
        """Return the process ID of a pod's container, through which its network namespace is reached."""
        node = self.node_of(namespace, name)
        return int(self.docker(node, "inspect", "-f", "{{.State.Pid}}", self.container(namespace, name)))

    def traces(self, node: str) -> dict[str, Any]:
        """Return what pods leave on a node: containers, links, switch ports, flows, addresses, directories."""
        here = self.nodes[node]
        database = f"--db=unix:{here.ovs}/db.sock"
        pods = here.root / "node-agent" / "pods"
        return {
            "containers": sorted(self.docker(node, "ps", "-aq", "--no-trunc").split()),
            "links": sorted(re.findall(r"^\d+: ([^:@]+)", run("ip", "-n", here.namespace, "link"), re.MULTILINE)),
            "ports": sorted(run("ovs-vsctl", database, "list-ports", "br0").split()),
            "flows": daemon_flows(str(here.ovs / "br0.mgmt")),
            "directories": sorted(entry.name for entry in pods.iterdir()) if pods.exists() else [],
            "guard": run(
                "nsenter", f"--net=/run/netns/{here.namespace}", "nft", "list", "table", "netdev", "podlane-guard"
            ),
        }

    def settled_traces(self, node: str) -> dict[str, Any]:
        """Return `traces` once nothing of a deleted pod is left; the API server may forget it before its node does."""
        wait_until(lambda: self._pods_on_disk(node) <= self._pod_uids(), f"{node} has only pods of the API server")
        return self.traces(node)

    def _pods_on_disk(self, node: str) -> set[str]:
        """Return the UIDs of pods with a container or a directory on a node."""
        labels = self.docker(node, "ps", "-a", "--format", '{{.Label "io.kubernetes.pod.uid"}}').split()
        pods = self.nodes[node].root / "node-agent" / "pods"
        return {*labels, *(entry.name for entry in pods.iterdir())} if pods.exists() else set(labels)

    def _pod_uids(self) -> set[str]:
        """Return the UIDs of all pods. A static pod's UID is an annotation of its mirror pod."""
        listed = json.loads(self.kubectl("get", "pods", "-A", "-o", "json").stdout)["items"]
        metas = [pod["metadata"] for pod in listed]
        hashes = {meta.get("annotations", {}).get("kubernetes.io/config.hash", "") for meta in metas}
        return {meta["uid"] for meta in metas} | hashes

    def kill(self, pid_file: Path) -> None:
        """Kill the process of a PID file by SIGKILL, and wait until it is started again."""
        before = pid_file.read_text()
        os.kill(int(before), signal.SIGKILL)
        wait_until(lambda: pid_file.read_text() not in {before, ""}, f"{pid_file.name} is started again")
