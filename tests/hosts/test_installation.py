"""What install.sh writes, and what it leaves alone."""

from __future__ import annotations

import json

from tests.testbed.hosts.machine import BASE
from tests.testbed.hosts.site import OPERATOR_KEYS, STATE, Site, copy_clone, install, machine

DAEMON_JSON = "/etc/docker/daemon.json"


def test_settings_of_docker_are_merged_before_its_first_start(site: Site) -> None:
    node = site.nodes["node-1"]
    added = {"iptables": False, "live-restore": True, "bridge": "none"}
    assert json.loads(node.run("cat", DAEMON_JSON)) == {**OPERATOR_KEYS, **added}
    assert "docker0" not in node.run("ip", "-o", "link")
    assert "DOCKER" not in node.run("nft", "list", "ruleset")


def test_foreign_docker_stays_as_it_is(site: Site) -> None:
    """A dockerd of no package, with settings of its own, on a machine that had only the master's part."""
    host = machine("foreign", (STATE / "image-master/upper", BASE))
    try:
        copy_clone(host)
        settings = '{"bip": "10.9.0.1/24"}'
        host.write("usr/bin/dockerd", "#!/bin/sh\nexec sleep infinity\n", 0o755)
        host.write("etc/systemd/system/docker.service", "[Service]\nExecStart=/usr/bin/dockerd -H fd://\n")
        host.write("etc/docker/daemon.json", settings)
        host.start()
        output = install(host, "node")
        assert "Docker is here already" in output
        assert host.run("cat", DAEMON_JSON) == settings
        assert not host.run("dpkg-query", "-W", "-f", "${db:Status-Status}", "docker.io", check=False)
        assert "ovs-vswitchd" in host.run("systemctl", "list-units", "--no-legend"), "the installation came to its end"
        assert not host.run("systemctl", "show", "-P", "DropInPaths", "docker").strip()
        host.shell("mkdir -p /run/podlane; echo DOCKER_NETWORK_OPTIONS=--mtu=1450 > /run/podlane/docker-network")
        host.run("systemctl", "start", "docker", "podlane-docker-network")
        command = host.path(f"proc/{host.main_pid('docker')}/cmdline").read_text().split("\0")
        assert "infinity" in command
        assert "/usr/bin/dockerd -H fd:// $DOCKER_NETWORK_OPTIONS" in host.run("systemctl", "cat", "docker")
    finally:
        host.remove()


def test_update_interrupts_nothing(site: Site) -> None:
    node = site.nodes["node-1"]
    before = {unit: node.main_pid(unit) for unit in ("podlane-sdn", "podlane-node-agent", "docker", "ovs-vswitchd")}
    with site.measured("installed again", "red-1", "red-2") as interruption:
        install(node, "node")
    assert interruption.lost == 0
    assert {unit: node.main_pid(unit) for unit in before} == before
