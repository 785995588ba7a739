"""Validators of fields that several resources share. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from api.meta import quantity
from api.meta.schema import FORBIDDEN, MISSING, FieldError, quoted


def required(path: str, value: str, syntax: Callable[[str], str]) -> Iterator[FieldError]:
    """Yield an error unless the text is given and has this syntax (see `api.names`)."""
    if not value:
        yield FieldError(path, '""', "a value is required", MISSING)
    elif syntax(value):
        yield FieldError(path, quoted(value), syntax(value))


def quantity_at_least(path: str, text: str | float | None, least: int = 0) -> Iterator[FieldError]:
    """Yield an error unless the quantity is at least `least`; an omitted quantity is accepted."""
    if text is None:
        return
    try:
        if quantity.parse(text) < least:
            yield FieldError(path, quoted(text), f"must be greater than or equal to {least}")
    except quantity.BadQuantity as error:
        yield FieldError(path, quoted(text), str(error))


def quantities_at_least_zero(path: str, quantities: Mapping[str, str | int | float]) -> Iterator[FieldError]:
    """Yield an error for each negative quantity."""
    for key, text in quantities.items():
        yield from quantity_at_least(f"{path}[{key}]", text)


def minimum(*rows: tuple[str, int | None, int]) -> Iterator[FieldError]:
    """Yield an error for each (path, number, minimum) whose number is less than the minimum. None is accepted."""
    for path, value, least in rows:
        if value is not None and value < least:
            yield FieldError(path, quoted(value), f"must be greater than or equal to {least}")


def exactly_one(path: str, fields: Mapping[str, object]) -> Iterator[FieldError]:
    """Yield an error unless exactly one of these fields is set."""
    named = [name for name, value in fields.items() if value is not None]
    accepted = ", ".join(fields)
    if not named:
        yield FieldError(path, "{}", f"exactly one of {accepted} is required", MISSING)
    elif len(named) > 1:
        yield FieldError(path, quoted(named), f"exactly one of {accepted} is accepted", FORBIDDEN)


def immutable(*rows: tuple[str, object, object]) -> Iterator[FieldError]:
    """Yield an error for each (path, old, new) that an update has changed."""
    for path, old, new in rows:
        if old != new:
            yield FieldError(path, quoted(new), "field is immutable")


def max_items(path: str, items: Iterable[object], limit: int) -> Iterator[FieldError]:
    """Yield an error if there are more items than allowed."""
    number = len(tuple(items))
    if number > limit:
        yield FieldError(path, str(number), f"must have at most {limit} items")
