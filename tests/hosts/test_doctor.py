"""`podlane doctor` and `podlane bundle` on hosts with systemd: what is broken is found, and its command mends it."""

from __future__ import annotations

import json
import stat
import tarfile
from typing import Any

import pytest

from cli.doctor.examine import CHECKS
from cli.doctor.host import AGENT, MASTER, SDN
from tests.testbed.hosts.machine import Machine
from tests.testbed.hosts.site import ADMIN, READY_SECONDS, Site
from tests.testbed.wait import wait_until

UPSTREAM = "no name server of"
"""The machines reach no name server outside of their network."""

DROPPING = "nft 'add table ip other; add chain ip other forward { type filter hook forward priority 0; policy drop; }'"
BROKEN = [
    ("systemctl stop podlane-sdn", "podlane-sdn.service is inactive", "systemctl start podlane-sdn"),
    ("systemctl stop podlane-node-agent", "podlane-node-agent is not ready", "systemctl start podlane-node-agent"),
    ("systemctl stop docker.socket docker", "docker.service is inactive", "systemctl start docker"),
    ("systemctl stop openvswitch-switch", "ovs-vswitchd does not answer", "systemctl start openvswitch-switch"),
    ("systemctl disable podlane-sdn", "does not start with the host", "systemctl enable podlane-sdn"),
    ("docker rmi -f podlane/pause", "no sandbox image podlane/pause", "true"),
    (DROPPING, "drops forwarded packets, also those of pods", "nft delete table ip other || true"),
]
"""What is done to a node, what is found, and what undoes it if the command of the finding does not."""


def findings(host: Machine) -> list[dict[str, Any]]:
    """Return what `podlane doctor` finds, but for the name servers."""
    listed = json.loads(host.run("podlane", "doctor", "-o", "json", check=False))["findings"]
    return [finding for finding in listed if UPSTREAM not in finding["found"]]


def wrong(host: Machine) -> dict[str, str]:
    """Return the command of each finding that is not good, by its sentence."""
    return {finding["found"]: finding["command"] for finding in findings(host) if finding["level"] != "ok"}


def test_doctor_finds_no_problem_on_hosts_that_work(site: Site) -> None:
    """Each check that is for the host says that its subject is good, or warns."""
    for host, daemons in ((site.master, {MASTER}), *((node, {SDN, AGENT}) for node in site.nodes.values())):
        found = findings(host)
        assert [finding for finding in found if finding["level"] == "problem"] == []
        expected = {check.name for check in CHECKS if check.daemons & daemons}
        assert {finding["check"] for finding in found} >= expected - {"dns"}
        assert "problems: " in host.run("podlane", "doctor", check=False).splitlines()[-1]


@pytest.mark.parametrize(("damage", "sentence", "repair"), BROKEN, ids=[sentence for _, sentence, _ in BROKEN])
def test_command_of_a_finding_mends_it(site: Site, damage: str, sentence: str, repair: str) -> None:
    node = site.nodes["node-1"]
    before = wrong(node)
    assert not any(sentence in found for found in before), "the control: it is not found before"
    node.shell(damage)
    try:
        new = {found: command for found, command in wrong(node).items() if found not in before}
        assert any(sentence in found for found in new)
        for command in sorted(set(new.values())):
            node.shell(command, check=False)
        wait_until(lambda: set(wrong(node)) <= set(before), f"mended: {sentence}", READY_SECONDS)
    finally:
        node.shell(repair)
    site.wait_whole()


def test_bundle_has_journals_and_states_of_units_and_no_key(site: Site) -> None:
    for host, daemons in ((site.master, (MASTER,)), (site.nodes["node-1"], (SDN, AGENT))):
        archive = host.path("root/bundle.tar.gz")
        assert "send it to whoever helps you" in host.run("podlane", "bundle", "-o", "/root/bundle.tar.gz")
        assert stat.S_IMODE(archive.stat().st_mode) == 0o600
        with tarfile.open(archive) as tar:
            opened = {member.name.partition("/")[2]: tar.extractfile(member) for member in tar.getmembers()}
            read = {name: file.read().decode(errors="replace") for name, file in opened.items() if file is not None}
        for daemon in daemons:
            assert "level=info" in read[f"journal/{daemon}.txt"]
            assert f"{daemon}.service" in read["units/list.txt"]
            assert "ExecStart=" in read[f"units/{daemon}.txt"]
        assert "problems: " in read["doctor.txt"]
        kubeconfig = ADMIN if host is site.master else "etc/podlane/node.kubeconfig"
        key = host.path(kubeconfig).read_text().partition("client-key-data: ")[2].split()[0]
        assert len(key) > 100
        assert not [name for name, text in read.items() if key[20:60] in text]
        archive.unlink()
