"""What the settings ask of the cluster. Pure."""

from __future__ import annotations

from ipaddress import IPv4Network

from master.admission.allocators import SubnetPool, SubnetPools
from master.admission.external_addresses import ExternalNetworks
from master.admission.service_addresses import ServiceWish
from master.controllers.bootstrap import NetworkWish
from master.settings import ClusterNetworkSetting, Settings, port_range


def network_wish(settings: Settings) -> NetworkWish:
    """The overlay that the settings ask for."""
    first = ClusterNetworkSetting(cidr=settings.cluster_network, host_subnet_length=settings.host_subnet_length)
    entries = (first, *settings.more_cluster_networks)
    return NetworkWish(
        pools=SubnetPools(tuple(SubnetPool(IPv4Network(one.cidr), one.host_subnet_length) for one in entries)),
        service_network=IPv4Network(settings.service_network),
        plugin_name=settings.plugin_name,
        mtu=settings.mtu,
        services=ServiceWish(
            node_ports=port_range(settings.services_node_port_range),
            external=ExternalNetworks.read(settings.external_ip_network_cidrs),
            ingress=IPv4Network(settings.ingress_ip_network_cidr) if settings.ingress_ip_network_cidr else None,
        ),
    )
