"""A node of ours that has joined a Kubernetes: etcd, kube-apiserver, controller manager and scheduler.

All of it lives in one network namespace and in one folder. The pods have addresses of CNI's bridge plugin.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import yaml

from lab.process import run, succeeds
from master.auth import pki
from tests.conformance import images
from tests.conformance.build import BINARIES
from tests.testbed.docker import restricted_runc
from tests.testbed.node.single_node import NODE, SingleNode
from tests.testbed.wait import wait_until

PORT = 6443
API, ETCD = f"127.0.0.1:{PORT}", "127.0.0.1:2379"
NODE_IP = "10.245.48.3"
AGENT_PORT = 10250
PODS, SERVICES, API_SERVICE = "10.248.0.0/24", "10.248.240.0/24", "10.248.240.1"
READY_SECONDS = 120.0
QUIET = ("--leader-elect=false", "--bind-address=127.0.0.1", "--port=0")
WITH_RUNTIME = (f"--add-runtime=here={Path(restricted_runc.__file__)}", "--default-runtime=here")
"""Flags of a dockerd on a machine whose root lacks rights."""


class StockNode(SingleNode):
    """Use as a context manager. The agent is a node as `system:node:node-1`, authorised and admitted as such."""

    NODES: tuple[str, ...] = (NODE,)
    """Who has a kubeconfig of its name."""

    def __init__(self) -> None:
        self.namespace = f"podstock-{os.getpid()}"
        super().__init__(WITH_RUNTIME, command_prefix=("nsenter", f"--net=/run/netns/{self.namespace}"))

    def __enter__(self) -> Self:
        run("ip", "netns", "add", self.namespace)
        for words in (("link", "set", "lo", "up"), ("link", "add", "node0", "type", "bridge")):
            run("ip", "-n", self.namespace, *words)
        run("ip", "-n", self.namespace, "addr", "add", f"{NODE_IP}/24", "dev", "node0")
        run("ip", "-n", self.namespace, "link", "set", "node0", "up")
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        run("ip", "netns", "del", self.namespace)

    def load_images(self) -> None:
        """Load all images that the specs name."""
        images.load(self.docker_socket)

    def agent(self, *flags: str) -> None:
        """Start the agent, in place of the one that runs. The API server reaches it."""
        super().agent(
            f"--node-ip={NODE_IP}",
            f"--address={NODE_IP}",
            f"--port={AGENT_PORT}",
            "--network=cni",
            f"--cni-conf-dir={self.root}/net.d",
            "--eviction-hard=memory.available<50Mi",
            "--heartbeat-seconds=10",
            *flags,
        )
        wait_until(lambda: self.node_condition("Ready") == "True", "the node is Ready", READY_SECONDS)

    def put_status(self, pod: str, patch: dict[str, Any]) -> None:
        """Change the status of a pod as a controller does; not every kubectl can."""
        path = f"https://{API}/api/v1/namespaces/default/pods/{pod}/status"
        kind = "Content-Type: application/strategic-merge-patch+json"
        trust = ("--cacert", f"{self.root}/ca.crt", "--cert", f"{self.root}/admin.pem")
        run(
            *self.command_prefix,
            "curl",
            "--http1.1",
            "-sSf",
            "-X",
            "PATCH",
            "-H",
            kind,
            *trust,
            "-d",
            json.dumps(patch),
            path,
        )

    def _start_master(self) -> None:
        self._write_network()
        write_identities(self.root, API, (API_SERVICE, NODE_IP, "kubernetes.default.svc"), self.NODES)
        self._start_binary("etcd", *etcd(self.root))
        self._start_binary("kube-apiserver", *self._api_server_flags())
        wait_until(self._answers, "kube-apiserver", READY_SECONDS)
        self._start_binary("kube-controller-manager", *self._controller_flags())
        self._start_binary("kube-scheduler", *scheduler(self.root))
        wait_until(lambda: self._has("serviceaccount", "default"), "the controllers", READY_SECONDS)

    def _api_server_flags(self) -> tuple[str, ...]:
        return api_server(self.root, NODE_IP, SERVICES)

    def _controller_flags(self) -> tuple[str, ...]:
        return controllers(self.root)

    def _has(self, kind: str, name: str) -> bool:
        return bool(self.kubectl("get", kind, name, "--ignore-not-found"))

    def _start_binary(self, name: str, *flags: str) -> None:
        self._start(program(name), *flags)

    def _answers(self) -> bool:
        return succeeds(
            *self.command_prefix, "kubectl", f"--kubeconfig={self.root}/admin", "get", "namespace", "default"
        )

    def _write_network(self) -> None:
        (self.root / "net.d").mkdir()
        addresses: dict[str, Any] = {"type": "host-local", "dataDir": f"{self.root}/addresses"}
        addresses |= {"ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": "pods0", "isGateway": True, "hairpinMode": True, "ipam": addresses}
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
        (self.root / "net.d" / "pods.conflist").write_text(json.dumps(network))


def program(name: str) -> str:
    """Return the path of a Kubernetes program."""
    return str(shutil.which(name, path=f"{BINARIES}:{os.environ['PATH']}"))


def write_identities(root: Path, api: str, known_as: tuple[str, ...], nodes: tuple[str, ...]) -> None:
    """Write the authority, the server's certificate, and a kubeconfig for each user. That of the first node is
    `node`.
    """
    now = datetime.now(UTC)
    ca = pki.authority(root, now)
    pki.server_certificate(ca, root, known_as, now)
    accounts = pki.client_identity(ca, "service accounts", (), now)
    (root / "accounts.key").write_bytes(accounts.key)
    (root / "accounts.crt").write_bytes(accounts.certificate)
    people: Mapping[str, tuple[str, tuple[str, ...]]] = {
        "admin": ("admin", ("system:masters",)),
        "controllers": ("system:kube-controller-manager", ()),
        "scheduler": ("system:kube-scheduler", ()),
        "network": ("podlane:network", ()),
        "node": (f"system:node:{nodes[0]}", ("system:nodes",)),
        **{node: (f"system:node:{node}", ("system:nodes",)) for node in nodes},
        "kubelet-client": ("kube-apiserver", ("system:masters",)),
    }
    for file, (user, groups) in people.items():
        identity = pki.client_identity(ca, user, groups, now)
        document = pki.kubeconfig(f"https://{api}", ca, identity, user)
        (root / file).write_text(yaml.safe_dump(document))
        (root / f"{file}.pem").write_bytes(identity.key + identity.certificate)


def controllers(root: Path) -> tuple[str, ...]:
    """Flags of kube-controller-manager."""
    return (
        f"--kubeconfig={root}/controllers",
        *QUIET,
        f"--service-account-private-key-file={root}/accounts.key",
        f"--root-ca-file={root}/ca.crt",
        "--controllers=*",
        "--use-service-account-credentials",
    )


def scheduler(root: Path) -> tuple[str, ...]:
    """Flags of kube-scheduler."""
    return (f"--kubeconfig={root}/scheduler", *QUIET)


def etcd(root: Path) -> tuple[str, ...]:
    """Flags of etcd."""
    peer = "http://127.0.0.1:2380"
    return (
        f"--data-dir={root}/etcd",
        f"--listen-client-urls=http://{ETCD}",
        f"--advertise-client-urls=http://{ETCD}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
    )


def api_server(root: Path, address: str, services: str, bind: str = "127.0.0.1") -> tuple[str, ...]:
    """Flags of kube-apiserver, reached at `address`."""
    return (
        f"--etcd-servers=http://{ETCD}",
        f"--bind-address={bind}",
        f"--secure-port={PORT}",
        "--insecure-port=0",
        f"--advertise-address={address}",
        f"--tls-cert-file={root}/server.pem",
        f"--tls-private-key-file={root}/server.pem",
        f"--client-ca-file={root}/ca.crt",
        f"--kubelet-client-certificate={root}/kubelet-client.pem",
        f"--kubelet-client-key={root}/kubelet-client.pem",
        "--kubelet-preferred-address-types=InternalIP",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={root}/accounts.key",
        f"--service-account-key-file={root}/accounts.crt",
        f"--service-cluster-ip-range={services}",
        "--endpoint-reconciler-type=none",
    )
