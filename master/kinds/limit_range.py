"""LimitRange: what one container, pod or claim of a project may ask for, and what it gets if it is silent. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from api.meta import names
from api.meta.quantity import Quantity
from api.meta.schema import DUPLICATE, FORBIDDEN, MISSING, FieldError, quoted
from api.meta.types import Object, Value
from api.validation.registry import KindRules
from master.kinds.amounts import Amounts, Given, read, shortest
from master.kinds.checks import amounts
from master.kinds.kind import NAME, Column, Kind

CONTAINER, POD, CLAIM = "Container", "Pod", "PersistentVolumeClaim"
TYPES = (POD, CONTAINER, CLAIM)
ONE = Quantity(1000)


class LimitRangeItem(Value, frozen=True):
    """`type` is Container, Pod or PersistentVolumeClaim; all others are amounts by the name of the resource.

    `default` are limits and `defaultRequest` requests of containers that name none; `maxLimitRequestRatio` is how
    many times the request a limit may be.
    """

    type: str = ""
    max: dict[str, str | int | float] = {}
    min: dict[str, str | int | float] = {}
    default: dict[str, str | int | float] = {}
    default_request: dict[str, str | int | float] = {}
    max_limit_request_ratio: dict[str, str | int | float] = {}


class LimitRangeSpec(Value, frozen=True):
    """At most one item of each type."""

    limits: tuple[LimitRangeItem, ...] = ()


class LimitRange(Object, frozen=True):
    """Bounds and defaults for what pods and claims of a project ask for."""

    API_VERSION = "v1"
    KIND = "LimitRange"

    spec: LimitRangeSpec = LimitRangeSpec()


def _default(item: LimitRange) -> LimitRange:
    return replace(item, spec=LimitRangeSpec(limits=tuple(_defaulted(row) for row in item.spec.limits)))


def _defaulted(row: LimitRangeItem) -> LimitRangeItem:
    if row.type == CONTAINER:
        default = {**row.max, **row.default}
        row = replace(row, default=default, default_request={**row.min, **default, **row.default_request})
    return replace(row, **{field: shortest(given) for field, given in _fields(row).items()})


def _fields(row: LimitRangeItem) -> dict[str, Given]:
    return {
        "max": row.max,
        "min": row.min,
        "default": row.default,
        "default_request": row.default_request,
        "max_limit_request_ratio": row.max_limit_request_ratio,
    }


_WIRE = {"default_request": "defaultRequest", "max_limit_request_ratio": "maxLimitRequestRatio"}


def _check(item: LimitRange) -> Iterator[FieldError]:
    seen: set[str] = set()
    for number, row in enumerate(item.spec.limits):
        path = f"spec.limits[{number}]"
        if row.type not in TYPES and ("/" not in row.type or names.label_key(row.type)):
            yield FieldError(f"{path}.type", quoted(row.type), "must be a standard limit type or fully qualified")
        if row.type in seen:
            yield FieldError(f"{path}.type", quoted(row.type), "must be unique", DUPLICATE)
        seen.add(row.type)
        yield from _check_row(path, row)


def _check_row(path: str, row: LimitRangeItem) -> Iterator[FieldError]:
    bad = False
    for field, given in _fields(row).items():
        place = f"{path}.{_WIRE.get(field, field)}"
        for problem in (*_check_names(place, given, row.type), *amounts(place, given)):
            bad = True
            yield problem
    if row.type == POD:
        for name, given in (("default", row.default), ("defaultRequest", row.default_request)):
            if given:
                yield FieldError(f"{path}.{name}", "given", "may not be specified when `type` is 'Pod'", FORBIDDEN)
    if row.type == CLAIM and not {"storage"} & {*row.min, *row.max}:
        why = "either minimum or maximum storage value is required, but neither was provided"
        yield FieldError(f"{path}.limits", "{}", why, MISSING)
    if not bad:
        yield from _check_order(path, _defaulted(row))


def _check_names(path: str, given: Given, kind: str) -> Iterator[FieldError]:
    for name in given:
        place = f"{path}[{name}]"
        if names.label_key(name):
            yield FieldError(place, quoted(name), names.label_key(name))
        elif kind in (POD, CONTAINER) and "/" not in name and not _is_standard(name):
            yield FieldError(place, quoted(name), "must be a standard resource for containers")


def _is_standard(name: str) -> bool:
    return name in ("cpu", "memory", "ephemeral-storage") or name.startswith("hugepages-")


def _check_order(path: str, row: LimitRangeItem) -> Iterator[FieldError]:
    fields = {field: read(given) for field, given in _fields(row).items()}
    rows = (
        ("min", "min", "min value", "max", "max value"),
        ("default_request", "min", "min value", "default_request", "default request value"),
        ("default_request", "default_request", "default request value", "max", "max value"),
        ("default_request", "default_request", "default request value", "default", "default limit value"),
        ("default", "min", "min value", "default", "default value"),
        ("default", "default", "default value", "max", "max value"),
    )
    for name in sorted({name for given in fields.values() for name in given}):
        for at, low, low_words, high, high_words in rows:
            less, more = fields[low].get(name), fields[high].get(name)
            if less is not None and more is not None and less.milli > more.milli:
                found = quoted(str(fields[at].get(name, less)))
                why = f"{low_words} {less} is greater than {high_words} {more}"
                yield FieldError(f"{path}.{_WIRE.get(at, at)}[{name}]", found, why)
        yield from _check_ratio(f"{path}.maxLimitRequestRatio[{name}]", name, fields)


def _check_ratio(path: str, name: str, fields: Mapping[str, Amounts]) -> Iterator[FieldError]:
    ratio = fields["max_limit_request_ratio"].get(name)
    if ratio is None:
        return
    if ratio.milli < ONE.milli:
        yield FieldError(path, quoted(str(ratio)), f"ratio {ratio} is less than 1")
    least, most = fields["min"].get(name), fields["max"].get(name)
    if least is not None and most is not None and least.milli and ratio.milli * least.milli > most.milli * ONE.milli:
        yield FieldError(path, quoted(str(ratio)), f"ratio {ratio} is greater than max/min = {most.over(least):.6f}")


def _cells(item: LimitRange, now: datetime.datetime) -> tuple[object, ...]:
    del now
    return item.metadata.name, item.metadata.creation_timestamp


LIMIT_RANGE = Kind(
    type=LimitRange,
    plural="limitranges",
    singular="limitrange",
    namespaced=True,
    short=("limits",),
    columns=(NAME, Column("Created At", "When it was made.", "date")),
    cells=_cells,
    own_rules=KindRules(_default, _check),
)
