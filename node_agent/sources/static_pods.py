"""Manifest text to static pods; merging the pods of all sources. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from api.codec import manifest
from api.codec.manifest import Document
from api.core.pod import Pod
from api.meta.schema import FieldError, quoted
from api.validation import static_pods

MAX_MANIFEST_BYTES = 10 << 20
"""Bytes of a manifest, whichever way it comes."""


@dataclass(frozen=True, slots=True)
class ManifestOrigin:
    """Whence a text came: the node that reads it, `source` file or http, and its path or URL."""

    node: str
    source: str
    place: str


@dataclass(frozen=True, slots=True)
class RejectedDocument:
    """A document that is no pod for this node; `number` counts from 1."""

    number: int
    problems: tuple[FieldError, ...]

    def __str__(self) -> str:
        return manifest.format_errors(f"document {self.number}", self.problems)


REJECTED_REASON, MAX_MESSAGE = "FailedValidation", 1000
"""The reason of the event about a source whose content is refused, and how many letters it has at most."""


def rejection_message(place: str, refusal: RejectedDocument) -> str:
    """The refusal in one line, as an event about the node tells it."""
    words = f"{place} document {refusal.number} is not accepted: " + "; ".join(map(str, refusal.problems))
    return words if len(words) <= MAX_MESSAGE else f"{words[: MAX_MESSAGE - 3]}..."


@dataclass(frozen=True, slots=True)
class ParsedManifest:
    """The pods of a text and what was refused of it."""

    pods: tuple[Pod, ...] = ()
    refusals: tuple[RejectedDocument, ...] = ()


def parse_manifest(text: str, origin: ManifestOrigin, known: Iterable[Pod], now: datetime) -> ParsedManifest:
    """Every document counts for itself. `known` are the pods of the text before this one.

    A document that has not changed in meaning gives the very pod that is known. When something is refused, known pods
    that the rest does not name again are kept: a slip of the pen ends nothing.
    """
    before = {pod.metadata.uid: pod for pod in known}
    found: list[Pod] = []
    refusals: list[RejectedDocument] = []
    for document in manifest.parse_manifest(text):
        pod, problems = static_pod(document, origin, now)
        if pod is None:
            refusals.append(RejectedDocument(document.number, problems))
        else:
            found.append(before.get(pod.metadata.uid, pod))
    if refusals:
        named = {namespaced_name(pod) for pod in found}
        found += [pod for pod in before.values() if namespaced_name(pod) not in named]
    return ParsedManifest(tuple(found), tuple(refusals))


def static_pod(document: Document, origin: ManifestOrigin, now: datetime) -> tuple[Pod | None, tuple[FieldError, ...]]:
    """The pod of one document, or every reason why there is none."""
    if document.errors or document.obj is None:
        return None, document.errors
    if not isinstance(document.obj, Pod):
        return None, (FieldError("kind", quoted(document.obj.KIND), '"Pod" is accepted here'),)
    problems = tuple(static_pods.check_static_pod(document.obj, origin.node))
    if problems:
        return None, problems
    return static_pods.static_pod(document.obj, origin.node, origin.source, origin.place, now), ()


def namespaced_name(pod: Pod) -> tuple[str, str]:
    """Namespace and name, of which a node has each only once."""
    return pod.metadata.namespace, pod.metadata.name


@dataclass(frozen=True, slots=True)
class SourcePods:
    """All the pods that one place (a path, a URL, the master) has for this node."""

    place: str
    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class DuplicatePod:
    """A pod that is left out because another has its name; `first` is where that one is from."""

    pod: Pod
    place: str
    first: str


def merge_sources(offers: Iterable[SourcePods]) -> tuple[dict[str, Pod], tuple[DuplicatePod, ...]]:
    """By UID, and what is left out: of several pods with one namespace and name, or one UID, the first counts."""
    pods: dict[str, Pod] = {}
    doubles: list[DuplicatePod] = []
    places: dict[tuple[str, str], str] = {}
    for offer in offers:
        for pod in offer.pods:
            name, uid = namespaced_name(pod), pod.metadata.uid
            if name in places or uid in pods:
                doubles.append(
                    DuplicatePod(pod, offer.place, places[name if name in places else namespaced_name(pods[uid])])
                )
                continue
            places[name] = offer.place
            pods[uid] = pod
    return pods, tuple(doubles)
