"""Units killed, packages upgraded and machines switched off: pods lose nothing but what the part carries.

Each test prints for how long pods did not reach each other, and how long machines took.
"""

from __future__ import annotations

import pytest

from tests.testbed.hosts.machine import Machine
from tests.testbed.hosts.site import Site, container_id, timed
from tests.testbed.wait import wait_until

UNITS = ("podlane-sdn", "podlane-node-agent", "ovs-vswitchd", "ovsdb-server", "docker", "containerd")
KEEP_TRAFFIC = {"podlane-sdn", "podlane-node-agent", "docker", "containerd"}
"""A packet takes its way without these."""

ELSEWHERE = ("red-2", "default-2")
"""Pods of node-2, which reach each other whatever happens to node-1."""


def containers(site: Site) -> dict[str, str]:
    return {name: container_id(pod) for name, pod in site.pods().items()}


def kill(host: Machine, unit: str) -> None:
    """Kill the main process of a unit, and wait until systemd has started it again."""
    before = host.main_pid(unit)
    assert before
    host.run("kill", "-KILL", str(before))
    wait_until(lambda: host.is_active(unit) and host.main_pid(unit) not in {0, before}, f"{unit} is back", pause=0.1)


def test_projects_are_isolated_and_each_reaches_its_own(site: Site) -> None:
    matrix = site.wait_whole()
    addresses = {probe.name: probe.address for probe in matrix.members}
    assert (addresses["red-1"], addresses["red-2"]) in matrix.reached
    assert (addresses["blue-1"], addresses["blue-2"]) in matrix.reached
    assert (addresses["red-1"], addresses["blue-1"]) not in matrix.reached
    assert (addresses["red-1"], addresses["blue-2"]) not in matrix.reached


def test_killed_master_comes_back(site: Site) -> None:
    before = containers(site)
    with site.measured("master killed", "red-1", "red-2") as interruption:
        kill(site.master, "podlane-master")
    site.wait_whole()
    assert interruption.lost == 0
    assert containers(site) == before


@pytest.mark.parametrize("unit", UNITS)
def test_killed_unit_of_a_node_comes_back(site: Site, unit: str) -> None:
    before = containers(site)
    with (
        site.measured(f"{unit} of node-1 killed", *ELSEWHERE) as elsewhere,
        site.measured(f"{unit} of node-1 killed", "red-1", "red-2") as interruption,
    ):
        kill(site.nodes["node-1"], unit)
    site.wait_whole()
    assert containers(site) == before
    assert elsewhere.lost == 0
    assert unit not in KEEP_TRAFFIC or interruption.lost == 0


@pytest.mark.parametrize(("package", "loses_packets"), [("openvswitch-switch", True), ("docker.io", False)])
def test_package_upgrade_ends_in_a_whole_node(site: Site, package: str, loses_packets: bool) -> None:
    """dpkg stops and starts the services of Open vSwitch. It leaves Docker to the operator, who restarts it."""
    node, before = site.nodes["node-1"], containers(site)
    service = {"openvswitch-switch": "ovs-vswitchd", "docker.io": "docker"}[package]
    process, sdn = node.main_pid(service), node.main_pid("podlane-sdn")
    with (
        site.measured(f"{package} of node-1 installed again", *ELSEWHERE) as elsewhere,
        site.measured(f"{package} of node-1 installed again", "red-1", "red-2") as interruption,
    ):
        node.shell(f"DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --reinstall {package} 2>&1", online=True)
        if node.main_pid(service) == process:
            assert package == "docker.io"
            node.run("systemctl", "restart", service)
    assert node.main_pid(service) != process, "the upgrade restarts the service"
    assert node.main_pid("podlane-sdn") == sdn, "the daemon stays"
    site.wait_whole()
    assert containers(site) == before
    assert elsewhere.lost == 0
    assert loses_packets or interruption.lost == 0


def test_stopped_switch_and_docker_come_back_with_the_daemons(site: Site) -> None:
    """The daemons wait while the services are stopped, which stops nothing else."""
    node = site.nodes["node-1"]
    with site.measured("openvswitch-switch and docker stopped and started", "red-1", "red-2"):
        node.run("systemctl", "stop", "openvswitch-switch", "docker.service", "docker.socket")
        assert node.is_active("podlane-sdn")
        assert node.is_active("podlane-node-agent")
        node.run("systemctl", "start", "openvswitch-switch", "docker")
    site.wait_whole()


def test_target_restarts_all_daemons_of_a_node(site: Site) -> None:
    node = site.nodes["node-1"]
    node.run("systemctl", "start", "podlane.target")
    before = [node.main_pid(unit) for unit in ("podlane-sdn", "podlane-node-agent")]
    with site.measured("podlane.target restarted", "red-1", "red-2") as interruption:
        node.run("systemctl", "restart", "podlane.target")
    assert interruption.lost == 0
    assert not set(before) & {0, *(node.main_pid(unit) for unit in ("podlane-sdn", "podlane-node-agent"))}
    site.wait_whole()


def test_rebooted_node_is_whole_again(site: Site) -> None:
    """Pods of the other node do not notice it."""
    with (
        site.measured("node-2 rebooted", "red-1", "default-1") as elsewhere,
        timed("node-2 rebooted: all pods reach each other"),
    ):
        site.nodes["node-2"].reboot()
        site.wait_whole()
    assert elsewhere.lost == 0


def test_rebooted_master_interrupts_no_traffic(site: Site) -> None:
    before = containers(site)
    with (
        site.measured("master rebooted", "red-1", "red-2") as interruption,
        timed("master rebooted: the nodes are ready"),
    ):
        site.master.reboot()
        site.wait_whole()
    assert interruption.lost == 0
    assert containers(site) == before


def test_cluster_is_whole_again_after_a_power_cut(site: Site) -> None:
    for host in site.machines:
        host.cut_power()
    with timed("power cut: all pods reach each other after the start of three machines"):
        site.start(site.machines)
        site.wait_whole()


def test_cluster_is_whole_again_after_it_was_switched_off(site: Site) -> None:
    with timed("three machines are off"):
        for host in site.machines:
            host.power_off()
    with timed("switched off: all pods reach each other after the start of three machines"):
        site.start(site.machines)
        site.wait_whole()
