"""Decodes manifests as users write them: YAML or JSON, several documents, lists. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from api.codec import yaml
from api.codec.yaml import PlainDocument
from api.core.certificates import CertificateSigningRequest
from api.core.config import ConfigMap, Secret
from api.core.endpoints import Endpoints, EndpointSlice
from api.core.events import Event
from api.core.node import Lease, Namespace, Node
from api.core.pod import Pod
from api.core.services import Service
from api.core.storage import PersistentVolume, PersistentVolumeClaim
from api.meta.schema import UNKNOWN, FieldError, quoted
from api.meta.types import Object
from api.network.queries import NodeQuery
from api.network.types import ClusterNetwork, HostSubnet, NetNamespace
from api.validation.registry import decode

KINDS: tuple[type[Object], ...] = (
    Namespace,
    Node,
    Pod,
    ConfigMap,
    Secret,
    PersistentVolume,
    PersistentVolumeClaim,
    ClusterNetwork,
    HostSubnet,
    NetNamespace,
    NodeQuery,
    Event,
    Lease,
    Service,
    Endpoints,
    EndpointSlice,
    CertificateSigningRequest,
)
"""The kinds that a manifest may contain."""


@dataclass(frozen=True, slots=True)
class Document:
    """An object of a manifest, or its errors. `number` counts from 1.

    `unknown_kind` is apiVersion and kind of an object of another kind than KINDS; both are empty for other documents.
    """

    number: int
    obj: Object | None
    errors: tuple[FieldError, ...]
    warnings: tuple[str, ...] = ()
    unknown_kind: tuple[str, str] = ("", "")


def parse_manifest(text: str) -> tuple[Document, ...]:
    """Return every document of a manifest.

    A document with errors does not affect the others. Unknown fields are errors.
    """
    plain_documents = [plain for document in yaml.parse(text) for plain in _list_items(document)]
    return tuple(
        Document(number, None, plain.errors) if plain.errors else _decode_document(number, plain.value)
        for number, plain in enumerate(plain_documents, 1)
    )


def _list_items(plain: PlainDocument) -> Iterator[PlainDocument]:
    """Yield the items of a list, or the document itself. Items of a PodList may omit apiVersion and kind."""
    document = plain.value
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(kind, str) or not kind.endswith("List"):
        yield plain
        return
    items = document.get("items") or []
    if not isinstance(items, list):
        yield PlainDocument(None, (FieldError("items", quoted(items), "a list is accepted"),))
        return
    type_meta: dict[str, object] = {}
    if kind != "List":
        type_meta = {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List")}
    for item in items:
        yield PlainDocument({**type_meta, **item} if isinstance(item, dict) else item)


def _decode_document(number: int, document: object) -> Document:
    if not isinstance(document, dict):
        return Document(number, None, (FieldError("the document", quoted(document), "an object is accepted"),))
    api_version = document.get("apiVersion")
    kind_name = document.get("kind")
    for kind in KINDS:
        if (api_version, kind_name) == (kind.API_VERSION, kind.KIND):
            obj, errors, warnings = decode(kind, document)
            return Document(number, None if errors else obj, errors, warnings)
    accepted = ", ".join(f"{kind.API_VERSION} {kind.KIND}" for kind in KINDS)
    bad_value = f"{quoted(api_version)} {quoted(kind_name)}"
    errors = (FieldError("apiVersion and kind", bad_value, f"accepted are {accepted}"),)
    if isinstance(api_version, str) and isinstance(kind_name, str):
        return Document(number, None, errors, unknown_kind=(api_version, kind_name))
    return Document(number, None, errors)


def format_errors(source: str, errors: tuple[FieldError, ...]) -> str:
    """Return the errors of one document as text: a headline, then one line for each error."""
    count = "1 problem" if len(errors) == 1 else f"{len(errors)} problems"
    width = max(len(error.path) for error in errors)
    lines = [f"  {error.path.ljust(width)}  {_message(error)}" for error in errors]
    return "\n".join([f"{source}: not accepted ({count})", *lines])


def _message(error: FieldError) -> str:
    if error.reason == UNKNOWN:
        return f"is not a field{error.detail}"
    return str(error).removeprefix(f"{error.path}: ")
