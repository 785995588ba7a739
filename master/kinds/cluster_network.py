"""ClusterNetwork: the overlay of the whole cluster. Pure."""

from __future__ import annotations

import datetime

from api.network.types import ClusterNetwork
from master.kinds.kind import NAME, Column, Kind


def _cells(item: ClusterNetwork, now: datetime.datetime) -> tuple[object, ...]:
    del now
    return item.metadata.name, item.network, item.service_network, item.plugin_name


CLUSTER_NETWORK = Kind(
    type=ClusterNetwork,
    plural="clusternetworks",
    singular="clusternetwork",
    namespaced=False,
    columns=(
        NAME,
        Column("Cluster Network", "The network of all pods."),
        Column("Service Network", "The network of all services."),
        Column("Plugin Name", "How pods are connected."),
    ),
    cells=_cells,
)
