"""YAML documents."""

from __future__ import annotations

from api.codec import yaml


def test_yaml_times_without_quotes_are_strings() -> None:
    (plain_document,) = yaml.parse("a: 2026-01-01T00:00:00Z\nb: 2026-01-01\nc: 5\nd: true\n")
    assert plain_document.value == {"a": "2026-01-01T00:00:00Z", "b": "2026-01-01", "c": 5, "d": True}
