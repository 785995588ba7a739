"""Kubernetes quantities (`100m`, `1.5`, `64Mi`, `2e3`), computed exactly. Pure."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import NamedTuple

_SHAPE = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(n|u|m|k|K|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?\d+)?", re.ASCII)
_POWERS = (-9, -6, -3, 3, 6, 9, 12, 15, 18)
_FACTORS: dict[str, Decimal] = {
    "": Decimal(1),
    **{suffix: Decimal(10) ** power for suffix, power in zip("numkMGTPE", _POWERS, strict=True)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}


class BadQuantity(ValueError):
    """`str(error)` says what was found and what is accepted."""


def parse(text: str | float) -> Decimal:
    """The number that a quantity stands for. Raises BadQuantity."""
    shape = _SHAPE.fullmatch(str(text))
    suffix = shape.group(2) or "" if shape else ""
    if shape is None or (suffix not in _FACTORS and suffix[:1] not in {"e", "E"}):
        raise BadQuantity(f'{text!r} is not a quantity; for example "100m", "0.5" or "64Mi"')
    if suffix in _FACTORS:
        return Decimal(shape.group(1)) * _FACTORS[suffix]
    exponent = int(suffix[1:])
    if abs(exponent) > 30:
        raise BadQuantity(f"{text!r} is out of range; exponents from -30 to 30 are accepted")
    return Decimal(shape.group(1)).scaleb(exponent)


def to_milli(text: str | float) -> int:
    """Thousandths, rounded up: `0.5` → 500."""
    return int((parse(text) * 1000).to_integral_value(ROUND_CEILING))


def to_int(text: str | float) -> int:
    """Whole units (bytes, pods), rounded up: `64Mi` → 67108864."""
    return int(parse(text).to_integral_value(ROUND_CEILING))


def of_milli(thousandths: int) -> str:
    """Thousandths as a quantity: 500 → `500m`, 2000 → `2`."""
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


class Quantity(NamedTuple):
    """An amount in thousandths, and whether people write it in powers of 1024. As text it is in its shortest form."""

    milli: int = 0
    binary: bool = False

    def __str__(self) -> str:
        if self.binary and abs(self.milli) >= 1024_000:
            return _shortest(-(-self.milli // 1000), 1024, _BINARY)
        if self.milli % 1000:
            return f"{self.milli}m"
        return _shortest(self.milli // 1000, 1000, _DECIMAL)

    def plus(self, other: Quantity) -> Quantity:
        """The sum, written like the first of them that is not 0."""
        return Quantity(self.milli + other.milli, self.binary if self.milli else other.binary)

    def over(self, other: Quantity) -> Decimal:
        """How many times the other one it is."""
        return Decimal(self.milli) / other.milli


_DECIMAL, _BINARY = ("", *"kMGTPE"), ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def _shortest(number: int, base: int, suffixes: tuple[str, ...]) -> str:
    power = 0
    while number and number % base == 0 and power < len(suffixes) - 1:
        number, power = number // base, power + 1
    return f"{number}{suffixes[power]}"


def read(text: str | float) -> Quantity:
    """A quantity with the way in which it is written. Raises BadQuantity."""
    return Quantity(to_milli(text), str(text).endswith("i"))
