"""ClusterNetwork, HostSubnet and NetNamespace. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from api.network.types import ClusterNetwork, HostSubnet, NetNamespace
from api.validation.registry import RULES
from master.resources.printing import NAME
from master.resources.resource import Column, Resource

CLUSTER_NETWORKS = Resource(
    type=ClusterNetwork,
    columns=(
        NAME,
        Column("Cluster Network", "The network of all pods.", lambda network, _: network.network),
        Column("Service Network", "The network of all services.", lambda network, _: network.service_network),
        Column("Plugin Name", "The network plugin.", lambda network, _: network.plugin_name),
    ),
    rules=RULES[ClusterNetwork],
    acted_on_by="created from the settings of the master; the sdn daemons",
)


def _egress_warnings(obj: HostSubnet | NetNamespace) -> Iterator[str]:
    if obj.egress_ips or (isinstance(obj, HostSubnet) and obj.egress_cidrs):
        yield "egress addresses have no effect: pods leave the cluster with the address of their node"


NODE_UID_ANNOTATION = "pod.network.openshift.io/node-uid"
"""Annotation: the uid of the Node for which the master made it."""


HOST_SUBNETS = Resource(
    type=HostSubnet,
    columns=(
        NAME,
        Column("Host", "The name of the node.", lambda host_subnet, _: host_subnet.host),
        Column(
            "Host IP",
            "The address of the node, behind which the subnet lies.",
            lambda host_subnet, _: host_subnet.host_ip,
        ),
        Column("Subnet", "The network of the node's pods.", lambda host_subnet, _: host_subnet.subnet),
        Column(
            "Egress CIDRs",
            "Networks for egress addresses of this node; they have no effect.",
            lambda host_subnet, _: ",".join(host_subnet.egress_cidrs),
        ),
        Column(
            "Egress IPs",
            "Egress addresses of this node; they have no effect.",
            lambda host_subnet, _: ",".join(host_subnet.egress_ips),
        ),
    ),
    rules=replace(RULES[HostSubnet], warnings=_egress_warnings),
    acted_on_by="the sdn daemons",
)


NET_NAMESPACES = Resource(
    type=NetNamespace,
    columns=(
        NAME,
        Column(
            "NetID",
            "The VNID; 0 reaches all and is reached by all.",
            lambda net_namespace, _: net_namespace.netid,
            type="integer",
        ),
        Column(
            "Egress IPs",
            "Egress addresses of the project; they have no effect.",
            lambda net_namespace, _: ",".join(net_namespace.egress_ips),
        ),
    ),
    rules=replace(RULES[NetNamespace], warnings=_egress_warnings),
    acted_on_by="the sdn daemons",
)
