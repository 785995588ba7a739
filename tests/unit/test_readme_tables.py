"""README's tables "From Kubernetes" and "From OpenShift" say of each kind what the master does with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from master.resources.resource import AnyResource
from master.resources.scheme import SERVED
from master.resources.virtual import VIRTUAL_RESOURCES

README = Path(__file__).resolve().parents[2] / "README.md"
SECTIONS = ("From Kubernetes", "From OpenShift")
WORKS, NO_EFFECT, REFUSED, NOT_SERVED = ANSWERS = ("works", "no effect", "refused", "not served")
KIND = re.compile(r"`([A-Z][a-zA-Z]+)`")
FIELD_OF_KINDS = re.compile(r"^`[a-z]\w*` of ")
"""A row about a field: what is said of it is not said of its kinds."""


def answer(resource: AnyResource) -> str:
    """Return what the master does with the objects that users create of this kind."""
    if resource.create_denial:
        return REFUSED
    if list(resource.rules.warnings(resource.type())) or not (resource.acted_on_by or resource.stored_as):
        return NO_EFFECT
    return WORKS


def answers() -> dict[str, set[str]]:
    """Return the answers of the code by kind, one for each of its API groups and versions."""
    virtual = (resource.kind for resources in VIRTUAL_RESOURCES.values() for resource in resources)
    by_kind: dict[str, set[str]] = {kind: {WORKS} for kind in virtual}
    for resource in SERVED:
        by_kind.setdefault(resource.kind, set()).add(answer(resource))
    return by_kind


def rows(section: str) -> Iterator[tuple[str, str, str]]:
    """Yield the cells of the table in a section."""
    text = README.read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    for line in lines[2:]:
        subject, found, instead = (cell.strip() for cell in line.strip("|").split("|"))
        yield subject, found, instead


def claims(section: str) -> Iterator[tuple[str, str]]:
    """Yield the kinds that a table names, and what it says of each."""
    for subject, found, _ in rows(section):
        if not FIELD_OF_KINDS.match(subject):
            yield from ((kind, found) for kind in KIND.findall(subject))


@pytest.mark.parametrize("section", SECTIONS)
def test_table_says_what_the_master_does(section: str) -> None:
    known = answers()
    wrong = [
        f"{kind}: README says {found}, the code {sorted(known.get(kind, {NOT_SERVED}))}"
        for kind, found in claims(section)
        if known.get(kind, {NOT_SERVED}) != {found}
    ]
    assert not wrong
    assert {found for _, found in claims(section)} >= {WORKS, NO_EFFECT}, "the control: kinds of several answers"


@pytest.mark.parametrize("section", SECTIONS)
def test_each_row_says_one_of_the_answers_and_what_to_use_instead(section: str) -> None:
    for subject, found, instead in rows(section):
        assert found in ANSWERS, subject
        assert instead or found == WORKS or "ResourceClaim" in subject, f"{subject}: {found}, and what to use?"


def test_every_kind_that_does_not_work_is_in_a_table() -> None:
    """But for kinds that only Podlane has, and those that the master creates for their readers."""
    named = {kind for section in SECTIONS for kind, _ in claims(section)}
    silent = {
        resource.kind
        for resource in SERVED
        if answer(resource) != WORKS and resource.group != "podlane.io" and not resource.stored_as
    }
    assert silent - named == set()
