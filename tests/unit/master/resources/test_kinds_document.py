"""docs/kinds.md has a row for every kind, which agrees with the server."""

from __future__ import annotations

import re
from pathlib import Path

from master.resources.scheme import SERVED

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "kinds.md"
ROWS = dict(re.findall(r"^\| (\w+ `[^`]+`) \| (.+) \|$", DOCUMENT.read_text(), flags=re.MULTILINE))
KINDS = {f"{resource.kind} `{resource.type.API_VERSION}`": resource for resource in SERVED}


def test_documented_kinds_equal_served_kinds() -> None:
    assert set(ROWS) == set(KINDS), "docs/kinds.md"


def test_document_marks_kinds_that_cannot_be_created() -> None:
    stated = {name for name, text in ROWS.items() if text.startswith("cannot be created: ")}
    assert stated == {name for name, resource in KINDS.items() if resource.create_denial and resource.stored_as is None}


def test_document_marks_other_versions_and_projections() -> None:
    stated = {name for name, text in ROWS.items() if text.startswith(("another version of ", "a projection of "))}
    assert stated == {name for name, resource in KINDS.items() if resource.stored_as is not None}


def test_document_marks_kinds_stored_with_a_warning() -> None:
    stated = {name for name, text in ROWS.items() if "warning" in text}
    warned = {
        name
        for name, resource in KINDS.items()
        if resource.rules is not None and list(resource.rules.warnings(resource.type())) and resource.stored_as is None
    }
    assert stated == warned
