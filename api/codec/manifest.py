"""Decodes manifests as users write them: YAML or JSON, several documents, lists. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from api.codec import yaml
from api.codec.kinds import KINDS
from api.codec.yaml import PlainDocument
from api.meta.schema import UNKNOWN, FieldError, quoted
from api.meta.types import Object
from api.validation.registry import decode


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a manifest, or why it is none; `number` counts from 1."""

    number: int
    obj: Object | None
    problems: tuple[FieldError, ...]
    warnings: tuple[str, ...] = ()


def read(text: str) -> tuple[Document, ...]:
    """Every document of a manifest; unknown fields are problems here, and what cannot be read stops no other."""
    found = [item for plain in yaml.parse(text) for item in _items(plain)]
    return tuple(
        Document(number, None, item.problems) if item.problems else _read_one(number, item.value)
        for number, item in enumerate(found, 1)
    )


def _items(plain: PlainDocument) -> Iterator[PlainDocument]:
    """The items of a list; those of a PodList need not say that they are Pods."""
    document = plain.value
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(kind, str) or not kind.endswith("List"):
        yield plain
        return
    items = document.get("items") or []
    if not isinstance(items, list):
        yield PlainDocument(None, (FieldError("items", quoted(items), "a list is accepted"),))
        return
    known = {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List")} if kind != "List" else {}
    for item in items:
        yield PlainDocument({**known, **item} if isinstance(item, dict) else item)


def _read_one(number: int, document: object) -> Document:
    if not isinstance(document, dict):
        return Document(number, None, (FieldError("the document", quoted(document), "an object is accepted"),))
    version, name = document.get("apiVersion"), document.get("kind")
    for kind in KINDS:
        if (version, name) == (kind.API_VERSION, kind.KIND):
            obj, problems, warnings = decode(kind, document)
            return Document(number, None if problems else obj, problems, warnings)
    accepted = ", ".join(f"{kind.API_VERSION} {kind.KIND}" for kind in KINDS)
    found = f"{quoted(version)} {quoted(name)}"
    return Document(number, None, (FieldError("apiVersion and kind", found, f"accepted are {accepted}"),))


def refusal(source: str, problems: tuple[FieldError, ...]) -> str:
    """The problems of one document as a person wants to read them: a headline, then one line each."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    width = max(len(problem.path) for problem in problems)
    lines = [f"  {problem.path.ljust(width)}  {_sentence(problem)}" for problem in problems]
    return "\n".join([f"{source}: not accepted ({count})", *lines])


def _sentence(problem: FieldError) -> str:
    if problem.reason == UNKNOWN:
        return f"is not a field{problem.wanted}"
    return str(problem).removeprefix(f"{problem.path}: ")
