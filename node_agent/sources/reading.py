"""Text → static pods, whatever its source. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from api import manifest, static_pods
from api.manifest import Document
from api.objects import Pod
from api.schema import Problem, shown

LARGEST_TEXT = 10 << 20
"""Bytes of a manifest, whichever way it comes."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Whence a text came: the node that reads it, `source` file or http, and its path or URL."""

    node: str
    source: str
    place: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A document that is no pod for this node; `number` counts from 1."""

    number: int
    problems: tuple[Problem, ...]

    def __str__(self) -> str:
        return manifest.refusal(f"document {self.number}", self.problems)


REFUSED, LONGEST_TOLD = "FailedValidation", 1000
"""The reason of the event about a source whose content is refused, and how many letters it has at most."""


def told(place: str, refusal: Refusal) -> str:
    """The refusal in one line, as an event about the node tells it."""
    words = f"{place} document {refusal.number} is not accepted: " + "; ".join(map(str, refusal.problems))
    return words if len(words) <= LONGEST_TOLD else f"{words[: LONGEST_TOLD - 3]}..."


@dataclass(frozen=True, slots=True)
class Reading:
    """The pods of a text and what was refused of it."""

    pods: tuple[Pod, ...] = ()
    refusals: tuple[Refusal, ...] = ()


def read(text: str, origin: Origin, known: Iterable[Pod], now: datetime) -> Reading:
    """Every document counts for itself. `known` are the pods of the text before this one.

    A document that has not changed in meaning gives the very pod that is known. When something is refused, known pods
    that the rest does not name again are kept: a slip of the pen ends nothing.
    """
    before = {pod.metadata.uid: pod for pod in known}
    found: list[Pod] = []
    refusals: list[Refusal] = []
    for document in manifest.read(text):
        pod, problems = static_pod(document, origin, now)
        if pod is None:
            refusals.append(Refusal(document.number, problems))
        else:
            found.append(before.get(pod.metadata.uid, pod))
    if refusals:
        named = {name_of(pod) for pod in found}
        found += [pod for pod in before.values() if name_of(pod) not in named]
    return Reading(tuple(found), tuple(refusals))


def static_pod(document: Document, origin: Origin, now: datetime) -> tuple[Pod | None, tuple[Problem, ...]]:
    """The pod of one document, or every reason why there is none."""
    if document.problems or document.obj is None:
        return None, document.problems
    if not isinstance(document.obj, Pod):
        return None, (Problem("kind", shown(document.obj.KIND), '"Pod" is accepted here'),)
    problems = tuple(static_pods.problems(document.obj, origin.node))
    if problems:
        return None, problems
    return static_pods.static_pod(document.obj, origin.node, origin.source, origin.place, now), ()


def name_of(pod: Pod) -> tuple[str, str]:
    """Namespace and name, of which a node has each only once."""
    return pod.metadata.namespace, pod.metadata.name
