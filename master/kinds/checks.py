"""What several kinds ask of their fields. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from api import quantity
from api.schema import FORBIDDEN, MISSING, Problem, shown


def given(path: str, value: str, syntax: Callable[[str], str]) -> Iterator[Problem]:
    """A text that must be there and have this syntax (see `api.names`)."""
    if not value:
        yield Problem(path, '""', "a value is required", MISSING)
    elif syntax(value):
        yield Problem(path, shown(value), syntax(value))


def amount(path: str, text: str | float | None, least: int = 0) -> Iterator[Problem]:
    """A quantity of at least `least`; one that is not there is none."""
    if text is None:
        return
    try:
        if quantity.parse(text) < least:
            yield Problem(path, shown(text), f"must be greater than or equal to {least}")
    except quantity.BadQuantity as error:
        yield Problem(path, shown(text), str(error))


def amounts(path: str, found: Mapping[str, str | int | float]) -> Iterator[Problem]:
    """A quantity of 0 or more for each key."""
    for key, text in found.items():
        yield from amount(f"{path}[{key}]", text)


def at_least(*rows: tuple[str, int | None, int]) -> Iterator[Problem]:
    """A problem for each (path, number, least) whose number is given and less."""
    for path, value, least in rows:
        if value is not None and value < least:
            yield Problem(path, shown(value), f"must be greater than or equal to {least}")


def exactly_one(path: str, found: Mapping[str, object]) -> Iterator[Problem]:
    """One of these fields must be set, and no second one."""
    named = [name for name, value in found.items() if value is not None]
    accepted = ", ".join(found)
    if not named:
        yield Problem(path, "{}", f"exactly one of {accepted} is required", MISSING)
    elif len(named) > 1:
        yield Problem(path, shown(named), f"exactly one of {accepted} is accepted", FORBIDDEN)


def unchanged(*rows: tuple[str, object, object]) -> Iterator[Problem]:
    """A problem for each (path, old, new) that an update has changed."""
    for path, old, new in rows:
        if old != new:
            yield Problem(path, shown(new), "field is immutable")


def most(path: str, found: Iterable[object], limit: int) -> Iterator[Problem]:
    """No more than so many of them."""
    number = len(tuple(found))
    if number > limit:
        yield Problem(path, str(number), f"must have at most {limit} items")
