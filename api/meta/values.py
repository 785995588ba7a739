"""Value types of fields: Int32, Time, MicroTime, Quantity, IntOrString, with the values that each accepts. Pure.

A field is declared with its value type once. The check of the server, the format in OpenAPI and the type in protobuf
follow from it. Decoding does not check: the server checks objects of clients (`master/serialization/readable.py`).
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from api.meta import quantity

VALUE = "value"
"""Key of the extra data by which a field has a value type."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """A value type."""

    name: str
    """The type in protobuf."""
    error: Callable[[Any], str]
    """Return what is accepted, if the value is not accepted; otherwise an empty text."""
    format: str = ""
    """The format in OpenAPI; empty for that of the Python type."""

    def mark(self) -> msgspec.Meta:
        """Return the mark of a field of this type."""
        return msgspec.Meta(extra={VALUE: self})


def _width_error(bits: int) -> Callable[[Any], str]:
    bound = 1 << bits - 1

    def error(value: Any) -> str:
        is_accepted = not isinstance(value, int) or -bound <= value < bound
        return "" if is_accepted else f"{-bound} to {bound - 1} is accepted"

    return error


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)


def _time_error(value: Any) -> str:
    if isinstance(value, str) and _TIME.fullmatch(value):
        try:
            datetime.datetime.fromisoformat(f"{value[:19]}+00:00")
        except ValueError:
            pass
        else:
            return ""
    return 'a time is accepted, such as "2026-01-31T12:00:00Z"'


def _quantity_error(value: Any) -> str:
    try:
        quantity.parse(value)
    except quantity.BadQuantity as error:
        return str(error)
    return ""


INT32 = ValueType("int32", _width_error(32), format="int32")
INT64 = ValueType("int64", _width_error(64))
TIME = ValueType("Time", _time_error)
MICRO_TIME = ValueType("MicroTime", _time_error)
QUANTITY = ValueType("Quantity", _quantity_error)
INT_OR_STRING = ValueType("IntOrString", INT32.error)

VALUE_TYPES = {value_type.name: value_type for value_type in (INT32, INT64, TIME, MICRO_TIME, QUANTITY, INT_OR_STRING)}
"""Every value type, by its name in protobuf."""

Int32 = Annotated[int, INT32.mark()]
"""A signed 32-bit integer. An `int` is one of 64 bits."""

Time = Annotated[str, TIME.mark()]
"""A time in RFC 3339, in seconds."""

MicroTime = Annotated[str, MICRO_TIME.mark()]
"""A time in RFC 3339, in microseconds."""

Quantity = Annotated[str | int | float, QUANTITY.mark()]
"""An amount with a suffix, such as `100m`, `64Mi` or `2` (`api/meta/quantity.py`)."""

IntOrString = Annotated[int | str, INT_OR_STRING.mark()]
"""A 32-bit number, or a text such as the name of a port or a percentage."""
