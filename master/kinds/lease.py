"""Lease: a sign of life. Pure."""

from __future__ import annotations

import datetime

from api.core.node import Lease
from master.kinds.kind import AGE, NAME, Column, Kind, age


def _cells(item: Lease, now: datetime.datetime) -> tuple[object, ...]:
    return item.metadata.name, item.spec.holder_identity, age(item.metadata.creation_timestamp, now)


LEASE = Kind(
    type=Lease,
    plural="leases",
    singular="lease",
    namespaced=True,
    columns=(NAME, Column("Holder", "Who holds it."), AGE),
    cells=_cells,
    made_by_update=True,
)
