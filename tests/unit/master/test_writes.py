"""What becomes of the body of a request."""

from __future__ import annotations

from typing import Any

import pytest

from master.answers import Failure
from master.request import target
from master.writes import read

GOOD: dict[str, Any] = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
TWO_UNKNOWN = {**GOOD, "spec": {"contaners": [], "comand": "x", **GOOD["spec"]}}
TWO_WRONG = {**TWO_UNKNOWN, "spec": {**TWO_UNKNOWN["spec"], "nodeName": 7, "volumes": {"a": "b"}}}


def refusal(document: dict[str, Any], strictness: str) -> str:
    where = target("/api/v1/namespaces/red/pods")
    assert where is not None
    with pytest.raises(Failure) as caught:
        read(where, document, strictness)
    return str(caught.value.status.message)


def warnings(document: dict[str, Any], strictness: str) -> tuple[str, ...]:
    where = target("/api/v1/namespaces/red/pods")
    assert where is not None
    return read(where, document, strictness).warnings


def test_unknown_fields_are_refused_told_or_ignored() -> None:
    assert refusal(TWO_UNKNOWN, "Strict").endswith('unknown field "spec.contaners", unknown field "spec.comand"')
    assert len(warnings(TWO_UNKNOWN, "Warn")) == 2
    assert warnings(TWO_UNKNOWN, "Ignore") == ()


@pytest.mark.parametrize(("strictness", "told"), [("Strict", 4), ("Warn", 2), ("Ignore", 2)])
def test_wrong_fields_are_refused_by_path_whatever_becomes_of_unknown_ones(strictness: str, told: int) -> None:
    words = refusal(TWO_WRONG, strictness)
    assert "spec.nodeName" in words
    assert "spec.volumes" in words
    assert words.count("Invalid value") + words.count("unknown field") == told
