"""One port of one service, as this node programs it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from ipaddress import IPv4Address

from msgspec import Struct


class Protocol(IntEnum):
    """The transport protocols of service ports, with their IP protocol numbers."""

    TCP = 6
    UDP = 17
    SCTP = 132


class ProxyMode(StrEnum):
    """How connections to services reach their endpoints: balanced by Open vSwitch and nftables, or by the daemon."""

    NFTABLES = "nftables"
    USERSPACE = "userspace"


class EndpointInfo(Struct, frozen=True, gc=False, order=True):
    """An endpoint that takes connections.

    `is_local` is True for a pod of this node. `is_on_node` is True if the endpoint may be at the address of a node, and
    the pods that may use the service may reach it there.
    """

    address: IPv4Address
    port: int
    is_local: bool = False
    is_on_node: bool = False


@dataclass(frozen=True, slots=True, order=True)
class ServicePortName:
    """Identifies a port of a service. `port_name` is empty if the service has only one."""

    namespace: str
    service: str
    port_name: str
    protocol: Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePortInfo:
    """A service port: its cluster IP, external IPs and node port, and their endpoints.

    `cluster_ip` is None for a service without one. `external_ips` are its external IPs and ingress addresses.
    `node_port` is 0 if there is none. `vnid` is the VNID of the service's project; it is 0 with the flat network.

    The endpoints of a connection depend on its destination and client:

    - `internal_endpoints`: connections to the cluster IP (internalTrafficPolicy is applied)
    - `cluster_endpoints`: connections of pods and of the node itself to any other address
    - `external_endpoints`: connections of external clients (externalTrafficPolicy is applied)

    Connections without endpoints are rejected. One exception: with `external_policy_local`, packets of external clients
    are dropped if only other nodes have endpoints. `external_policy_local` is externalTrafficPolicy Local, which also
    means no masquerade. Pods are external clients of the node ports of other nodes then.

    `health_port` is the healthCheckNodePort of the service that pods reach, 0 if there is none.

    `affinity_timeout_seconds` is 0 without session affinity. `draining_ports` are the ports of endpoints that take no
    new connections but may still have established ones.
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
    health_port: int = 0


@dataclass(frozen=True, slots=True)
class ServicePortChange:
    """Service ports that were removed and added; a port that changed is in both, with its old and its new value."""

    removed: tuple[ServicePortInfo, ...] = ()
    added: tuple[ServicePortInfo, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.removed or self.added)
