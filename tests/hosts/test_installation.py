"""What an installation writes, and what it leaves alone."""

from __future__ import annotations

import json

import pytest

from tests.testbed.hosts.machine import BASE
from tests.testbed.hosts.repository import ON_MACHINES
from tests.testbed.hosts.site import OPERATOR_KEYS, Site, apt_get, machine, update

DAEMON_JSON = "/etc/docker/daemon.json"


def test_settings_of_docker_are_merged_before_its_first_start(site: Site) -> None:
    """apt configures docker.io, which starts it, after all packages are unpacked."""
    node = site.nodes["node-1"]
    added = {"iptables": False, "live-restore": True, "bridge": "none"}
    assert json.loads(node.run("cat", DAEMON_JSON)) == {**OPERATOR_KEYS, **added}
    assert "docker0" not in node.run("ip", "-o", "link")
    assert "DOCKER" not in node.run("nft", "list", "ruleset")


def test_packages_are_complete(site: Site) -> None:
    for host, packages in ((site.master, ["podlane-master"]), (site.nodes["node-1"], ["podlane-node"])):
        for package in ("podlane", *packages):
            assert not host.run("dpkg", "--verify", package)
            listed = host.run("dpkg-query", "-L", package).split()
            commands = [path for path in listed if path.startswith("/usr/bin/")]
            assert commands
            for command in commands:
                assert "usage: " in host.run(command, "--help")
                assert any(path.rpartition("/")[2].startswith(f"{command[9:]}.") for path in listed), "its man page"
    assert "complete -" in site.master.run("cat", "/usr/share/bash-completion/completions/podlane")
    assert not site.master.run("find", "/opt/podlane", "-newer", "/var/lib/dpkg/info/podlane.list", "-type", "f")


def test_repository_that_was_changed_is_refused(site: Site) -> None:
    host = site.master
    assert "Reading package lists" in update(host)
    host.shell(f"cp -a /{ON_MACHINES} /root/kept; sed -i 's/^Architecture: all/& /' /{ON_MACHINES}/Packages")
    try:
        host.shell(f"gzip -9nkf /{ON_MACHINES}/Packages; rm -rf /var/lib/apt/lists/_{ON_MACHINES.replace('/', '_')}*")
        with pytest.raises(AssertionError, match=r"Hash Sum mismatch|unexpected size"):
            update(host)
        host.shell(f"sed -i 's/^Origin: .*/Origin: Somebody/' /{ON_MACHINES}/InRelease")
        with pytest.raises(AssertionError, match=r"BADSIG|not signed|signatures were invalid"):
            update(host)
    finally:
        host.shell(f"cp -a /root/kept/. /{ON_MACHINES}/; rm -r /root/kept")
    update(host)


def test_foreign_docker_stays_as_it_is(site: Site) -> None:
    """A dockerd of no package, with settings of its own."""
    host = machine("foreign", (site.repository.layer, BASE))
    try:
        settings = '{"bip": "10.9.0.1/24"}'
        host.write("usr/bin/dockerd", "#!/bin/sh\nexec sleep infinity\n", 0o755)
        host.write("etc/systemd/system/docker.service", "[Service]\nExecStart=/usr/bin/dockerd -H fd://\n")
        host.write("etc/docker/daemon.json", settings)
        host.start()
        update(host)
        apt_get(host, "install", "--no-install-recommends", "podlane-node")
        assert host.run("cat", DAEMON_JSON) == settings
        status = host.run("dpkg-query", "-W", "-f", "${db:Status-Status}", "docker.io", check=False)
        assert status in {"", "not-installed"}
        assert "ovs-vswitchd" in host.run("systemctl", "list-units", "--no-legend"), "the installation came to its end"
        assert not host.run("systemctl", "show", "-P", "DropInPaths", "docker").strip()
        host.shell("mkdir -p /run/podlane; echo DOCKER_NETWORK_OPTIONS=--mtu=1450 > /run/podlane/docker-network")
        host.run("systemctl", "start", "docker", "podlane-docker-network")
        command = host.path(f"proc/{host.main_pid('docker')}/cmdline").read_text().split("\0")
        assert "infinity" in command
        assert "/usr/bin/dockerd -H fd:// $DOCKER_NETWORK_OPTIONS" in host.run("systemctl", "cat", "docker")
    finally:
        host.remove()
