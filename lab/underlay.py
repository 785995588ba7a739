"""Creates the underlay network: namespaces of the nodes, a bridge, and veth pairs between them."""

from __future__ import annotations

import os
import time
from ipaddress import IPv4Address
from pathlib import Path

from lab.process import run, succeeds
from lab.topology import UNDERLAY_BRIDGE, Lab, LabNode, Site


def kernel_has_datapath() -> bool:
    """Return True if Open vSwitch has its kernel module; otherwise it forwards in user space."""
    return Path("/sys/module/openvswitch").exists()


def make(lab: Lab) -> None:
    """Create namespaces, bridge and veth pairs. External hosts are this machine itself, by an address on the bridge.

    This machine routes the addresses of load balancers to the first node.
    """
    site = lab.site
    run("ip", "link", "add", site.bridge, "type", "bridge")
    run("ip", "addr", "add", f"{site.outside}/{site.underlay.prefixlen}", "dev", site.bridge)
    # The switch in user space forwards frames as they come, also with a checksum that was left to the hardware.
    run("ethtool", "-K", site.bridge, "tx", "off")
    run("ip", "link", "set", site.bridge, "up")
    for namespace in lab.namespaces:
        run("ip", "netns", "add", namespace)
        run("ip", "-n", namespace, "link", "set", "lo", "up")
        for resolver in _resolvers() if lab.internal else ():
            # A question that is never answered would hold up each pull for seconds.
            run("ip", "-n", namespace, "route", "replace", "unreachable", resolver)
    _add_veth(site, site.master_namespace, site.master_veth)
    _address(site, site.master_namespace, site.master, "eth0")
    for node in lab.nodes:
        _add_veth(site, node.namespace, node.veth)
        if kernel_has_datapath():
            _address(site, node.namespace, node.address, "eth0")
    run("ip", "route", "add", str(site.ingress), "via", str(lab.nodes[0].address), "dev", site.bridge)


def _add_veth(site: Site, namespace: str, veth: str) -> None:
    inside = ("ip", "-n", namespace, "link")
    run(*inside, "add", "eth0", "type", "veth", "peer", "name", veth, "netns", str(os.getpid()))
    run("ip", "link", "set", veth, "master", site.bridge, "up")
    run(*inside, "set", "eth0", "up")
    run("ip", "netns", "exec", namespace, "ethtool", "-K", "eth0", "tx", "off")


def configure_node(node: LabNode, deadline: float) -> None:
    """Give a node its address; to be repeated after each start of its switch. Raises LabError.

    With the kernel's datapath it has one; the database gets its first row, as by Open vSwitch's own start script.
    In user space the network card belongs to the bridge PHYSICAL, which carries the address: tunnels find their route
    only through a bridge. ovsdb-server's socket exists a moment before it accepts connections, so ovs-vsctl retries.
    """
    seconds = max(1, round(deadline - time.monotonic()))
    vsctl = ("ovs-vsctl", f"--db=unix:{node.ovs}/db.sock", "--retry", f"--timeout={seconds}")
    if kernel_has_datapath():
        run(*vsctl, "--no-wait", "init")
        return
    mac = run("ip", "netns", "exec", node.namespace, "cat", "/sys/class/net/eth0/address").strip()
    run(
        *vsctl,
        *("--may-exist", "add-br", UNDERLAY_BRIDGE),
        *("--", "set", "bridge", UNDERLAY_BRIDGE, "datapath_type=netdev", f"other_config:hwaddr={mac}"),
        *("--", "--may-exist", "add-port", UNDERLAY_BRIDGE, "eth0"),
    )
    while not succeeds("ip", "-n", node.namespace, "link", "show", UNDERLAY_BRIDGE) and time.monotonic() < deadline:
        time.sleep(0.05)
    _address(node.site, node.namespace, node.address, UNDERLAY_BRIDGE)
    # Whenever a link changes, the switch learns the kernel's routes anew, and drops what it tunnels meanwhile.
    route = ("ovs/route/add", str(node.site.underlay), UNDERLAY_BRIDGE)
    while not succeeds("ovs-appctl", "-t", f"{node.ovs}/ovs-vswitchd.ctl", *route) and time.monotonic() < deadline:
        time.sleep(0.05)


def _address(site: Site, namespace: str, address: IPv4Address, device: str) -> None:
    inside = ("ip", "-n", namespace)
    run(*inside, "addr", "replace", f"{address}/{site.underlay.prefixlen}", "dev", device)
    run(*inside, "link", "set", device, "up")
    run(*inside, "route", "replace", "default", "via", str(site.outside))


def _resolvers() -> list[str]:
    """Return the IPv4 addresses of this machine's name servers."""
    lines = Path("/etc/resolv.conf").read_text().splitlines() if Path("/etc/resolv.conf").exists() else []
    words = [line.split() for line in lines]
    return [word[1] for word in words if len(word) > 1 and word[0] == "nameserver" and ":" not in word[1]]
