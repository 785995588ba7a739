"""What the units promise: users, sandboxes, the journal, and a firewall that drops forwarded packets."""

from __future__ import annotations

import json

import pytest

from tests.testbed.hosts.machine import Machine
from tests.testbed.hosts.site import OUTSIDE, Site
from tests.testbed.wait import wait_until

FORWARD_RULES = 'comment "podlane"'


def status(host: Machine, unit: str, field: str) -> str:
    text = host.path(f"proc/{host.main_pid(unit)}/status").read_text()
    return next(line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(f"{field}:"))


def test_master_runs_as_its_own_user_and_takes_over_the_state_of_one_that_was_root(site: Site) -> None:
    master = site.master
    master.run("systemctl", "stop", "podlane-master")
    master.shell("chown -R root:root /var/lib/podlane/master")
    master.run("systemctl", "start", "podlane-master")
    user = master.run("id", "-u", "podlane-master").strip()
    assert set(status(master, "podlane-master", "Uid").split()) == {user} != {"0"}
    owners = master.run("find", "/var/lib/podlane/master", "-not", "-user", "podlane-master")
    assert not owners
    site.wait_whole()


@pytest.mark.parametrize("unit", ["podlane-master", "podlane-sdn", "podlane-node-agent"])
def test_daemon_is_in_a_sandbox(site: Site, unit: str) -> None:
    host = site.master if unit == "podlane-master" else site.nodes["node-1"]
    assert status(host, unit, "Seccomp") == "2"
    assert status(host, unit, "NoNewPrivs") == "1"
    bounds = int(status(host, unit, "CapBnd"), 16)
    assert not bounds & 1 << 16, "CAP_SYS_MODULE"
    assert int(host.path("proc/1/status").read_text().partition("CapBnd:")[2].split()[0], 16) & 1 << 16


def test_journal_knows_daemon_and_priority_of_a_line(site: Site) -> None:
    """Restarting a switch is worth a warning; starting is not."""
    node = site.nodes["node-1"]
    journal = ("journalctl", "--no-pager", "-o", "json", "--output-fields=PRIORITY,MESSAGE", "-t", "podlane-sdn")
    lines = [json.loads(line) for line in node.run(*journal).splitlines()]
    priorities = {"debug": "7", "info": "6", "warning": "4", "error": "3"}
    seen = set()
    for line in lines:
        level = str(line["MESSAGE"]).partition("level=")[2].partition(" ")[0]
        if str(line["MESSAGE"]).startswith("level="):
            assert line["PRIORITY"] == priorities[level], line
            seen.add(level)
    assert "info" in seen
    assert "level=info" not in node.run(*journal[:-2], "-t", "podlane-sdn", "-p", "warning", check=False)


@pytest.mark.parametrize("daemon", ["master", "sdn", "node-agent"])
def test_reload_takes_a_log_level_and_refuses_a_wrong_configuration(site: Site, daemon: str) -> None:
    """In the sandbox of the unit, which judges the configuration first."""
    host = site.master if daemon == "master" else site.nodes["node-1"]
    unit, file = f"podlane-{daemon}", host.path(f"etc/podlane/{daemon}.yaml")
    before, process = file.read_text(), host.main_pid(unit)

    def log() -> str:
        return host.run("journalctl", "--no-pager", "-o", "cat", "-t", unit)

    try:
        file.write_text(f"{before}\nlogLevel: debug\n")
        host.run("systemctl", "reload", unit)
        wait_until(lambda: 'msg="configuration reloaded" log_level=debug' in log(), "the level has changed")
        reloads = log().count("configuration reloaded")
        file.write_text(f"{before}\nlogLevl: info\n")
        with pytest.raises(AssertionError):
            host.run("systemctl", "reload", unit)
        assert "logLevl" in log()
        assert log().count("configuration reloaded") == reloads
    finally:
        file.write_text(before)
    host.run("systemctl", "reload", unit)
    wait_until(lambda: log().count("configuration reloaded") > reloads, "the former level is back")
    assert host.is_active(unit)
    assert host.main_pid(unit) == process


def test_pods_pass_a_firewall_whose_forward_policy_is_drop(site: Site) -> None:
    """Docker sets that policy. The control: without the rules of podlane-sdn, no packet passes."""
    node = site.nodes["node-1"]
    addresses = {probe.name: probe.address for probe in site.wait_whole().members}
    outwards = (addresses["red-1"], str(OUTSIDE))
    list_rules = ("nft", "list", "chain", "ip", "filter", "FORWARD")
    try:
        node.run("systemctl", "stop", "podlane-sdn")
        node.shell("iptables -F FORWARD; iptables -P FORWARD DROP")
        dropped = site.matrix().reached
        assert outwards not in dropped
        assert (addresses["red-2"], str(OUTSIDE)) in dropped
        node.run("systemctl", "start", "podlane-sdn")
        wait_until(lambda: node.run(*list_rules).count(FORWARD_RULES) == 2, "the rules are there")
        assert outwards in site.wait_whole().reached
        node.run("iptables", "-F", "FORWARD")
        wait_until(lambda: node.run(*list_rules).count(FORWARD_RULES) == 2, "the rules are there again")
        assert "DROP" in node.run("journalctl", "--no-pager", "-t", "podlane-sdn", "-p", "warning")
    finally:
        node.shell("iptables -F FORWARD; iptables -P FORWARD ACCEPT; systemctl start podlane-sdn")
    site.wait_whole()
