"""NetNamespace: the lane of one project. Pure."""

from __future__ import annotations

import datetime

from api.network.types import NetNamespace
from master.kinds.kind import NAME, Column, Kind


def _cells(item: NetNamespace, now: datetime.datetime) -> tuple[object, ...]:
    del now
    return item.metadata.name, item.netid, ",".join(item.egress_ips)


NET_NAMESPACE = Kind(
    type=NetNamespace,
    plural="netnamespaces",
    singular="netnamespace",
    namespaced=False,
    columns=(
        NAME,
        Column("NetID", "The VNID; 0 reaches all and is reached by all.", type="integer"),
        Column("Egress IPs", "The addresses under which the project's pods leave the cluster."),
    ),
    cells=_cells,
)
