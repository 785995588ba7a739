"""The Warning headers of a response have the limits of kube-apiserver."""

from __future__ import annotations

from master.server.handlers import warning_headers


def texts(*warnings: str) -> list[str]:
    """Return the texts in the headers of these warnings."""
    headers = [value for name, value in warning_headers(warnings) if name == "Warning"]
    assert all(value.startswith('299 - "') and value.endswith('"') for value in headers)
    return [value.removeprefix('299 - "').removesuffix('"') for value in headers]


def test_each_different_warning_has_a_header() -> None:
    assert texts("a", "b", "a", "") == ["a", "b"]


def test_warnings_are_whole_up_to_4096_characters_together() -> None:
    assert texts("a" * 4000, "b" * 96) == ["a" * 4000, "b" * 96]


def test_longer_warnings_are_truncated_to_256_characters_each() -> None:
    assert texts("a" * 4000, "b" * 97, "c" * 300) == ["a" * 256, "b" * 97, "c" * 256]


def test_warnings_beyond_4096_characters_are_dropped() -> None:
    headers = texts(*(f"{number:06d}" for number in range(100_000)))
    assert headers == [f"{number:06d}" for number in range(683)]


def test_a_warning_cannot_add_a_header_or_end_its_quotes() -> None:
    assert texts('a\r\nSet-Cookie: b"\\\x00é') == ['a  Set-Cookie: b\\"\\\\ ?']
