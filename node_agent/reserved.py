"""What of a node is not for pods: `kubeReserved` and `systemReserved`. Pure. Source: facts/node.md 6."""

from __future__ import annotations

from typing import NamedTuple

from api import quantity

RESOURCES = ("cpu", "memory", "ephemeral-storage")


class BadReservation(ValueError):
    """`str(error)` says what was found and what is accepted."""


class Reserved(NamedTuple):
    """Thousandths of cores, and bytes."""

    cpu: int = 0
    memory: int = 0
    disk: int = 0


NOTHING = Reserved()


def parse(*texts: str) -> Reserved:
    """The sum of lists such as `cpu=100m,memory=200Mi,ephemeral-storage=1Gi`. Raises BadReservation."""
    total = dict.fromkeys(RESOURCES, 0)
    for part in (part for text in texts for part in text.split(",") if part.strip()):
        name, _, amount = (word.strip() for word in part.partition("="))
        if name not in RESOURCES:
            raise BadReservation(f"found {part.strip()!r}; RESOURCE=AMOUNT with {', '.join(RESOURCES)} is accepted")
        try:
            total[name] += quantity.milli(amount) if name == "cpu" else quantity.whole(amount)
        except quantity.BadQuantity as error:
            raise BadReservation(f"{name}: {error}") from None
    return Reserved(*(total[name] for name in RESOURCES))
