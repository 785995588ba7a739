"""The difference between what is desired and what is observed, by key. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Changes(Generic[K, V]):
    """A difference by key. `change` holds the desired values of keys that are observed with another value."""

    add: dict[K, V]
    change: dict[K, V]
    remove: dict[K, V]

    def __bool__(self) -> bool:
        return bool(self.add or self.change or self.remove)

    def __str__(self) -> str:
        parts = (("+", self.add), ("~", self.change), ("-", self.remove))
        return " ".join(f"{sign}{len(part)}" for sign, part in parts if part) or "none"


def changes(desired: Mapping[K, V], observed: Mapping[K, V]) -> Changes[K, V]:
    """Return what to add, change and remove so that `observed` becomes `desired`."""
    return Changes(
        add={key: value for key, value in desired.items() if key not in observed},
        change={key: value for key, value in desired.items() if key in observed and observed[key] != value},
        remove={key: value for key, value in observed.items() if key not in desired},
    )
