"""`podlane check`: what is accepted, rejected, and left to a master."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from cli.__main__ import main

CONFIG_MAP = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n"
WRONG = "{apiVersion: v1, kind: ConfigMap, metadata: {name: A}}\n"
DEPLOYMENT = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}\n"


def check(capsys: pytest.CaptureFixture[str], *files: str) -> tuple[int, list[str]]:
    code = main(["check", *files])
    printed = capsys.readouterr()
    assert printed.err == ""
    return code, printed.out.splitlines()


def test_each_document_is_judged_on_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"{CONFIG_MAP}---\n{DEPLOYMENT}---\n{CONFIG_MAP}")
    unjudged = (
        f"{file} document 2: not judged, apps/v1 Deployment needs a master "
        f"(with one: kubectl apply --dry-run=server -f {file})"
    )
    assert check(capsys, str(file)) == (3, [f"{file} document 1: accepted", unjudged, f"{file} document 3: accepted"])
    wrong = tmp_path / "b.yaml"
    wrong.write_text(f"{DEPLOYMENT}---\n{WRONG}")
    code, lines = check(capsys, str(wrong), str(file))
    assert code == 1
    assert [line.split(": ")[0] for line in lines if line.startswith(str(tmp_path))] == [
        *(f"{wrong} document {number}" for number in (1, 2)),
        *(f"{file} document {number}" for number in (1, 2, 3)),
    ]
    assert f"{wrong} document 2: not accepted (1 problem)" in lines
    file.write_text(CONFIG_MAP)
    assert check(capsys, str(file)) == (0, [f"{file} document 1: accepted"])


@pytest.mark.parametrize(
    ("type_meta", "code"),
    [
        ("apiVersion: v1, kind: ServiceAccount", 3),
        ("apiVersion: example.com/v1beta1, kind: Backup", 3),
        ("apiVersion: v1, kind: ConfigMap", 0),
        ("apiVersion: v1, kind: config map", 1),
        ("apiVersion: apps, kind: Deployment", 1),
        ("apiVersion: a/b/v1, kind: Deployment", 1),
        ("apiVersion: 1, kind: Deployment", 1),
        ("kind: Deployment", 1),
        ("apiVersion: apps/v1", 1),
    ],
)
def test_only_well_formed_kinds_are_left_to_a_master(
    type_meta: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"{{{type_meta}, metadata: {{name: a}}}}")
    found, lines = check(capsys, str(file))
    assert found == code
    assert ("needs a master" in lines[0]) == (code == 3)


def test_items_of_a_list_are_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"apiVersion: v1\nkind: List\nitems:\n- {CONFIG_MAP}- {DEPLOYMENT}")
    code, lines = check(capsys, str(file))
    assert (code, len(lines)) == (3, 2)
    assert lines[0] == f"{file} document 1: accepted"


def test_a_file_that_cannot_be_read_does_not_keep_others_from_being_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    binary, empty = tmp_path / "binary", tmp_path / "empty"
    binary.write_bytes(b"a: \xff")
    empty.write_text("# nothing\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CONFIG_MAP.encode())))
    assert check(capsys, str(tmp_path / "missing"), str(binary), str(empty), "-") == (
        1,
        [
            f"{tmp_path / 'missing'}: No such file or directory; a readable file is accepted",
            f"{binary}: not text (byte 3); UTF-8 is accepted",
            f"{empty}: has no document; YAML or JSON is accepted",
            "- document 1: accepted",
        ],
    )
