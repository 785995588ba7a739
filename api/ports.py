"""Ports of the host that pods take. Pure.

The scheduler sends no pod where its ports are taken, and the node takes none.
"""

from __future__ import annotations

from collections.abc import Iterable

from api.objects import ContainerPort, Pod
from api.resources import containers_of

EVERYWHERE = ("", "0.0.0.0")


def host_ports(pod: Pod) -> tuple[ContainerPort, ...]:
    """Those of its ports that are the host's."""
    return tuple(port for container in containers_of(pod) for port in container.ports if port.host_port)


def clash(wanted: Iterable[ContainerPort], taken: Iterable[ContainerPort]) -> bool:
    """Whether one of the ports is taken: the same number and protocol at the same address, or at any address."""
    there = tuple(taken)
    return any(_same(port, other) for port in wanted for other in there)


def _same(one: ContainerPort, other: ContainerPort) -> bool:
    if (one.host_port, one.protocol or "TCP") != (other.host_port, other.protocol or "TCP"):
        return False
    return one.host_ip == other.host_ip or one.host_ip in EVERYWHERE or other.host_ip in EVERYWHERE
