"""ClusterNetwork, HostSubnet and NetNamespace. Pure."""

from __future__ import annotations

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
            "Networks from which egress addresses may be put on this node.",
            lambda host_subnet, _: ",".join(host_subnet.egress_cidrs),
        ),
        Column("Egress IPs", "Egress addresses on this node.", lambda host_subnet, _: ",".join(host_subnet.egress_ips)),
    ),
    rules=RULES[HostSubnet],
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
            "The addresses under which the project's pods leave the cluster.",
            lambda net_namespace, _: ",".join(net_namespace.egress_ips),
        ),
    ),
    rules=RULES[NetNamespace],
    acted_on_by="the sdn daemons",
)
