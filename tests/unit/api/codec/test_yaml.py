"""YAML documents."""

from __future__ import annotations

from api.codec import yaml


def test_yaml_times_without_quotes_are_strings() -> None:
    (plain_document,) = yaml.parse("a: 2026-01-01T00:00:00Z\nb: 2026-01-01\nc: 5\nd: true\n")
    assert plain_document.value == {"a": "2026-01-01T00:00:00Z", "b": "2026-01-01", "c": 5, "d": True}


def test_merge_keys_that_expand_exponentially_are_rejected_or_merged_once() -> None:
    levels = ["a: &a {x: 1, y: 2, z: 3}"]
    levels += [
        f"b{level}: &b{level} {{<<: [{', '.join([f'*b{level - 1}' if level else '*a'] * 9)}]}}" for level in range(9)
    ]
    (bomb,) = yaml.parse("\n".join(levels))
    # PyYAML merges a key once since 6.0.4. Before, each level has nine times the keys.
    assert bomb.errors or bomb.value == {name: {"x": 1, "y": 2, "z": 3} for name in ("a", *(f"b{n}" for n in range(9)))}


def test_merge_keys_that_add_too_many_values_are_rejected() -> None:
    levels = ["b0: &b0 {k0: 0}", *(f"b{n}: &b{n} {{<<: *b{n - 1}, k{n}: 0}}" for n in range(1, 2000))]
    (bomb,) = yaml.parse("\n".join(levels))
    assert "merges add more than" in str(bomb.errors[0])
    (plain_document,) = yaml.parse("a: &a {x: 1}\nb:\n  <<: *a\n  y: 2\n")
    assert plain_document.value == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}


def test_errors_of_later_documents_name_the_line_of_the_file() -> None:
    *_, broken = yaml.parse("a: 1\n---\nb: 2\n---\nc: [\n")
    assert "line 6, column 1" in str(broken.errors[0])


def test_only_document_of_a_text() -> None:
    assert yaml.parse_one("---\na: 1\n---\n").value == {"a": 1}
    for text, found in (("a: 1\n---\nb: 2", "2 documents"), ("", "0 documents")):
        (problem,) = yaml.parse_one(text).errors
        assert (problem.bad_value, problem.detail) == (found, "one document is accepted")
