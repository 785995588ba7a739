"""Label and field selectors: `a=b,c!=d,e in (f,g),!h` and `metadata.name=x,spec.nodeName!=y`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_REQUIREMENT = re.compile(
    r"""\s*(?:
        !\s*(?P<absent>[\w./-]+)
      | (?P<key>[\w./-]+)\s*(?:
            (?P<op>==|=|!=)\s*(?P<value>[\w.-]*)
          | \s(?P<set>in|notin)\s*\((?P<values>[^()]*)\)
        )?
    )\s*(?:,|$)""",
    re.VERBOSE,
)


class BadSelector(ValueError):
    """`str(error)` is the sentence that clients of the reference know."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """`operator` is one of in, notin, exists, absent."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels fulfil it; an absent key fulfils `notin`."""
        if self.operator == "exists":
            return self.key in labels
        if self.operator == "absent":
            return self.key not in labels
        if self.operator == "in":
            return labels.get(self.key) in self.values
        return labels.get(self.key) not in self.values


@dataclass(frozen=True, slots=True)
class Selector:
    """All requirements hold; none at all matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels (or fields) is selected."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    def asks_exactly(self, key: str) -> str | None:
        """The single value that `key` must have, if the selector demands one."""
        for requirement in self.requirements:
            if requirement.key == key and requirement.operator == "in" and len(requirement.values) == 1:
                return next(iter(requirement.values))
        return None


def parse_labels(text: str) -> Selector:
    """Read a label selector. Raises BadSelector."""
    requirements, position = [], 0
    while position < len(text):
        found = _REQUIREMENT.match(text, position)
        if found is None or found.end() == position:
            raise BadSelector(f"unable to parse requirement: found {text[position:]!r} in label selector {text!r}")
        requirements.append(_requirement(found))
        position = found.end()
    return Selector(tuple(requirements))


def _requirement(found: re.Match[str]) -> Requirement:
    if found["absent"]:
        return Requirement(found["absent"], "absent")
    if found["op"]:
        return Requirement(found["key"], "notin" if found["op"] == "!=" else "in", frozenset({found["value"]}))
    if found["set"]:
        values = frozenset(value.strip() for value in found["values"].split(","))
        return Requirement(found["key"], found["set"], values)
    return Requirement(found["key"], "exists")


def parse_fields(text: str, known: frozenset[str]) -> Selector:
    """Read a field selector over the `known` field paths. Raises BadSelector."""
    requirements = []
    for part in filter(None, text.split(",")):
        key, operator, value = re.fullmatch(r"([^=!]*)(==|!=|=)?(.*)", part, re.DOTALL).groups()  # type: ignore[union-attr]
        if operator is None:
            raise BadSelector(f"invalid selector: {text!r}; can't understand {part!r}")
        if key not in known:
            raise BadSelector(f"field label not supported: {key}")
        requirements.append(Requirement(key, "notin" if operator == "!=" else "in", frozenset({value})))
    return Selector(tuple(requirements))
