"""Endpoints: where the service of the same name leads to. Pure."""

from __future__ import annotations

import datetime

from api.core.endpoints import Endpoints
from master.kinds.kind import AGE, NAME, Column, Kind, age, or_none

SHOWN = 3


def _cells(item: Endpoints, now: datetime.datetime) -> tuple[object, ...]:
    found = [
        f"{address.ip}:{port.port}" if port is not None else address.ip
        for subset in item.subsets
        for port in (subset.ports or (None,))
        for address in subset.addresses
    ]
    more = f" + {len(found) - SHOWN} more..." if len(found) > SHOWN else ""
    shown = or_none(",".join(found[:SHOWN])) + more
    return item.metadata.name, shown, age(item.metadata.creation_timestamp, now)


ENDPOINTS = Kind(
    type=Endpoints,
    plural="endpoints",
    singular="endpoints",
    namespaced=True,
    short=("ep",),
    columns=(NAME, Column("Endpoints", "The first addresses, with their ports."), AGE),
    cells=_cells,
)
