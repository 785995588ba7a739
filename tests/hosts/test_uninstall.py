"""Removing Podlane from hosts. This file comes last, because the cluster has one node less afterwards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.testbed.hosts.machine import BASE, Machine
from tests.testbed.hosts.site import (
    OPERATOR_KEYS,
    SOURCE,
    Site,
    apt_get,
    container_id,
    copy_clone,
    install_clone,
    machine,
    start_uplink,
    update,
    write_underlay,
)

DAEMON_JSON = "/etc/docker/daemon.json"
TRACES = """\
ls -d /opt/podlane /run/podlane /usr/bin/podlane* /usr/local/bin/podlane* /usr/lib/*.d/podlane*
ls -d /lib/systemd/system/podlane* /etc/systemd/system/podlane* /etc/systemd/system/*.wants/podlane*
ip -o link | grep -E ' (br0|tun0|vxlan_sys_4789|veth[^@]*)[:@]'
nft list ruleset | grep podlane
systemctl list-units --all --no-legend 'podlane*'
docker ps -aq
"""
DAEMONS = ("podlane-master", "podlane-sdn", "podlane-node-agent")
UNITS = (*DAEMONS, "podlane-docker-network.path", "podlane-docker-network", "podlane.target")
ROLES = ("podlane-master", "podlane-node")
NUMBER = 9
"""Of the address of the machine that is master and node."""

NAME = f"node-{NUMBER - 2}"

STATE = """\
find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path /root \\
    -o -path /var/lib/docker -o -path /var/lib/containerd -o -path /var/lib/dpkg -o -path /var/lib/apt \\
    -o -path /var/cache -o -path /var/log -o -path /var/lib/systemd -o -path /var/tmp \\
    -o -path /var/lib/openvswitch -o -path /var/lib/libuuid -o -name __pycache__ \\) -prune -o -print
ls -d /run/podlane /run/systemd/system/docker.service.d /var/log/pods/* /var/log/containers/* \\
    /var/lib/systemd/*/podlane* /var/lib/systemd/*/*/podlane* 2>/dev/null
find /etc -xdev -type f ! -name '*-' ! -path '/etc/ld.so.cache' -exec sha256sum {} +
ip -o link | sed -E 's/^[0-9]+: ([^:@]+).*/link \\1/'
ip -4 route; ip -4 rule
nft list ruleset
sysctl -a 2>/dev/null | grep -E '^(net|vm|kernel\\.panic|kernel\\.keys)' | grep -vE 'nf_conntrack_count|\\.(stat|neigh)'
ovs-vsctl list-br; ovs-vsctl --columns=other_config,external_ids list Open_vSwitch; ovs-vsctl list CT_Timeout_Policy
docker ps -aq
cut -d' ' -f5 /proc/self/mountinfo | grep -vE '^/(proc|sys|dev|run)'
systemctl list-units --all --no-legend 'podlane*'
"""
"""Prints what an installation could leave behind, one per line."""

KEPT = re.compile(r"(^|  )(/etc/podlane|/var/lib/podlane|/etc/(passwd|group|shadow|gshadow)$)")
"""Lines that a removal leaves: configuration, state, and their user."""


def traces(host: Machine) -> list[str]:
    return host.shell(f"set +e; exec 2>/dev/null\n{TRACES}true").splitlines()


def state(host: Machine) -> set[str]:
    return set(host.shell(f"set +e; {STATE} true").splitlines())


@pytest.fixture(scope="module")
def solo(site: Site) -> Iterator[Machine]:
    """A machine with everything that Podlane depends on, and without Podlane."""
    host = machine(NAME, (site.repository.layer, BASE))
    try:
        host.write("etc/docker/daemon.json", json.dumps({"iptables": False, "bridge": "none", "live-restore": True}))
        host.start()
        update(host)
        needed = "openvswitch-switch nftables iproute2 busybox-static catatonit tcpdump dbus docker.io python3-venv"
        apt_get(host, "install", "--no-install-recommends", needed)
        write_underlay(host, NUMBER)
        host.shell("systemctl daemon-reload; systemctl start testbed-underlay")
        yield host
    finally:
        host.remove()


def test_packages_take_over_a_clone_and_leave_nothing(site: Site, solo: Machine) -> None:
    """A clone's installation, the packages over it under traffic, their removal, and their purge."""
    copy_clone(solo)
    before = state(solo)
    assert len(before) > 5000, "the control: there is something to compare"
    install_clone(solo, "master")
    assert "Docker is here already" in install_clone(solo, "node")
    start_uplink(solo)
    cluster = Site(solo, {NAME: solo}, site.repository)
    cluster.start_master(NUMBER)
    cluster.join(NAME)
    cluster.wait_ready()
    cluster.kubectl("create", "namespace", "red")
    cluster.create_pods({"red-1": NAME, "red-2": NAME})
    cluster.wait_pods(2)
    containers = {pod: container_id(listed) for pod, listed in cluster.pods().items()}

    pids = {unit: solo.main_pid(unit) for unit in DAEMONS}
    with cluster.measured("installed from the clone again", "red-1", "red-2") as interruption:
        install_clone(solo, "node")
    assert interruption.lost == 0
    assert {unit: solo.main_pid(unit) for unit in DAEMONS} == pids

    with cluster.measured("packages over a clone", "red-1", "red-2") as interruption:
        apt_get(solo, "install", *ROLES)
    cluster.wait_pods(2)
    assert interruption.lost == 0
    assert {pod: container_id(listed) for pod, listed in cluster.pods().items()} == containers
    for unit in UNITS:
        assert solo.run("systemctl", "show", "-P", "FragmentPath", unit).startswith("/lib/systemd/system/"), unit
    for unit in DAEMONS:
        assert solo.main_pid(unit) not in {0, pids[unit]}
        assert solo.run("systemctl", "is-enabled", unit).strip() == "enabled"
    assert not solo.run("find", "/etc/systemd", "/opt", "-xtype", "l"), "no link leads nowhere"
    assert not solo.shell("ls -d /usr/local/bin/podlane* /opt/podlane.clone /usr/lib/sysusers.d/podlane.conf || true")
    for target in ("install-master", "install-node", "uninstall"):
        with pytest.raises(AssertionError, match="installed as a package on this host; nothing was changed"):
            solo.shell(f"make -C /{SOURCE} {target} 2>&1")
    assert all(map(solo.is_active, DAEMONS))

    apt_get(solo, "remove", "podlane")
    assert sorted(filter(lambda line: KEPT.search(line) is None, state(solo) ^ before)) == []

    apt_get(solo, "purge", "podlane", *ROLES)
    assert sorted(state(solo) ^ before) == []


def test_clone_is_uninstalled_without_traces(solo: Machine) -> None:
    copy_clone(solo)
    before = state(solo)
    install_clone(solo, "node")
    assert len(state(solo) - before) > 1000, "the control: there is something to remove"
    solo.shell(f"make -C /{SOURCE} uninstall PURGE=1 2>&1")
    assert sorted(state(solo) ^ before) == []


def test_removed_node_has_no_traces_but_configuration_and_state(site: Site) -> None:
    """It can come back, with the pods that the master has of it, until it is purged."""
    node = site.nodes["node-2"]
    assert len(traces(node)) > 15, "the control: there are traces"
    apt_get(node, "remove", "podlane")
    assert traces(node) == []
    kept = node.run("ls", "/etc/podlane", "/var/lib/podlane").split()
    assert {"sdn.yaml", "node-agent.yaml", "node.kubeconfig", "sdn", "node-agent"} <= set(kept)
    assert node.is_active("docker")
    assert node.is_active("openvswitch-switch")
    assert json.loads(node.run("cat", DAEMON_JSON)).items() >= OPERATOR_KEYS.items()
    apt_get(node, "install", "podlane-node")
    start_uplink(node)
    node.run("systemctl", "enable", "--now", "podlane-sdn", "podlane-node-agent")
    site.wait_whole()
    apt_get(node, "purge", "podlane", "podlane-node")
    assert traces(node) == []
    assert node.run("ls", "/etc", "/var/lib").split().count("podlane") == 0
