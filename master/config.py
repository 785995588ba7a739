"""The configuration of podlane-master: settings, their validation, and the values derived from them. Pure."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from api.network import types
from master.allocators import SubnetPool, SubnetPools

DOMAIN_PATTERN = r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
HostBits = Annotated[int, msgspec.Meta(ge=2, le=30, description="host bits of each node's part of clusterNetwork")]


class ClusterNetworkEntryConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One more range of pods' addresses."""

    cidr: str
    host_subnet_length: HostBits


class MasterConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Configuration of podlane-master, /etc/podlane/master.yaml."""

    listen_address: Annotated[str, msgspec.Meta(description="address to serve on")] = "0.0.0.0"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535, description="TCP port to serve on; 0 takes a free one")] = 8443
    advertise_address: Annotated[
        str, msgspec.Meta(description="address by which nodes and administrators reach the master")
    ] = "10.245.2.2"
    state_dir: Annotated[str, msgspec.Meta(description="where the store and the certificates are kept")] = (
        "/var/lib/podlane/master"
    )
    admin_kubeconfig: Annotated[
        str, msgspec.Meta(description="the administrator's kubeconfig; empty: admin.kubeconfig in stateDir")
    ] = ""
    kubeconfig: Annotated[
        str,
        msgspec.Meta(
            description="file that leads to another cluster's API server: serve nothing, keep nothing, do the work of "
            "the pod network there; empty: be the API server"
        ),
    ] = ""
    health_address: Annotated[
        str, msgspec.Meta(description="with kubeconfig: where /healthz, /readyz and /metrics listen")
    ] = "127.0.0.1:10247"
    plugin: Annotated[
        Literal["ovs-multitenant", "ovs-subnet"],
        msgspec.Meta(description="ovs-multitenant keeps projects apart, ovs-subnet is one flat network"),
    ] = "ovs-multitenant"
    cluster_network: Annotated[str, msgspec.Meta(description="network of all pods, as a CIDR")] = "10.128.0.0/14"
    host_subnet_length: HostBits = 9
    more_cluster_networks: Annotated[
        tuple[ClusterNetworkEntryConfig, ...],
        msgspec.Meta(description="further ranges, used when the first is full: a list of {cidr, hostSubnetLength}"),
    ] = ()
    service_network: Annotated[str, msgspec.Meta(description="network of services, as a CIDR")] = "172.30.0.0/16"
    services_node_port_range: Annotated[
        str, msgspec.Meta(description="ports of the nodes that services are given, as FIRST-LAST")
    ] = "30000-32767"
    external_ip_network_cidrs: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            description="networks in which externalIPs of services may lie, a list of CIDRs; '!' before one excludes "
            "it; empty: services have none"
        ),
    ] = msgspec.field(default=(), name="externalIPNetworkCIDRs")
    ingress_ip_network_cidr: Annotated[
        str,
        msgspec.Meta(
            description="network of the addresses that services of the type LoadBalancer are given, as a CIDR; empty: "
            "somebody else gives them theirs"
        ),
    ] = msgspec.field(default="172.29.0.0/16", name="ingressIPNetworkCIDR")
    mtu: Annotated[
        Annotated[int, msgspec.Meta(ge=576, le=65536)] | None,
        msgspec.Meta(description="MTU of pods; left out: that of the underlay less 50"),
    ] = None
    cluster_domain: Annotated[
        str, msgspec.Meta(pattern=DOMAIN_PATTERN, description="domain of the cluster's names, the same on all nodes")
    ] = "cluster.local"
    dns_port: Annotated[
        int,
        msgspec.Meta(ge=0, le=65535, description="port at advertiseAddress where services are found by name; 0: none"),
    ] = 53
    node_monitor_grace_seconds: Annotated[
        int, msgspec.Meta(ge=1, description="a node not heard of for this long is no longer Ready")
    ] = 50
    verify_node_certificates: Annotated[
        bool,
        msgspec.Meta(description="whether servers of nodes must show a certificate of the cluster's authority"),
    ] = False
    certificate_seconds: Annotated[
        int, msgspec.Meta(ge=600, description="how long certificates hold that nodes and clients ask for, at most")
    ] = 365 * 86400
    finished_pods: Annotated[
        int, msgspec.Meta(ge=0, description="as many pods that have ended are kept, the newest")
    ] = 12_500

    @property
    def kubeconfig_path(self) -> Path:
        """Where the administrator's kubeconfig goes."""
        return Path(self.admin_kubeconfig) if self.admin_kubeconfig else Path(self.state_dir) / "admin.kubeconfig"

    @property
    def plugin_name(self) -> str:
        """The plugin as ClusterNetwork names it."""
        return types.PLUGIN_MULTITENANT if self.plugin == "ovs-multitenant" else types.PLUGIN_SUBNET


def parse_port_range(text: str) -> range:
    """The ports of FIRST-LAST. Raises ValueError."""
    first, dash, last = text.partition("-")
    found = range(int(first), int(last) + 1) if dash else range(0)
    if not found or found[0] < 1 or found[-1] > 65535:
        raise ValueError(f"{text!r} has no ports; such as 30000-32767 is accepted")
    return found


def _service_problems(settings: MasterConfig) -> Iterator[str]:
    try:
        parse_port_range(settings.services_node_port_range)
    except ValueError:
        found = settings.services_node_port_range
        yield f"servicesNodePortRange is {found!r}; FIRST-LAST between 1 and 65535, such as 30000-32767, is accepted"
    for number, text in enumerate(settings.external_ip_network_cidrs):
        try:
            ipaddress.IPv4Network(text.removeprefix("!").strip())
        except ValueError as error:
            accepted = "an IPv4 network such as 203.0.113.0/24, or one behind '!', is accepted"
            yield f"externalIPNetworkCIDRs[{number}] is {text!r}: {error}; {accepted}"


def config_problems(settings: MasterConfig) -> tuple[str, ...]:
    """What is wrong with the settings beyond their types, a sentence for each."""
    found = [*_service_problems(settings)]
    lengths = {"clusterNetwork": ("hostSubnetLength", settings.host_subnet_length)}
    texts = {"clusterNetwork": settings.cluster_network, "serviceNetwork": settings.service_network}
    if settings.ingress_ip_network_cidr:
        texts["ingressIPNetworkCIDR"] = settings.ingress_ip_network_cidr
    for number, entry in enumerate(settings.more_cluster_networks):
        name = f"moreClusterNetworks[{number}]"
        texts[f"{name}.cidr"] = entry.cidr
        lengths[f"{name}.cidr"] = (f"{name}.hostSubnetLength", entry.host_subnet_length)
    networks: dict[str, ipaddress.IPv4Network] = {}
    for name, text in texts.items():
        try:
            networks[name] = ipaddress.IPv4Network(text)
        except ValueError as error:
            found.append(f"{name} is {text!r}: {error}; an IPv4 network such as 10.128.0.0/14 is accepted")
    try:
        ipaddress.IPv4Address(settings.advertise_address)
    except ValueError:
        found.append(f"advertiseAddress is {settings.advertise_address!r}; an IPv4 address is accepted")
    for name, (field, bits) in lengths.items():
        network = networks.get(name)
        if network is not None and bits > 32 - network.prefixlen:
            found.append(
                f"{field} is {bits}, but {name} {network} has only {32 - network.prefixlen} host bits; "
                "at most that many are accepted"
            )
    for (one, network), (other, another) in itertools.combinations(networks.items(), 2):
        if network.overlaps(another):
            found.append(f"{one} {network} and {other} {another} overlap; they must lie apart")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ExternalNetworks:
    """An address is admitted that lies in one of `admitted` and in none of `excluded`."""

    admitted: tuple[IPv4Network, ...] = ()
    excluded: tuple[IPv4Network, ...] = ()

    @classmethod
    def read(cls, texts: Iterable[str]) -> ExternalNetworks:
        """CIDRs; `!` before one excludes it. Raises ValueError."""
        texts = tuple(texts)
        return cls(
            tuple(IPv4Network(text) for text in texts if not text.startswith("!")),
            tuple(IPv4Network(text[1:].strip()) for text in texts if text.startswith("!")),
        )

    def __str__(self) -> str:
        admitted = ", ".join(map(str, self.admitted))
        if not admitted:
            return "the setting externalIPNetworkCIDRs admits none"
        excluded = ", ".join(map(str, self.excluded))
        return f"an address in {admitted}{f' but not in {excluded}' if excluded else ''} is accepted"

    def admits(self, address: IPv4Address) -> bool:
        """Whether a service may have it."""
        if any(address in network for network in self.excluded):
            return False
        return any(address in network for network in self.admitted)


NO_EXTERNAL_NETWORKS = ExternalNetworks()

DEFAULT_NODE_PORTS = range(30000, 32768)


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """What the settings let services have beside their cluster IPs: ports of the nodes, external addresses that users
    choose, and ingress addresses (None: no such) that services of the type LoadBalancer are given.
    """

    node_ports: range = DEFAULT_NODE_PORTS
    external: ExternalNetworks = NO_EXTERNAL_NETWORKS
    ingress: IPv4Network | None = None


DEFAULT_SERVICE_CONFIG = ServiceConfig()
"""Where nothing is said."""


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """The overlay as the settings want it."""

    pools: SubnetPools
    service_network: IPv4Network
    plugin_name: str
    mtu: int | None = None
    services: ServiceConfig = DEFAULT_SERVICE_CONFIG


def network_config(settings: MasterConfig) -> NetworkConfig:
    """The overlay that the settings ask for."""
    first = ClusterNetworkEntryConfig(cidr=settings.cluster_network, host_subnet_length=settings.host_subnet_length)
    entries = (first, *settings.more_cluster_networks)
    return NetworkConfig(
        pools=SubnetPools(tuple(SubnetPool(IPv4Network(one.cidr), one.host_subnet_length) for one in entries)),
        service_network=IPv4Network(settings.service_network),
        plugin_name=settings.plugin_name,
        mtu=settings.mtu,
        services=ServiceConfig(
            node_ports=parse_port_range(settings.services_node_port_range),
            external=ExternalNetworks.read(settings.external_ip_network_cidrs),
            ingress=IPv4Network(settings.ingress_ip_network_cidr) if settings.ingress_ip_network_cidr else None,
        ),
    )
