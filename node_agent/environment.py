"""A container's environment, and the words of its command that use it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from api import fields
from api.objects import Container, EnvVar, Pod

_VARIABLE = re.compile(r"\$(?:\$|\(([^()]*)\))")


def environment(pod: Pod, container: Container) -> dict[str, str]:
    """The variables in order; each may use those declared before it. The pod's status has its addresses."""
    known: dict[str, str] = {}
    for variable in container.env:
        known[variable.name] = _value(pod, variable, known)
    return known


def _value(pod: Pod, variable: EnvVar, known: Mapping[str, str]) -> str:
    source = variable.value_from
    if source is not None and source.field_ref is not None:
        return fields.value_of(pod, source.field_ref.field_path)
    return expand(variable.value, known)


def unknown(text: str, known: Mapping[str, str]) -> list[str]:
    """The names in `$(NAME)` that are not known."""
    return [found[1] for found in _VARIABLE.finditer(text) if found[1] is not None and found[1] not in known]


def expand(text: str, known: Mapping[str, str]) -> str:
    """Replace `$(NAME)` where NAME is known; `$$` stands for `$`, everything else for itself."""

    def value(found: re.Match[str]) -> str:
        if found.group() == "$$":
            return "$"
        return known.get(found.group(1), found.group())

    return _VARIABLE.sub(value, text)
