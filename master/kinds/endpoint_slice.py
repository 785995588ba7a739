"""EndpointSlice: some of the endpoints of a service. Pure."""

from __future__ import annotations

import datetime

from api.core.endpoints import EndpointSlice
from master.kinds.kind import AGE, NAME, Column, Kind, age

SHOWN = 3


def _some(found: list[str]) -> str:
    more = f" + {len(found) - SHOWN} more..." if len(found) > SHOWN else ""
    return (",".join(found[:SHOWN]) or "<unset>") + more


def _cells(item: EndpointSlice, now: datetime.datetime) -> tuple[object, ...]:
    return (
        item.metadata.name,
        item.address_type,
        _some([str(port.port or "*") for port in item.ports]),
        _some([address for row in item.endpoints for address in row.addresses]),
        age(item.metadata.creation_timestamp, now),
    )


ENDPOINT_SLICE = Kind(
    type=EndpointSlice,
    plural="endpointslices",
    singular="endpointslice",
    namespaced=True,
    columns=(
        NAME,
        Column("AddressType", "IPv4, IPv6 or FQDN."),
        Column("Ports", "The ports that are open at every address."),
        Column("Endpoints", "The first addresses."),
        AGE,
    ),
    cells=_cells,
    spec=lambda item: (item.endpoints, item.ports),
)
