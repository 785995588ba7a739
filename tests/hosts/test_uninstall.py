"""Removing Podlane from a node. This file comes last, because the cluster has one node less afterwards."""

from __future__ import annotations

import json

from tests.testbed.hosts.site import OPERATOR_KEYS, Site

DAEMON_JSON = "/etc/docker/daemon.json"
TRACES = """\
ls -d /opt/podlane /run/podlane /usr/local/bin/podlane* /etc/systemd/system/podlane* /usr/lib/*.d/podlane.conf
ip -o link | grep -E ' (br0|tun0|vxlan_sys_4789|veth[^@]*)[:@]'
nft list ruleset | grep podlane
systemctl list-units --all --no-legend 'podlane*'
docker ps -aq
"""


def test_uninstalled_node_has_no_traces_but_configuration_and_state(site: Site) -> None:
    node = site.nodes["node-2"]
    before = node.shell(TRACES + "true", check=False).splitlines()
    assert len(before) > 15, "the control: there are traces"
    node.shell("cd /root/podlane; make uninstall 2>&1")
    assert not node.shell("set +e; exec 2>/dev/null\n" + TRACES + "true")
    kept = node.run("ls", "/etc/podlane", "/var/lib/podlane").split()
    assert {"sdn.yaml", "node-agent.yaml", "node.kubeconfig", "sdn", "node-agent"} <= set(kept)
    assert node.is_active("docker")
    assert node.is_active("openvswitch-switch")
    assert json.loads(node.run("cat", DAEMON_JSON)).items() >= OPERATOR_KEYS.items()
    node.shell("cd /root/podlane; make uninstall PURGE=1 2>&1")
    assert node.run("ls", "/etc", "/var/lib").split().count("podlane") == 0
