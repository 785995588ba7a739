"""A node of ours that has only a bootstrap token, and a Kubernetes that signs certificates for a minute."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path

from api.client.kubeconfig import BadKubeconfig, Kubeconfig
from api.pki import keys
from api.pki.pem import Certificate, pem_blocks
from tests.conformance.kubernetes_master import AGENT_PORT, API, NODE_IP, StockNode

TOKEN_ID, TOKEN_SECRET = "abcdef", "0123456789abcdef"
GROUP = "system:bootstrappers:kubeadm:default-node-token"
REQUESTS = "system:certificates.k8s.io:certificatesigningrequests"
BINDINGS = (
    ("kubelet-bootstrap", "system:node-bootstrapper", GROUP),
    ("node-autoapprove-bootstrap", f"{REQUESTS}:nodeclient", GROUP),
    ("node-autoapprove-certificate-rotation", f"{REQUESTS}:selfnodeclient", "system:nodes"),
)
"""As kubeadm makes them."""

SIGNED_FOR = "6m"
"""The signer dates certificates five minutes back: one minute is left of it."""


class JoiningNode(StockNode):
    """Use as a context manager, then `hand_out()` and `agent()`. The API server verifies the certificates of nodes."""

    def _api_server_flags(self) -> tuple[str, ...]:
        tokens, verified = "--enable-bootstrap-token-auth", f"--kubelet-certificate-authority={self.root}/ca.crt"
        return (*super()._api_server_flags(), tokens, verified)

    def _controller_flags(self) -> tuple[str, ...]:
        return (
            *super()._controller_flags(),
            f"--cluster-signing-cert-file={self.root}/ca.crt",
            f"--cluster-signing-key-file={self.root}/ca.key",
            f"--cluster-signing-duration={SIGNED_FOR}",
        )

    def hand_out(self) -> None:
        """Create the roles and the token that kubeadm creates for joining nodes, and write the bootstrap kubeconfig of
        this node.
        """
        (self.root / "node").unlink()
        for name, role, group in BINDINGS:
            self.kubectl("create", "clusterrolebinding", name, f"--clusterrole={role}", f"--group={group}")
        reported = {
            "token-id": TOKEN_ID,
            "token-secret": TOKEN_SECRET,
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": GROUP,
        }
        meta = {"name": f"bootstrap-token-{TOKEN_ID}", "namespace": "kube-system"}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": reported}
        secret["type"] = "bootstrap.kubernetes.io/token"
        self.kubectl("apply", "-f", "-", stdin=json.dumps(secret))
        ca = (self.root / "ca.crt").read_bytes()
        joining = Kubeconfig(f"https://{API}", ca, token=f"{TOKEN_ID}.{TOKEN_SECRET}")
        (self.root / "bootstrap").write_text(joining.text("stock", "bootstrap"))

    def agent(self, *flags: str) -> None:
        """Start the agent, in place of the one that runs."""
        super().agent(
            f"--bootstrap-kubeconfig={self.root}/bootstrap",
            "--server-tls-bootstrap=true",
            f"--client-ca-file={self.root}/ca.crt",
            *flags,
        )

    def certificate(self) -> Certificate | None:
        """Return the certificate in the node's kubeconfig, if there is one."""
        try:
            return keys.parse_certificate(Kubeconfig.load(self.root / "node").certificate)
        except BadKubeconfig:
            return None

    def served(self) -> Certificate:
        """Return the serving certificate of port 10250."""
        ask = ("openssl", "s_client", "-connect", f"{NODE_IP}:{AGENT_PORT}", "-showcerts")
        command = [*self.command_prefix, *ask]
        done = subprocess.run(command, input="", capture_output=True, text=True, check=False, timeout=20)
        return keys.parse_certificate(pem_blocks(done.stdout.encode(), "CERTIFICATE"))

    def requests(self, signer: str) -> list[tuple[str, list[str]]]:
        """(name, types of conditions) of the requests to a signer, the oldest first."""
        rows = json.loads(self.kubectl("get", "csr", "-o", "json", "--sort-by=.metadata.creationTimestamp"))["items"]
        return [
            (csr["metadata"]["name"], [condition["type"] for condition in csr["status"].get("conditions", [])])
            for csr in rows
            if csr["spec"]["signerName"] == signer
        ]

    def agent_log(self) -> str:
        """Return the agent's log."""
        return Path(self.root / "podlane-node-agent.log").read_text(errors="replace")


def over(certificate: Certificate) -> bool:
    """Return whether a certificate has expired."""
    return certificate.not_after < datetime.datetime.now(datetime.UTC)
