"""Lost tunnels and firewalls that drop packets of pods, with real packets: what the daemon and `podlane doctor` say."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.network.attach import NetworkStatus
from cli.doctor.command import command_in_lab
from lab.process import run
from tests.testbed.netns.cluster import NetnsCluster, netns_lab
from tests.testbed.podlane_cli import podlane_network
from tests.testbed.wait import wait_until

FAST = "--peer-probe-seconds=0.2"
CUT = "podheal-cut"


class Cluster(NetnsCluster):
    """Three nodes whose daemons probe their peers often."""

    def __init__(self) -> None:
        super().__init__(netns_lab("podheal", 74, 3))
        for name, process in self._specifications.items():
            if name.endswith(" sdn"):
                self._specifications[name] = replace(
                    process, command=(*process.command, FAST, "--resync-seconds=1", "--resolv-conf=/dev/null")
                )

    def status(self, node: str) -> NetworkStatus:
        return self.call_cni_server(node, lambda network: network.status())

    def wait_for_lost(self, node: str, *peers: str) -> None:
        wait_until(lambda: self.status(node).lost_peers == peers, f"{node} has lost {peers}")

    @contextlib.contextmanager
    def cut(self, one: str, other: str) -> Iterator[None]:
        """Drop all packets between two nodes, and no others, on the machine that connects them."""
        rules = "".join(
            f"add chain netdev {CUT} {node.veth} {{ type filter hook ingress device {node.veth} priority 0; }}\n"
            f"add rule netdev {CUT} {node.veth} ip saddr {node.address} ip daddr {peer.address} drop\n"
            for node, peer in ((self.nodes[one], self.nodes[other]), (self.nodes[other], self.nodes[one]))
        )
        subprocess.run(["nft", "-f", "-"], input=f"add table netdev {CUT}\n{rules}", text=True, check=True)
        try:
            yield
        finally:
            run("nft", "delete", "table", "netdev", CUT)

    def doctor(self, name: str) -> dict[str, list[dict[str, str]]]:
        """Return the findings of `podlane doctor` by check."""
        with tempfile.TemporaryDirectory() as folder:
            command = command_in_lab(self.lab, name, Path(folder))
            done = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, check=False)
        found: dict[str, list[dict[str, Any]]] = {}
        for finding in json.loads(done.stdout)["findings"]:
            found.setdefault(finding["check"], []).append(finding)
        assert done.returncode == int(any(each["level"] == "problem" for all_ in found.values() for each in all_))
        assert "Traceback" not in done.stderr
        return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        for node in running.lab.nodes:
            (node.root / "node-agent.yaml").write_text("# The defaults.\n")
            running.wait_for_lost(node.name)
        yield running


def levels(found: dict[str, list[dict[str, str]]], check: str) -> set[str]:
    return {finding["level"] for finding in found[check]}


def test_lost_tunnel_is_reported_by_both_ends_until_it_works_again(cluster: Cluster) -> None:
    with cluster.cut("node-1", "node-2"):
        cluster.wait_for_lost("node-1", "node-2")
        cluster.wait_for_lost("node-2", "node-1")
        assert cluster.status("node-3").lost_peers == ()
        shown = podlane_network(cluster.lab.kubeconfig, "status")
        assert "no answer through the tunnels to node-2" in shown
        cluster.kill("node-1 sdn")
        cluster.start("node-1 sdn")
        wait_until(lambda: cluster.network_ready("node-1"), "the daemon")
        seen: list[tuple[str, ...] | None] = []

        def has_seen_the_loss() -> bool:
            seen.append(cluster.status("node-1").lost_peers)
            return seen[-1] == ("node-2",)

        wait_until(has_seen_the_loss, "the loss after a kill of the daemon")
        assert set(seen[:-1]) <= {None}, "a daemon that does not know yet takes nothing back"
    for node in cluster.nodes:
        cluster.wait_for_lost(node)
    assert "no answer through the tunnels" not in podlane_network(cluster.lab.kubeconfig, "status")


def test_peer_whose_node_is_gone_is_not_lost(cluster: Cluster) -> None:
    with cluster.cut("node-1", "node-3"):
        cluster.wait_for_lost("node-1", "node-3")
        ready = [{"type": "Ready", "status": "Unknown"}]
        path = "/api/v1/nodes/node-3/status"
        set_conditions(cluster, path, ready)
        cluster.wait_for_lost("node-1")
        set_conditions(cluster, path, [{"type": "Ready", "status": "True"}])
        cluster.wait_for_lost("node-1", "node-3")
    cluster.wait_for_lost("node-1")


def set_conditions(cluster: Cluster, path: str, conditions: list[dict[str, str]]) -> None:
    body = json.dumps({"status": {"conditions": conditions}}).encode()
    cluster.call_api(lambda client: client.request("PATCH", path, body, "application/merge-patch+json"))


def test_foreign_firewall_is_reported_until_it_accepts_packets_of_pods(cluster: Cluster) -> None:
    inside = ("ip", "netns", "exec", cluster.nodes["node-2"].namespace, "nft")
    assert cluster.status("node-2").firewall_problem == ""
    run(*inside, "add table inet corp; add chain inet corp fw { type filter hook forward priority 0; policy drop; }")
    try:
        wait_until(lambda: "inet corp fw" in (cluster.status("node-2").firewall_problem or ""), "the problem")
        [finding] = cluster.doctor("node-2")["forward-policy"]
        assert finding["level"] == "problem"
        for command in finding["command"].split(" && "):
            run(*inside, command.removeprefix("nft "))
        wait_until(lambda: cluster.status("node-2").firewall_problem == "", "the end of the problem")
    finally:
        run(*inside, "delete table inet corp")


def test_doctor_on_a_node(cluster: Cluster) -> None:
    good = cluster.doctor("node-1")
    for check in ("configuration", "kernel", "openvswitch", "datapath", "forward-policy", "sysctls", "tunnels"):
        assert levels(good, check) == {"ok"}, good[check]
    assert "2 peers answered" in good["tunnels"][0]["found"]
    assert {"docker", "images"} <= {check for check in good if "problem" in levels(good, check)}, "no Docker runs here"
    assert all(finding["command"] for found in good.values() for finding in found if finding["level"] != "ok")


def test_doctor_finds_lost_tunnels_and_an_underlay_with_a_small_mtu(cluster: Cluster) -> None:
    node = cluster.nodes["node-2"]
    run("ip", "link", "set", node.veth, "mtu", "1400")
    try:
        run("ip", "-n", node.namespace, "link", "set", "eth0", "mtu", "1400")
        with cluster.cut("node-1", "node-3"):
            lost, narrow = cluster.doctor("node-1")["tunnels"]
        assert (lost["level"], narrow["level"]) == ("problem", "problem")
        assert ("node-3" in lost["found"], "node-2" in lost["found"]) == (True, False)
        assert ("MTU" in narrow["found"], "node-2" in narrow["found"], "node-3" in narrow["found"]) == (
            True,
            True,
            False,
        )
    finally:
        run("ip", "link", "set", node.veth, "mtu", "1500")
        run("ip", "-n", node.namespace, "link", "set", "eth0", "mtu", "1500")


def test_doctor_without_the_daemon_and_the_switch(cluster: Cluster) -> None:
    cluster.kill("node-3 sdn")
    cluster.kill("node-3 ovs-vswitchd")
    try:
        found = cluster.doctor("node-3")
        assert levels(found, "openvswitch") == {"problem"}
        assert "problem" in levels(found, "daemons")
        assert levels(found, "tunnels") == {"warning"}
    finally:
        cluster.start_switch("node-3")
        cluster.start("node-3 sdn")
        wait_until(lambda: cluster.network_ready("node-3"), "the network")
