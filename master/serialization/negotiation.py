"""Media types: the form of the response that a client accepts, and decoding of request bodies. Pure.

Raises `errors.StatusError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from api.codec import yaml
from api.codec.limits import MAX_DEPTH, MAX_VALUES, has_too_many_parts, has_too_many_values, is_too_deep
from master import errors
from master.serialization.duplicate_fields import duplicate_fields

META = "meta.k8s.io"
"""The group of the forms that show an object in another way."""


class View(Enum):
    """The form of the objects in a response: its kind, and its version in meta.k8s.io."""

    _value_: tuple[str, str]

    OBJECT = ("", "")
    TABLE = ("Table", "v1")
    TABLE_V1BETA1 = ("Table", "v1beta1")
    METADATA = ("PartialObjectMetadata", "v1")
    METADATA_V1BETA1 = ("PartialObjectMetadata", "v1beta1")

    @property
    def is_table(self) -> bool:
        """Return whether objects are shown as rows of a Table."""
        return self.value[0] == "Table"

    @property
    def is_metadata(self) -> bool:
        """Return whether only the metadata is shown."""
        return self.value[0] == "PartialObjectMetadata"

    @property
    def api_version(self) -> str:
        """Return the apiVersion of the response."""
        return f"{META}/{self.value[1]}"


# --- the form of the answer -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Media:
    """An entry of an Accept header."""

    type: str
    parameters: Mapping[str, str]


def parse_accept(header: str) -> list[Media]:
    """Return the entries of an Accept header in its order. Qualities are ignored: clients list the best first."""
    entries: list[Media] = []
    for entry in header.split(","):
        kind, *parameters = (part.strip() for part in entry.split(";"))
        if kind:
            pairs = (parameter.partition("=") for parameter in parameters)
            entries.append(Media(kind.lower(), {key.strip(): value.strip() for key, _, value in pairs}))
    return entries or [Media("*/*", {})]


def negotiate(header: str) -> View:
    """Return the first supported form in the Accept header. Raise StatusError if there is none."""
    for entry in parse_accept(header):
        if entry.type not in ("application/json", "application/*", "*/*"):
            continue
        form, version = entry.parameters.get("as", ""), entry.parameters.get("v", "")
        if form == "":
            return View.OBJECT
        name_and_version = (form.removesuffix("List"), version)
        view = next((view for view in View if view.value == name_and_version), None)
        if view is not None and entry.parameters.get("g") == META:
            return view
    raise errors.not_acceptable()


JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
YAML = "application/yaml"

MAX_YAML_BYTES = 256 << 10
"""Bytes. The parser of YAML is a hundred times slower than that of JSON; JSON is YAML, too, and not limited by this."""

MAX_YAML_NODES = 20_000
"""Keys and values in a YAML body. The parser takes almost a second of a core for them."""


class Body(NamedTuple):
    """The document in a body, and a sentence for each field that the body sets twice."""

    document: Any
    duplicate_fields: tuple[str, ...] = ()


def decode_body(patches: bool, content_type: str, body: bytes) -> Body:
    """Return what is in a body; `patches` is set for a PATCH request."""
    readers = _PATCH_DECODERS if patches else _OBJECT_DECODERS
    if content_type not in readers:
        if patches:
            raise errors.unsupported_patch()
        raise errors.unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: "
            + ", ".join(filter(None, _OBJECT_DECODERS))
        )
    return readers[content_type](body)


def _too_deep() -> errors.StatusError:
    return errors.bad_request(f"the body has more than {MAX_DEPTH} levels")


def _too_many_values() -> errors.StatusError:
    return errors.status_error(413, "RequestEntityTooLarge", f"the body has more than {MAX_VALUES} values")


def _parse_json(body: bytes) -> Any:
    """Return the document of a JSON text. Raises StatusError beyond the limits, and DecodeError if it is not JSON."""
    if has_too_many_parts(body):
        raise _too_many_values()
    try:
        document = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    # Counting brackets takes less than 1 us. Most objects have so few that they need not be walked.
    brackets = body.count(b"{") + body.count(b"[")
    if brackets > MAX_DEPTH and is_too_deep(document):
        raise _too_deep()
    if brackets + body.count(b",") > MAX_VALUES and has_too_many_values(document):
        raise _too_many_values()
    return document


def _decode_json(body: bytes) -> Body:
    try:
        document = _parse_json(body)
        return Body(document, duplicate_fields(body, document))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.bad_request(f"the body is not JSON: {error}") from error


def _decode_yaml(body: bytes) -> Body:
    if body.lstrip()[:1] in (b"{", b"["):
        try:
            document = _parse_json(body)
            return Body(document, duplicate_fields(body, document))
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # A YAML flow collection begins like JSON.
    if len(body) > MAX_YAML_BYTES:
        message = f"the body is YAML of {len(body)} bytes; {MAX_YAML_BYTES} are accepted, or JSON of any length"
        raise errors.status_error(413, "RequestEntityTooLarge", message)
    try:
        documents = yaml.parse(body.decode(), MAX_YAML_NODES)
    except UnicodeDecodeError as error:
        raise errors.bad_request(f"the body is not UTF-8: {error}") from error
    problems = [problem for document in documents for problem in document.errors]
    if problems:
        raise errors.bad_request(f"the body is not YAML as objects are written in: {problems[0]}")
    if len(documents) != 1:
        raise errors.bad_request(f"the body holds {len(documents)} documents; one is accepted")
    plain = documents[0]
    if has_too_many_values(plain.value):
        raise _too_many_values()
    if not plain.duplicate_keys:
        return Body(plain.value)
    return Body(plain.value, ("\n  ".join(("yaml: unmarshal errors:", *plain.duplicate_keys)),))


def _decode_protobuf(body: bytes) -> Body:
    # The runtime takes 5 MB. It is imported when the first client sends such a body.
    from master.serialization import protobuf  # noqa: PLC0415

    try:
        document = protobuf.document(body)
    except (protobuf.Unreadable, UnicodeDecodeError) as error:
        raise errors.unsupported_media_type(f"the protobuf body cannot be read: {error}") from error
    except protobuf.TooManyValues as error:
        raise _too_many_values() from error
    if is_too_deep(document):
        raise _too_deep()
    if has_too_many_values(document):  # JSON in the message counts, too.
        raise _too_many_values()
    return Body(document)


_Decoders = Mapping[str, Callable[[bytes], Body]]
_OBJECT_DECODERS: _Decoders = {
    "application/json": _decode_json,
    "": _decode_json,
    YAML: _decode_yaml,
    "application/vnd.kubernetes.protobuf": _decode_protobuf,
}
_PATCH_DECODERS: _Decoders = {
    JSON_PATCH: _decode_json,
    MERGE_PATCH: _decode_json,
    STRATEGIC_PATCH: _decode_json,
    APPLY_PATCH: _decode_yaml,
}
