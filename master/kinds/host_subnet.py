"""HostSubnet: the part of the cluster network that belongs to one node. Pure."""

from __future__ import annotations

import datetime

from api.network.types import HostSubnet
from master.kinds.kind import NAME, Column, Kind

NODE_UID = "pod.network.openshift.io/node-uid"
"""Annotation: the uid of the Node for which the master made it."""


def _cells(item: HostSubnet, now: datetime.datetime) -> tuple[object, ...]:
    del now
    return (
        item.metadata.name,
        item.host,
        item.host_ip,
        item.subnet,
        ",".join(item.egress_cidrs),
        ",".join(item.egress_ips),
    )


HOST_SUBNET = Kind(
    type=HostSubnet,
    plural="hostsubnets",
    singular="hostsubnet",
    namespaced=False,
    columns=(
        NAME,
        Column("Host", "The name of the node."),
        Column("Host IP", "The address of the node, behind which the subnet lies."),
        Column("Subnet", "The network of the node's pods."),
        Column("Egress CIDRs", "Networks from which egress addresses may be put on this node."),
        Column("Egress IPs", "Egress addresses on this node."),
    ),
    cells=_cells,
)
