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
"""Maximum size of a manifest from any source."""


@dataclass(frozen=True, slots=True)
class ManifestOrigin:
    """Where a manifest comes from: the node that reads it, `source` (file or http), and its path or URL."""

    node: str
    source: str
    place: str


@dataclass(frozen=True, slots=True)
class RejectedDocument:
    """A document that is no valid pod of this node. `number` counts from 1."""

    number: int
    problems: tuple[FieldError, ...]

    def __str__(self) -> str:
        return manifest.format_errors(f"document {self.number}", self.problems)


REJECTED_REASON, MAX_MESSAGE = "FailedValidation", 1000
"""Reason of the event about a rejected document, and the maximum length of its message."""


def rejection_message(place: str, refusal: RejectedDocument) -> str:
    """Return the message of the event about a rejected document, in one line."""
    message = f"{place} document {refusal.number} is not accepted: " + "; ".join(map(str, refusal.problems))
    return message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 3]}..."


@dataclass(frozen=True, slots=True)
class ParsedManifest:
    """The pods of a manifest, and its rejected documents."""

    pods: tuple[Pod, ...] = ()
    refusals: tuple[RejectedDocument, ...] = ()


def parse_manifest(text: str, origin: ManifestOrigin, known: Iterable[Pod], now: datetime) -> ParsedManifest:
    """Parse the documents of a manifest. `known` are the pods of its previous version.

    A document whose meaning has not changed yields the same pod object as before. If a document is rejected, known pods
    that no other document names are kept, so that a typing error ends no pod.
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
    """Return the pod of one document, or all problems of the document."""
    if document.errors or document.obj is None:
        return None, document.errors
    if not isinstance(document.obj, Pod):
        return None, (FieldError("kind", quoted(document.obj.KIND), '"Pod" is accepted here'),)
    problems = tuple(static_pods.check_static_pod(document.obj, origin.node))
    if problems:
        return None, problems
    return static_pods.static_pod(document.obj, origin.node, origin.source, origin.place, now), ()


def namespaced_name(pod: Pod) -> tuple[str, str]:
    """Return namespace and name. A node runs at most one pod of each."""
    return pod.metadata.namespace, pod.metadata.name


@dataclass(frozen=True, slots=True)
class SourcePods:
    """The pods that one place (a path, a URL, the API server) has for this node."""

    place: str
    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class DuplicatePod:
    """A pod that is ignored because another pod has its name. `first` is the place of the other pod."""

    pod: Pod
    place: str
    first: str


def merge_sources(sources: Iterable[SourcePods]) -> tuple[dict[str, Pod], tuple[DuplicatePod, ...]]:
    """Return the pods by UID, and the ignored duplicates. Of pods with the same name or UID the first counts."""
    pods: dict[str, Pod] = {}
    duplicates: list[DuplicatePod] = []
    places: dict[tuple[str, str], str] = {}
    for source in sources:
        for pod in source.pods:
            name, uid = namespaced_name(pod), pod.metadata.uid
            if name in places or uid in pods:
                duplicates.append(
                    DuplicatePod(pod, source.place, places[name if name in places else namespaced_name(pods[uid])])
                )
                continue
            places[name] = source.place
            pods[uid] = pod
    return pods, tuple(duplicates)
