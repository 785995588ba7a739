"""Configuration files that are mistyped or hostile: each problem is named by its place, and no file is quoted."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconcile.config_document import MAX_BYTES, BadDocument, parse_document, read_document

ACCEPTED = "one YAML document is accepted"
SCALARS = "texts, numbers up to 64 bits, true and false are accepted"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\na: 2\n", f"line 2, column 1: the key a is there twice; {ACCEPTED}"),
        ("a:\n  b: 1\n  b: 2\n", f"line 3, column 3: the key b is there twice; {ACCEPTED}"),
        ("a: 1\n---\nb: 2\n", f"line 2, column 1: but found another document; {ACCEPTED}"),
        ("password: 'hunter2\nport: 1\n", f"line 3, column 1: found unexpected end of stream; {ACCEPTED}"),
        ('password: "hunter2\\q"\n', f"line 1, column 20: found unknown escape character ...; {ACCEPTED}"),
        ("password: *hunter2\n", f"line 1, column 11: found undefined alias ...; {ACCEPTED}"),
        ("password: !hunter2 x\n", f"line 1, column 11: could not determine a constructor for the tag ...; {ACCEPTED}"),
        ("password: @hunter2\n", f"line 1, column 11: found character ... that cannot start any token; {ACCEPTED}"),
        ("password: %hunter2\n", f"line 1, column 11: found character ... that cannot start any token; {ACCEPTED}"),
        ("password: hunter2: 3\n", f"line 1, column 18: mapping values are not allowed here; {ACCEPTED}"),
        ("\tpassword: hunter2\n", f"line 1, column 1: found character ... that cannot start any token; {ACCEPTED}"),
        ("password: !!int hunter2\n", f"found a value that its tag does not accept; {ACCEPTED}"),
        ("password: hunter2\x00\n", f"found a control character; {ACCEPTED}"),
        ("a: .nan\n", f"a: found a value that JSON does not have; {SCALARS}"),
        ("a:\n- 1\n- .inf\n", f"a[1]: found a value that JSON does not have; {SCALARS}"),
        ("a: !!binary aHVudGVyMg==\n", f"a: found a value that JSON does not have; {SCALARS}"),
        ("a: !!set {hunter2}\n", f"a: found a value that JSON does not have; {SCALARS}"),
        (f"a: {2**63}\n", f"a: found a value that JSON does not have; {SCALARS}"),
        (f"a: {'9' * 5000}\n", f"found a value that its tag does not accept; {ACCEPTED}"),
        ("a: {1: hunter2}\n", "a: found a key that is no text; put it in quotes"),
        ("on: hunter2\n", "the document: found a key that is no text; put it in quotes"),
        ("? [hunter2]\n: 1\n", f"line 1, column 3: found unhashable key; {ACCEPTED}"),
        ("a: &a [*a]\n", "found more than 64 levels; fewer are accepted"),
        ("a: " + "[" * 65 + "]" * 65, "found more than 64 levels; fewer are accepted"),
        ("[" * 20_000, "found too many levels; a simpler document is accepted"),
        (
            "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10) if n else 'x'}]\n" for n in range(10)),
            "found more than 100000 values; a smaller document is accepted",
        ),
    ],
)
def test_a_wrong_document_is_named_by_its_place_and_not_quoted(text: str, problem: str) -> None:
    with pytest.raises(BadDocument) as raised:
        parse_document(text)
    assert str(raised.value) == problem
    assert "hunter2" not in problem


def test_documents_that_are_accepted() -> None:
    assert parse_document("") is None
    assert parse_document("a: 2024-01-01\nb: &b {c: 1}\nd: {<<: *b, c: 2}\ne: 0x10\nf: 1.5\ng:\n") == {
        "a": "2024-01-01",
        "b": {"c": 1},
        "d": {"c": 2},
        "e": 16,
        "f": 1.5,
        "g": None,
    }
    assert parse_document("a: " + "[" * 63 + "]" * 63)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("port: 1\n")
    assert read_document(file) == {"port": 1}
    problems = []
    for content in (b"port: \xff\n", b"#" * (MAX_BYTES + 1), b"port: [\n"):
        file.write_bytes(content)
        with pytest.raises(BadDocument) as raised:
            read_document(file)
        problems.append(str(raised.value).removeprefix(f"{file}: "))
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(BadDocument) as raised:
            read_document(path)
        problems.append(str(raised.value).removeprefix(f"{path}: "))
    assert problems == [
        "found no UTF-8 at byte 6; text in UTF-8 is accepted",
        "found more than 1048576 bytes; a smaller file is accepted",
        "line 2, column 1: expected the node content, but found ...; one YAML document is accepted",
        "cannot be read: Is a directory; a YAML file is accepted",
        "cannot be read: No such file or directory; a YAML file is accepted",
    ]
