"""LabelSelector, as workloads and policies carry it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from api import names
from api.schema import MISSING, NOT_SUPPORTED, Problem, shown
from api.selectors import Requirement, Selector
from api.value import Value

OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}


class LabelSelectorRequirement(Value, frozen=True):
    """`operator` is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(Value, frozen=True):
    """All of it must hold; an empty one selects everything."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


def selector(wish: LabelSelector) -> Selector:
    """The same, ready to be asked."""
    labels = [Requirement(key, "in", frozenset({value})) for key, value in sorted(wish.match_labels.items())]
    rows = [Requirement(row.key, OPERATORS[row.operator], frozenset(row.values)) for row in wish.match_expressions]
    return Selector((*labels, *rows))


def shown_selector(wish: LabelSelector | None) -> str:
    """For people, as the reference writes it: a=b,c in (d,e),!f"""
    if wish is None or not (wish.match_labels or wish.match_expressions):
        return "<none>"
    parts = [f"{key}={value}" for key, value in sorted(wish.match_labels.items())]
    for row in wish.match_expressions:
        if row.operator in ("In", "NotIn"):
            parts.append(f"{row.key} {row.operator.lower()} ({','.join(sorted(row.values))})")
        else:
            parts.append(row.key if row.operator == "Exists" else f"!{row.key}")
    return ",".join(parts)


def check_selector(path: str, wish: LabelSelector) -> Iterator[Problem]:
    """Every problem, by path."""
    for key, value in wish.match_labels.items():
        if names.label_key(key):
            yield Problem(f"{path}.matchLabels", shown(key), names.label_key(key))
        if names.label_value(value):
            yield Problem(f"{path}.matchLabels[{key}]", shown(value), names.label_value(value))
    for number, row in enumerate(wish.match_expressions):
        place = f"{path}.matchExpressions[{number}]"
        if names.label_key(row.key):
            yield Problem(f"{place}.key", shown(row.key), names.label_key(row.key))
        if row.operator not in OPERATORS:
            yield Problem(
                f"{place}.operator", shown(row.operator), f"{', '.join(OPERATORS)} are accepted", NOT_SUPPORTED
            )
        elif row.operator in ("In", "NotIn") and not row.values:
            yield Problem(f"{place}.values", "[]", f"{row.operator} needs at least one value", MISSING)
        elif row.operator in ("Exists", "DoesNotExist") and row.values:
            yield Problem(f"{place}.values", shown(row.values), f"{row.operator} has no values")
