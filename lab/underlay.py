"""The cables between the nodes: namespaces, a bridge outside them, and each node's way to it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from lab.command import run, succeeds
from lab.topology import BRIDGE, MASTER, MASTER_CABLE, MASTER_NAMESPACE, OUTSIDE, PHYSICAL, UNDERLAY, Lab, LabNode

LENGTH = UNDERLAY.prefixlen


def kernel_has_datapath() -> bool:
    """Whether Open vSwitch can forward in the kernel; otherwise it reads the node's network card in user space."""
    return Path("/sys/module/openvswitch").exists()


def make(lab: Lab) -> None:
    """Namespaces, bridge and cables. The outside, with OUTSIDE for its address, is this machine itself."""
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "add", f"{OUTSIDE}/{LENGTH}", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    for namespace in lab.namespaces:
        run("ip", "netns", "add", namespace)
        run("ip", "-n", namespace, "link", "set", "lo", "up")
    _plug(MASTER_NAMESPACE, MASTER_CABLE)
    run("ip", "-n", MASTER_NAMESPACE, "addr", "add", f"{MASTER}/{LENGTH}", "dev", "eth0")
    run("ip", "-n", MASTER_NAMESPACE, "route", "add", "default", "via", str(OUTSIDE))
    for node in lab.nodes:
        _plug(node.namespace, node.cable)
        if kernel_has_datapath():
            _address(node, "eth0")


def _plug(namespace: str, cable: str) -> None:
    run("ip", "-n", namespace, "link", "add", "eth0", "type", "veth", "peer", "name", cable, "netns", str(os.getpid()))
    run("ip", "link", "set", cable, "master", BRIDGE, "up")
    run("ip", "-n", namespace, "link", "set", "eth0", "up")
    run("ip", "netns", "exec", namespace, "ethtool", "-K", "eth0", "tx", "off")


def connect(node: LabNode, deadline: float) -> None:
    """Give a node its address, once its switch runs; again after each start of the switch.

    In user space the network card belongs to the bridge PHYSICAL, which carries the address: tunnels find their route
    only through a bridge.
    """
    if kernel_has_datapath():
        return
    mac = run("ip", "netns", "exec", node.namespace, "cat", "/sys/class/net/eth0/address").strip()
    run(
        "ovs-vsctl",
        f"--db=unix:{node.ovs}/db.sock",
        "--timeout=30",
        *("--may-exist", "add-br", PHYSICAL),
        *("--", "set", "bridge", PHYSICAL, "datapath_type=netdev", f"other_config:hwaddr={mac}"),
        *("--", "--may-exist", "add-port", PHYSICAL, "eth0"),
    )
    while not succeeds("ip", "-n", node.namespace, "link", "show", PHYSICAL) and time.monotonic() < deadline:
        time.sleep(0.05)
    _address(node, PHYSICAL)


def _address(node: LabNode, device: str) -> None:
    run("ip", "-n", node.namespace, "addr", "replace", f"{node.address}/{LENGTH}", "dev", device)
    run("ip", "-n", node.namespace, "link", "set", device, "up")
    run("ip", "-n", node.namespace, "route", "replace", "default", "via", str(OUTSIDE))
