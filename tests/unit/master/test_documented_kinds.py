"""docs/kinds.md says of every kind what acts on it, and says the same as the server."""

from __future__ import annotations

import re
from pathlib import Path

from master.resources.scheme import ALL

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "kinds.md"
ROWS = dict(re.findall(r"^\| (\w+ `[^`]+`) \| (.+) \|$", DOCUMENT.read_text(), flags=re.MULTILINE))
KINDS = {f"{kind.name} `{kind.type.API_VERSION}`": kind for kind in ALL}


def test_every_kind_has_a_row_and_every_row_a_kind() -> None:
    assert set(ROWS) == set(KINDS), "docs/kinds.md"


def test_what_cannot_be_made_is_said_to_be_so() -> None:
    told = {name for name, text in ROWS.items() if text.startswith("cannot be made: ") or "none is kept" in text}
    assert told == {name for name, kind in KINDS.items() if kind.refusal and kind.conversion is None}


def test_another_form_is_said_to_be_one() -> None:
    told = {name for name, text in ROWS.items() if text.startswith("another form of ")}
    assert told == {name for name, kind in KINDS.items() if kind.conversion is not None}


def test_what_is_kept_with_a_warning_is_said_to_be_so() -> None:
    told = {name for name, text in ROWS.items() if "warning" in text}
    warned = {
        name
        for name, kind in KINDS.items()
        if kind.own_rules is not None and list(kind.own_rules.warnings(kind.type())) and kind.conversion is None
    }
    assert told == warned
