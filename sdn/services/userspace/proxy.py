"""Serves the ports of all services in user space: what the firewall redirects to one port of this node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import IPv4Address

from sdn.services.served_port import PortChange, ServedPort


class UserspaceProxy:
    """One listener for TCP and one for UDP, both at `port` of every address of the node.

    The firewall redirects to it what is addressed to a front; whom a packet was addressed to is asked of the kernel's
    conntrack, so that a packet sent to `port` itself leads nowhere. `is_cluster` tells the addresses of pods and of
    nodes' gateways, `is_node` those under the tunnels: a front is never taken for a backend. SCTP is not served.
    """

    def __init__(self, is_cluster: Callable[[IPv4Address], bool], is_node: Callable[[IPv4Address], bool]) -> None:
        self.port = 0

    async def open(self) -> None:
        """Begin to listen; `port` is set then. Raises NotReady."""

    async def replace(self, ports: Iterable[ServedPort]) -> None:
        """Serve exactly these."""

    async def edit(self, change: PortChange) -> None:
        """Serve what has come, and no longer what has gone: its TCP connections go on."""

    async def close(self, drain_seconds: float = 0) -> None:
        """Take no more; end when every connection has ended, at the latest after so long."""
