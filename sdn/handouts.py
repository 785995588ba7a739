"""The files by which others on this node learn of its network. Pure."""

from __future__ import annotations

import json

from sdn.links import DOCKER_BRIDGE
from sdn.view import Cluster, Node

CONFLIST = "10-podlane.conflist"


def conflist(socket: str) -> str:
    """For container runtimes: a CNI network configuration list whose only plugin asks at this socket.

    In the version that runtimes of the years before 1.0.0 speak, too; nothing is missing in it.
    """
    plugin = {"type": "podlane-cni", "socket": socket}
    return json.dumps({"cniVersion": "0.4.0", "name": "podlane", "plugins": [plugin]}, indent=2) + "\n"


def docker_options(cluster: Cluster, node: Node) -> str:
    """For dockerd: what it is to be started with, as a file of environment variables.

    That it leaves the firewall alone must stand in its daemon.json: it counts from its very first start, when there is
    no such file yet, and what it has once set stays.
    """
    options = f"--bridge={DOCKER_BRIDGE} --fixed-cidr={node.docker_subnet} --mtu={cluster.mtu}"
    return f"DOCKER_NETWORK_OPTIONS='{options}'\n"
