"""Secret: what not everybody may read. Pure."""

from __future__ import annotations

import datetime

from api.core.config import Secret
from master.kinds.kind import AGE, NAME, Column, Kind, age


def _cells(item: Secret, now: datetime.datetime) -> tuple[object, ...]:
    return item.metadata.name, item.type, len(item.data), age(item.metadata.creation_timestamp, now)


SECRET = Kind(
    type=Secret,
    plural="secrets",
    singular="secret",
    namespaced=True,
    columns=(NAME, Column("Type", "Which keys are to be expected."), Column("Data", "How many keys it has."), AGE),
    cells=_cells,
    fields=lambda item: {"type": item.type},
)
