"""Quantities: exact arithmetic on `500m` and `1Gi`."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.meta import quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("100m", "0.1"),
        ("1.5Gi", 1610612736),
        ("2e3", 2000),
        ("1E", 10**18),
        (".5", "0.5"),
        ("-3k", -3000),
        (2, 2),
        (0.5, "0.5"),
    ],
)
def test_quantity_is_parsed_exactly(text: str | float, value: int | str) -> None:
    assert quantity.parse(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "x", "1x", "1 Gi", "1KI", "--1", "1e", "1e99", "Mi", "1.2.3", "１２Mi"])
def test_invalid_quantity_is_rejected(text: str) -> None:
    with pytest.raises(quantity.BadQuantity):
        quantity.parse(text)


@given(st.integers(0, 10**12))
def test_quantity_rounds_up_to_integer_and_milli(number: int) -> None:
    assert quantity.to_milli(f"{number}u") == -(-number // 1000)
    assert quantity.to_int(f"{number}m") == -(-number // 1000)
    assert quantity.to_int(f"{number}Ki") == number * 1024


@pytest.mark.parametrize("text", ["9" * 5000, "1e" + "9" * 5000, "0." + "0" * 600 + "1"])
def test_quantity_that_is_too_long_is_rejected(text: str) -> None:
    with pytest.raises(quantity.BadQuantity):
        quantity.parse(text)
