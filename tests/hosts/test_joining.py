"""A node leaves the cluster and joins again; the cluster changes its certificate authority under running pods."""

from __future__ import annotations

import json
import threading

from tests.testbed.hosts.machine import Machine
from tests.testbed.hosts.site import ADMIN, Site
from tests.testbed.wait import wait_until

FIRST = "podlane:first-certificates"
UNITS = ("podlane-sdn", "podlane-node-agent")
STEP_SECONDS = 180.0


def podlane(site: Site, *words: str, check: bool = True) -> str:
    """Run a command on the master."""
    return site.master.run("podlane", *words, "--kubeconfig", ADMIN, check=check)


def pending(site: Site) -> list[str]:
    """Return the certificate requests that wait for approval."""
    items = json.loads(site.kubectl("get", "csr", "-o", "json"))["items"]
    return [csr["metadata"]["name"] for csr in items if not csr["status"].get("conditions")]


def approve(site: Site) -> bool:
    """Approve all requests that wait. Return whether there were any."""
    names = pending(site)
    for name in names:
        site.kubectl("certificate", "approve", name)
    return bool(names)


def restarts(node: Machine) -> list[str]:
    return [node.run("systemctl", "show", "-P", "NRestarts", unit).strip() for unit in UNITS]


def test_node_leaves_and_joins_again_with_approval(site: Site) -> None:
    node = site.nodes["node-2"]
    podlane(site, "node", "drain", "node-2", "--force")
    config = node.run("cat", "/etc/podlane/sdn.yaml")
    node.run("podlane", "node", "reset", "--yes")
    assert not any(map(node.is_active, UNITS))
    assert "tun0" not in node.run("ip", "-o", "link")
    assert "podlane" not in node.run("nft", "list", "ruleset")
    assert "br0" not in node.run("ovs-vsctl", "list-br").split()
    assert not node.path("etc/podlane/node.kubeconfig").exists()
    assert node.run("cat", "/etc/podlane/sdn.yaml") == config
    podlane(site, "node", "remove", "node-2", "--force")
    off = {"metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}, "subjects": []}
    site.kubectl("patch", "clusterrolebinding", FIRST, "--type=merge", "-p", json.dumps(off))
    try:
        line = podlane(site, "node", "token").split()
        output: list[str] = []
        join = threading.Thread(target=lambda: output.append(node.run(*line, "--timeout", str(STEP_SECONDS))))
        join.start()
        wait_until(lambda: pending(site), "the node waits for approval", STEP_SECONDS, pause=0.3)
        assert all(map(node.is_active, UNITS))
        assert restarts(node) == ["0", "0"]
        wait_until(lambda: approve(site), "approved", STEP_SECONDS)
        join.join(STEP_SECONDS)
        assert "waiting for approval; on the master: kubectl certificate approve" in output[0]
        assert "node node-2 is Ready" in output[0]
        assert restarts(node) == ["0", "0"]
    finally:
        site.kubectl("delete", "clusterrolebinding", FIRST)
    assert "this host is the node node-2" in node.run(*line)
    site.create_demo()
    site.wait_whole()


def test_authority_is_replaced_while_pods_run(site: Site) -> None:
    before = {name: pod["status"]["containerStatuses"][0]["containerID"] for name, pod in site.pods().items()}
    old = site.admin.read_bytes()
    with site.measured("authority replaced", "red-1", "red-2") as interruption:
        podlane_ca(site, "rotate")
        for step in ("activate", "retire"):
            wait_until(lambda step=step: "Restart the master" in podlane_ca(site, step), step, STEP_SECONDS, pause=2.0)  # type: ignore[misc]
        for node in site.nodes.values():
            node.run("systemctl", "restart", "podlane-node-agent")
    assert interruption.lost == 0
    assert site.kubectl("get", "nodes", check=False), "the new kubeconfig is accepted"
    new = site.master.path(ADMIN).read_bytes()
    site.admin.write_bytes(old)
    assert not site.kubectl("get", "nodes", check=False), "the old certificates are refused"
    site.admin.write_bytes(new)
    site.wait_whole()
    assert before == {name: pod["status"]["containerStatuses"][0]["containerID"] for name, pod in site.pods().items()}


def podlane_ca(site: Site, step: str) -> str:
    """Take a step, and restart the master if it was taken. Return the output."""
    flags = [] if step == "rotate" else ["--kubeconfig", ADMIN]
    output = site.master.run("podlane", "ca", step, *flags, check=False)
    if "Restart the master" in output:
        site.master.run("systemctl", "restart", "podlane-master")
        site.admin.write_bytes(site.master.path(ADMIN).read_bytes())
    return output
