"""Packages of the commit before, and of this one again, on a cluster with traffic."""

from __future__ import annotations

import pytest

from tests.testbed.hosts.machine import Machine
from tests.testbed.hosts.site import Site, apt_get, container_id, pinned, update

UNITS = {"podlane-master": ("podlane-master",), "podlane-node": ("podlane-sdn", "podlane-node-agent")}
CONFIGS = "/etc/podlane/*.yaml"


def version(host: Machine, package: str) -> str:
    return host.run("dpkg-query", "-W", "-f", "${Version}", package)


def change(site: Site, host: Machine, package: str, to: str) -> None:
    """Bring a machine to a version, and see that its daemons are new, and that nothing else changed."""
    containers = {name: container_id(pod) for name, pod in site.pods().items()}
    configs = host.shell(f"cat {CONFIGS}")
    before = {unit: host.main_pid(unit) for unit in UNITS[package]}
    action = "downgraded" if version(host, package) == site.repository.current else "upgraded"
    with site.measured(f"{host.name}: {package} {action}", "red-1", "red-2") as interruption:
        apt_get(host, "install", "--allow-downgrades", *pinned(to, "podlane", package))
    assert version(host, package) == version(host, "podlane") == to
    after = {unit: host.main_pid(unit) for unit in UNITS[package]}
    assert not {0, *before.values()} & set(after.values()), "the daemons of the new version run"
    assert host.shell(f"cat {CONFIGS}") == configs
    site.wait_whole()
    assert {name: container_id(pod) for name, pod in site.pods().items()} == containers
    assert interruption.lost == 0


def check_mixed_versions(site: Site) -> None:
    """A newer master works with older nodes: pods end and start, and the API reaches into them."""
    old, pod = version(site.nodes["node-1"], "podlane-node"), "blue-1"
    assert old == site.repository.previous != version(site.master, "podlane-master")
    before = container_id(site.pods()[pod])
    site.kubectl("delete", "pod", "-n", "blue", pod)
    site.create_demo()
    site.wait_whole()
    assert container_id(site.pods()[pod]) != before
    assert site.kubectl("exec", "-n", "blue", pod, "--", "hostname").strip() == pod


def test_downgrade_and_upgrade_lose_no_packet(site: Site) -> None:
    """The way back goes from the nodes to the master, the way forth from the master to the nodes."""
    repository = site.repository
    assert repository.previous != repository.current
    for host in site.machines:
        update(host)
    site.wait_whole()
    nodes = list(site.nodes.values())
    for host in nodes:
        change(site, host, "podlane-node", repository.previous)
    check_mixed_versions(site)
    change(site, site.master, "podlane-master", repository.previous)
    change(site, site.master, "podlane-master", repository.current)
    for host in nodes:
        change(site, host, "podlane-node", repository.current)


def test_downgrade_needs_a_word(site: Site) -> None:
    """The control: apt does not go back by itself."""
    with pytest.raises(AssertionError, match="--allow-downgrades"):
        apt_get(site.master, "install", *pinned(site.repository.previous, "podlane", "podlane-master"))
