"""What is accepted and filled in for the objects of one kind. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic

from api import names
from api.objects import O
from api.schema import Problem


def _same(item: O) -> O:
    return item


def _none(*_: Any) -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Rules(Generic[O]):
    """`default(object)` writes every default out, and does nothing the second time. `check(object)` tells every problem
    of an object whose shape is right, `immutable(old, new)` what an update changes although it may not, and
    `warnings(object)` what is kept but not acted on. `name` says what is wrong with a name; empty if nothing.
    """

    default: Callable[[O], O] = _same
    check: Callable[[O], Iterator[Problem]] = _none
    immutable: Callable[[O, O], Iterator[Problem]] = _none
    warnings: Callable[[O], Iterator[str]] = _none
    name: Callable[[str], str] = names.dns_subdomain


AnyRules = Rules[Any]
