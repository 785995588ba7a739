"""In which lane who asks for names is, and what that lane may know. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from nameserver.names import GLOBAL_LANE, STRANGER
from sdn.view import View

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, eq=False)
class Askers:
    """`lanes` is the VNID of each address that is known, `docker` those of containers outside of any pod.

    An address of the cluster network of which nothing is known here is a pod of another node: in the flat network it
    may know what all know, otherwise only what is for everybody, and others are not asked for it.
    """

    lanes: Mapping[str, int]
    docker: tuple[IPv4Network, int] | None
    networks: tuple[IPv4Network, ...]

    def lane(self, address: str) -> int:
        """The VNID of who asks; STRANGER for who is not known."""
        known = self.lanes.get(address)
        return self._by_network(IPv4Address(address)) if known is None else known

    def _by_network(self, address: IPv4Address) -> int:
        if self.docker is not None and address in self.docker[0]:
            return self.docker[1]
        return GLOBAL_LANE if any(address in network for network in self.networks) else STRANGER


def askers(view: View) -> Askers:
    """Who may ask on this node: its pods, each in its lane, and the node itself."""
    node, docker = view.node, view.docker
    own = (str(node.gateway), str(node.address), LOOPBACK)
    lanes = {str(pod.address): pod.vnid for pod in view.pods}
    return Askers(
        lanes={**lanes, **dict.fromkeys(own, GLOBAL_LANE)},
        docker=(docker.subnet, docker.vnid) if docker is not None else None,
        networks=() if view.cluster.multitenant else view.cluster.networks,
    )
