"""ClusterNetwork, HostSubnet and NetNamespace. Pure."""

from __future__ import annotations

import datetime

from api.network.types import ClusterNetwork, HostSubnet, NetNamespace
from api.validation.registry import RULES
from master.resources.printing import NAME
from master.resources.resource import Column, Resource


def _cluster_network_cells(item: ClusterNetwork, now: datetime.datetime) -> tuple[object, ...]:
    del now
    return item.metadata.name, item.network, item.service_network, item.plugin_name


CLUSTER_NETWORKS = Resource(
    type=ClusterNetwork,
    plural="clusternetworks",
    namespaced=False,
    columns=(
        NAME,
        Column("Cluster Network", "The network of all pods."),
        Column("Service Network", "The network of all services."),
        Column("Plugin Name", "How pods are connected."),
    ),
    rules=RULES[ClusterNetwork],
    cells=_cluster_network_cells,
)

NODE_UID_ANNOTATION = "pod.network.openshift.io/node-uid"
"""Annotation: the uid of the Node for which the master made it."""


def _host_subnet_cells(item: HostSubnet, now: datetime.datetime) -> tuple[object, ...]:
    del now
    return (
        item.metadata.name,
        item.host,
        item.host_ip,
        item.subnet,
        ",".join(item.egress_cidrs),
        ",".join(item.egress_ips),
    )


HOST_SUBNETS = Resource(
    type=HostSubnet,
    plural="hostsubnets",
    namespaced=False,
    columns=(
        NAME,
        Column("Host", "The name of the node."),
        Column("Host IP", "The address of the node, behind which the subnet lies."),
        Column("Subnet", "The network of the node's pods."),
        Column("Egress CIDRs", "Networks from which egress addresses may be put on this node."),
        Column("Egress IPs", "Egress addresses on this node."),
    ),
    rules=RULES[HostSubnet],
    cells=_host_subnet_cells,
)


def _net_namespace_cells(item: NetNamespace, now: datetime.datetime) -> tuple[object, ...]:
    del now
    return item.metadata.name, item.netid, ",".join(item.egress_ips)


NET_NAMESPACES = Resource(
    type=NetNamespace,
    plural="netnamespaces",
    namespaced=False,
    columns=(
        NAME,
        Column("NetID", "The VNID; 0 reaches all and is reached by all.", type="integer"),
        Column("Egress IPs", "The addresses under which the project's pods leave the cluster."),
    ),
    rules=RULES[NetNamespace],
    cells=_net_namespace_cells,
)
