"""ConfigMap: settings for pods. Pure."""

from __future__ import annotations

import datetime

from api.core.config import ConfigMap
from master.kinds.kind import AGE, NAME, Column, Kind, age


def _cells(item: ConfigMap, now: datetime.datetime) -> tuple[object, ...]:
    return item.metadata.name, len(item.data) + len(item.binary_data), age(item.metadata.creation_timestamp, now)


CONFIG_MAP = Kind(
    type=ConfigMap,
    plural="configmaps",
    singular="configmap",
    namespaced=True,
    short=("cm",),
    columns=(NAME, Column("Data", "How many keys it has."), AGE),
    cells=_cells,
)
