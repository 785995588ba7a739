"""Reads static pods from manifests, and merges the pods of all sources. Pure."""

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
    """The origin of a manifest: the node that reads it, `source` (file or http), and its path or URL."""

    node: str
    source: str
    location: str


@dataclass(frozen=True, slots=True)
class RejectedDocument:
    """A document that is no valid pod of this node. `number` counts from 1."""

    number: int
    problems: tuple[FieldError, ...]

    def __str__(self) -> str:
        return manifest.format_errors(f"document {self.number}", self.problems)


REJECTED_REASON = "FailedValidation"
MAX_MESSAGE = 1000
"""Reason of the event about a rejected document, and the maximum length of its message."""


def rejection_message(location: str, rejected: RejectedDocument) -> str:
    """Return the message of the event about a rejected document, in one line."""
    message = f"{location} document {rejected.number} is not accepted: " + "; ".join(map(str, rejected.problems))
    return message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 3]}..."


@dataclass(frozen=True, slots=True)
class ParsedManifest:
    """The pods of a manifest, and its rejected documents."""

    pods: tuple[Pod, ...] = ()
    rejected: tuple[RejectedDocument, ...] = ()


def parse_manifest(text: str, origin: ManifestOrigin, previous_pods: Iterable[Pod], now: datetime) -> ParsedManifest:
    """Parse the documents of a manifest. `previous_pods` are the pods of its previous version.

    A document whose meaning has not changed yields the same pod object as before. If a document is rejected, previous
    pods that no other document names are kept, so that a typing error ends no pod.
    """
    previous = {pod.metadata.uid: pod for pod in previous_pods}
    parsed: list[Pod] = []
    rejected: list[RejectedDocument] = []
    for document in manifest.parse_manifest(text):
        pod, problems = static_pod(document, origin, now)
        if pod is None:
            rejected.append(RejectedDocument(document.number, problems))
        else:
            parsed.append(previous.get(pod.metadata.uid, pod))
    if rejected:
        names = {namespaced_name(pod) for pod in parsed}
        parsed += [pod for pod in previous.values() if namespaced_name(pod) not in names]
    return ParsedManifest(tuple(parsed), tuple(rejected))


def static_pod(document: Document, origin: ManifestOrigin, now: datetime) -> tuple[Pod | None, tuple[FieldError, ...]]:
    """Return the pod of one document, or all problems of the document."""
    if document.errors or document.obj is None:
        return None, document.errors
    if not isinstance(document.obj, Pod):
        return None, (FieldError("kind", quoted(document.obj.KIND), '"Pod" is accepted here'),)
    problems = tuple(static_pods.check_static_pod(document.obj, origin.node))
    if problems:
        return None, problems
    return static_pods.static_pod(document.obj, origin.node, origin.source, origin.location, now), ()


def namespaced_name(pod: Pod) -> tuple[str, str]:
    """Return namespace and name. A node runs at most one pod of each."""
    return pod.metadata.namespace, pod.metadata.name


@dataclass(frozen=True, slots=True)
class SourcePods:
    """The pods of one location: a path, a URL or the API server."""

    location: str
    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class DuplicatePod:
    """A pod that is ignored because another pod has its name. `first_location` is the location of the other pod."""

    pod: Pod
    location: str
    first_location: str


def merge_sources(sources: Iterable[SourcePods]) -> tuple[dict[str, Pod], tuple[DuplicatePod, ...]]:
    """Return the pods by UID, and the ignored duplicates. Of pods with the same name or UID the first counts."""
    pods: dict[str, Pod] = {}
    duplicates: list[DuplicatePod] = []
    locations: dict[tuple[str, str], str] = {}
    for source in sources:
        for pod in source.pods:
            name = namespaced_name(pod)
            uid = pod.metadata.uid
            if name in locations or uid in pods:
                duplicates.append(
                    DuplicatePod(
                        pod, source.location, locations[name if name in locations else namespaced_name(pods[uid])]
                    )
                )
                continue
            locations[name] = source.location
            pods[uid] = pod
    return pods, tuple(duplicates)
