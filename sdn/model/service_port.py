"""One port of one service, as this node programs it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address


class Protocol(IntEnum):
    """The numbers that IP gives to what services speak."""

    TCP = 6
    UDP = 17
    SCTP = 132


@dataclass(frozen=True, slots=True, order=True)
class EndpointInfo:
    """An endpoint that takes connections; `is_here` tells whether it is a pod of this node."""

    address: IPv4Address
    port: int
    is_local: bool = False


@dataclass(frozen=True, slots=True, order=True)
class ServicePortName:
    """Which port of which service. `port_name` is empty where a service has only one."""

    namespace: str
    service: str
    port_name: str
    protocol: Protocol


@dataclass(frozen=True, slots=True)
class ServicePortInfo:
    """A port that callers may use: at the cluster IP, at external addresses, and at a node port of every node.

    `cluster_ip` is None for a service without one; `outside_ips` are its external and ingress addresses; `node_port`
    is 0 where there is none. `vnid` is that of the service's project; VNID 0 with the flat network.

    Which backends a caller gets depends on where it calls: `inside` at the cluster IP (internalTrafficPolicy is
    applied), `everywhere` for pods and the node itself at any other address, `outside` for callers from outside
    (externalTrafficPolicy is applied). Where none are left, `inside` and `everywhere` callers are refused; callers from
    outside are refused too, unless `keeps_source`: then they get no answer, for another node may have a backend.

    `affinity_seconds` is 0 without session affinity. `keeps_source` is externalTrafficPolicy Local: no masquerade.
    `leaving_ports` are ports at which nobody takes new calls, and somebody may have calls to bring to their end.
    """

    key: ServicePortName
    vnid: int
    cluster_ip: IPv4Address | None
    port: int
    node_port: int = 0
    external_ips: tuple[IPv4Address, ...] = ()
    internal_endpoints: tuple[EndpointInfo, ...] = ()
    cluster_endpoints: tuple[EndpointInfo, ...] = ()
    external_endpoints: tuple[EndpointInfo, ...] = ()
    affinity_timeout_seconds: int = 0
    external_policy_local: bool = False
    draining_ports: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ServicePortChange:
    """What became of some ports: `gone` are values that were served, `come` those that are to be; a port that changed
    is in both."""

    removed: tuple[ServicePortInfo, ...] = ()
    added: tuple[ServicePortInfo, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.removed or self.added)
