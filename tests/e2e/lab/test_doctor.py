"""`podlane doctor` and `podlane bundle` on nodes of a lab, and the conditions that they read."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from cli.doctor.command import command_in_lab, lab_doctor
from tests.testbed.lab.cluster import Cluster
from tests.testbed.wait import wait_until

UPSTREAM = "no name server of"
"""The tests' lab reaches no name server outside of it, and the clock of the machine may be set by somebody else."""


@pytest.mark.parametrize("name", ["node-2", "master"])
def test_doctor_finds_no_problem_on_a_host_that_works(
    cluster: Cluster, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lab_doctor(cluster.lab, name, "json")
    text = capsys.readouterr().out
    assert not {word for word in ("live-restore", tempfile.gettempdir(), "/etc/docker", "journalctl") if word in text}
    findings = json.loads(text)["findings"]
    problems = [each for each in findings if each["level"] == "problem" and UPSTREAM not in each["found"]]
    assert not problems
    good = {each["check"] for each in findings if each["level"] == "ok"}
    wanted = {"store", "nodes"} if name == "master" else {"images", "tunnels", "openvswitch", "cgroups"}
    assert good >= wanted | {"configuration", "daemons", "certificates", "ports"}


def test_nodes_report_the_conditions_of_the_pod_network(cluster: Cluster) -> None:
    def conditions() -> dict[str, str]:
        listed = json.loads(cluster.kubectl("get", "node", "node-1", "-o", "json").stdout)["status"]["conditions"]
        return {each["type"]: each["status"] for each in listed if each["type"].startswith("podlane.io/")}

    expected = {"podlane.io/ForwardingBlocked": "False", "podlane.io/TunnelsLost": "False"}
    wait_until(lambda: conditions() == expected, f"{expected} of node-1", 120.0)


def test_bundle_of_a_node_has_its_state_and_no_key(cluster: Cluster, tmp_path: Path) -> None:
    command_in_lab(cluster.lab, "node-2", tmp_path)  # writes the settings
    namespace = cluster.nodes["node-2"].namespace
    words = ("-m", "cli", "bundle", "--config", str(tmp_path), "-o", str(tmp_path / "bundle.tar.gz"))
    subprocess.run(["nsenter", f"--net=/run/netns/{namespace}", sys.executable, *words], check=True)
    with tarfile.open(tmp_path / "bundle.tar.gz") as tar:
        opened = {member.name.partition("/")[2]: tar.extractfile(member) for member in tar.getmembers()}
        read = {name: file.read().decode() for name, file in opened.items() if file is not None}
    assert read["notes.txt"] == ""
    assert "vxlan0" in read["ovs/show.txt"]
    assert "n_packets" in read["ovs/flows.txt"]
    assert "podlane_sdn_peers 2.0" in read["metrics/podlane-sdn.txt"]
    key = cluster.nodes["node-2"].kubeconfig.read_text().partition("client-key-data: ")[2].split()[0]
    assert len(key) > 100
    assert not any(key[20:60] in text for text in read.values())
