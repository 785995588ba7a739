"""Annotations and labels with numbers that a tenant has written."""

from __future__ import annotations

import pytest

from master.resources.metadata import whole_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("12", 12),
        ("9" * 18, 10**18 - 1),
        ("9" * 5000, None),
        ("-1", None),
        ("\N{SUPERSCRIPT TWO}", None),
        ("", None),
    ],
)
def test_number_of_an_annotation_is_bounded(text: str, number: int | None) -> None:
    assert whole_number(text) == number
