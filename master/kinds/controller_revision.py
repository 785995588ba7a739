"""ControllerRevision: what a controller's owner said at some time, so that it can be had back. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from msgspec.structs import replace

from api.meta.schema import MISSING, FieldError, without_nulls
from api.meta.types import Json, Object
from api.validation.registry import KindRules
from master.kinds.checks import at_least, unchanged
from master.kinds.kind import AGE, NAME, Column, Kind, age


class ControllerRevision(Object, frozen=True):
    """`data` is the state, in a form that its controller knows; a later one has a higher `revision`."""

    API_VERSION = "apps/v1"
    KIND = "ControllerRevision"

    data: Json = None
    revision: int = 0


def _check(item: ControllerRevision) -> Iterator[FieldError]:
    if item.data is None:
        yield FieldError("data", "null", "data is mandatory", MISSING)
    elif not isinstance(item.data, dict):
        yield FieldError("data", "given", "an object is accepted")
    yield from at_least(("revision", item.revision, 0))


def _on_update(new: ControllerRevision, old: ControllerRevision) -> ControllerRevision:
    """Clients send no nulls, of which its data may have some."""
    return replace(new, data=old.data) if without_nulls(new.data) == without_nulls(old.data) else new


def _cells(item: ControllerRevision, now: datetime.datetime) -> tuple[object, ...]:
    owner = next((row for row in item.metadata.owner_references if row.controller), None)
    name = "<none>"
    if owner is not None:
        group = owner.api_version.rpartition("/")[0]
        name = f"{owner.kind}{'.' if group else ''}{group}".lower() + f"/{owner.name}"
    return item.metadata.name, name, item.revision, age(item.metadata.creation_timestamp, now)


CONTROLLER_REVISION = Kind(
    type=ControllerRevision,
    plural="controllerrevisions",
    singular="controllerrevision",
    namespaced=True,
    columns=(
        NAME,
        Column("Controller", "Whose state it is."),
        Column("Revision", "Its number among the states of its owner."),
        AGE,
    ),
    cells=_cells,
    on_update=_on_update,
    own_rules=KindRules(check=_check, immutable=lambda old, new: unchanged(("data", old.data, new.data))),
)
