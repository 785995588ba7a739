"""Kubernetes quantities (`100m`, `1.5`, `64Mi`, `2e3`), computed exactly. Pure."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import NamedTuple

_SYNTAX = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(n|u|m|k|K|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?\d+)?", re.ASCII)
MAX_LENGTH = 512
"""Characters of a quantity. Longer numbers could not be written as text (4,300 digits), or cost too much time."""

_POWERS = (-9, -6, -3, 3, 6, 9, 12, 15, 18)
_FACTORS: dict[str, Decimal] = {
    "": Decimal(1),
    **{suffix: Decimal(10) ** power for suffix, power in zip("numkMGTPE", _POWERS, strict=True)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}


class BadQuantity(ValueError):
    """A text that is not a quantity. The message says what was found and what is accepted."""


def parse(text: str | float) -> Decimal:
    """Return the number that a quantity stands for. Raises BadQuantity."""
    written = str(text)
    if len(written) > MAX_LENGTH:
        raise BadQuantity(f"a quantity of {len(written)} characters; {MAX_LENGTH} are accepted")
    match = _SYNTAX.fullmatch(written)
    suffix = match.group(2) or "" if match else ""
    if match is None or (suffix not in _FACTORS and suffix[:1] not in {"e", "E"}):
        raise BadQuantity(f'{text!r} is not a quantity; for example "100m", "0.5" or "64Mi"')
    if suffix in _FACTORS:
        return Decimal(match.group(1)) * _FACTORS[suffix]
    exponent = int(suffix[1:])
    if abs(exponent) > 30:
        raise BadQuantity(f"{text!r} is out of range; exponents from -30 to 30 are accepted")
    return Decimal(match.group(1)).scaleb(exponent)


def to_milli(text: str | float) -> int:
    """Return a quantity in thousandths, rounded up: `0.5` → 500. Raises BadQuantity."""
    return int((parse(text) * 1000).to_integral_value(ROUND_CEILING))


def to_int(text: str | float) -> int:
    """Return a quantity in whole units (bytes, pods), rounded up: `64Mi` → 67108864. Raises BadQuantity."""
    return int(parse(text).to_integral_value(ROUND_CEILING))


def format_milli(thousandths: int) -> str:
    """Return thousandths as a quantity: 500 → `500m`, 2000 → `2`."""
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


_DECIMAL_SUFFIXES = ("", *"kMGTPE")
_BINARY_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class Amount(NamedTuple):
    """A quantity in thousandths, and whether it is written in powers of 1024. `str()` returns the shortest form."""

    milli: int = 0
    binary: bool = False

    @classmethod
    def parse(cls, text: str | float) -> Amount:
        """Parse a quantity and its format. Raises BadQuantity."""
        return cls(to_milli(text), str(text).endswith("i"))

    def __str__(self) -> str:
        if self.binary and abs(self.milli) >= 1024_000:
            return _shortest(-(-self.milli // 1000), 1024, _BINARY_SUFFIXES)
        if self.milli % 1000:
            return f"{self.milli}m"
        return _shortest(self.milli // 1000, 1000, _DECIMAL_SUFFIXES)

    def add(self, other: Amount) -> Amount:
        """Return the sum, in the format of the first of the two that is not 0."""
        return Amount(self.milli + other.milli, self.binary if self.milli else other.binary)

    def ratio_to(self, other: Amount) -> Decimal:
        """Return this quantity divided by another."""
        return Decimal(self.milli) / other.milli


def _shortest(number: int, base: int, suffixes: tuple[str, ...]) -> str:
    power = 0
    while number and number % base == 0 and power < len(suffixes) - 1:
        number //= base
        power += 1
    return f"{number}{suffixes[power]}"
