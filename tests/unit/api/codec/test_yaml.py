"""YAML documents."""

from __future__ import annotations

from api.codec import yaml


def test_yaml_times_without_quotes_are_strings() -> None:
    (plain_document,) = yaml.parse("a: 2026-01-01T00:00:00Z\nb: 2026-01-01\nc: 5\nd: true\n")
    assert plain_document.value == {"a": "2026-01-01T00:00:00Z", "b": "2026-01-01", "c": 5, "d": True}


def test_an_equals_sign_without_quotes_is_a_string() -> None:
    (plain_document,) = yaml.parse("enum:\n- =\n- '!='\n- =~\n")
    assert plain_document.value == {"enum": ["=", "!=", "=~"]}


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


def test_plain_values_that_only_yaml_1_1_gives_a_meaning_are_strings() -> None:
    (plain_document,) = yaml.parse("op: =\nport: 22:22\nlist: [=, 1:30]\nnumber: 22\n")
    assert plain_document.value == {"op": "=", "port": "22:22", "list": ["=", "1:30"], "number": 22}


def test_tabs_separate_tokens_and_do_not_indent() -> None:
    text = '{\n\t"a":\t[1,\t2\t,],\n\t"b": {"c":\t"\td",\t},\n}\n'
    (plain_document,) = yaml.parse(text)
    assert plain_document.value == {"a": [1, 2], "b": {"c": "\td"}}
    (plain_document,) = yaml.parse("a:\tb\nc:\t# none\n  - d\t\n")
    assert plain_document.value == {"a": "b", "c": ["d"]}
    (indented,) = yaml.parse("a:\n\tb: 1\n")
    assert indented.errors


def test_duplicate_keys_are_reported_with_their_lines() -> None:
    first, second = yaml.parse("a: 1\nb: {c: 1, d: 2}\n---\na: {b: 1}\nc:\n- d: 1\n  d: 2\na: 2\n")
    assert first.duplicate_keys == ()
    assert second.duplicate_keys == ('line 8: key "a" already set in map', 'line 7: key "d" already set in map')
    assert second.value == {"a": 2, "c": [{"d": 2}]}
