"""NodeQuery: a question to the network of one node. Pure."""

from __future__ import annotations

import datetime

import msgspec

from api.network.queries import NodeQuery
from master.kinds.kind import AGE, NAME, Column, Kind, age


def _cells(item: NodeQuery, now: datetime.datetime) -> tuple[object, ...]:
    parts = {"trace": item.spec.trace, "report": item.spec.report or None, "services": item.spec.services}
    asks = next((name for name, part in parts.items() if part is not None), "capture")
    answer = item.status.error or ("answered" if item.status.answered else "waiting")
    return item.metadata.name, item.spec.node_name, asks, answer, age(item.metadata.creation_timestamp, now)


def _with_status(new: NodeQuery, old: NodeQuery) -> NodeQuery:
    return msgspec.structs.replace(old, status=new.status)


def _on_update(new: NodeQuery, old: NodeQuery) -> NodeQuery:
    return msgspec.structs.replace(new, spec=old.spec, status=old.status)


NODE_QUERY = Kind(
    type=NodeQuery,
    plural="nodequeries",
    singular="nodequery",
    namespaced=False,
    columns=(
        NAME,
        Column("Node", "The node that is asked."),
        Column("Asks", "trace, report, capture or services."),
        Column("Answer", "Whether the node has answered, or why it could not."),
        AGE,
    ),
    cells=_cells,
    fields=lambda item: {"spec.nodeName": item.spec.node_name},
    on_update=_on_update,
    with_status=_with_status,
    reported=True,
)
