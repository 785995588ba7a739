"""The least of OpenAPI v3 by which kubectl knows that this server validates fields itself. Pure.

kubectl looks for the query parameter `fieldValidation` on the PATCH of a kind; where it is, it leaves validation to the
server. Schemas are as open as the kinds' own validation allows.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from master.kinds import ALL
from master.kinds.kind import AnyKind

Row = dict[str, Any]

V2_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def v2() -> bytes:
    """GET /openapi/v2, in protobuf (gnostic's Document: 1 swagger, 2 info {1 title, 2 version}), with no kinds in it.

    kubectl 1.27 and 1.28 read it before they look at v3, and give up without it.
    """
    info = _text(1, "Podlane") + _text(2, "v1.32.0")
    return _text(1, "2.0") + b"\x12" + bytes([len(info)]) + info


def _text(number: int, text: str) -> bytes:
    return bytes([number << 3 | 2, len(text)]) + text.encode("ascii")


PARAMETERS = ("dryRun", "fieldManager", "fieldValidation")


def _path(kind: AnyKind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def index() -> Row:
    """GET /openapi/v3: the hash in an address changes with what is found there, so that clients can keep it."""
    paths = {}
    for path in sorted({_path(kind) for kind in ALL}):
        content = msgspec.json.encode(document(path))
        digest = hashlib.sha256(content).hexdigest()[:32].upper()
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def document(path: str) -> Row | None:
    """GET /openapi/v3/PATH: the kinds of one group and version; None if there are none."""
    kinds = [kind for kind in ALL if _path(kind) == path]
    if not kinds:
        return None
    return {
        "openapi": "3.0.0",
        "info": {"title": "Podlane", "version": "v1.32.0"},
        "paths": {f"/{path}/{place}": row for kind in kinds for place, row in _operations(kind)},
        "components": {"schemas": {_schema_name(kind): _schema(kind) for kind in kinds}},
    }


def _schema_name(kind: AnyKind) -> str:
    domain = ".".join(reversed(kind.group.split("."))) if kind.group else "io.k8s.api.core"
    return f"{domain}.{kind.version}.{kind.name}"


def _identity(kind: AnyKind) -> Row:
    return {"group": kind.group, "version": kind.version, "kind": kind.name}


def _operations(kind: AnyKind) -> list[tuple[str, Row]]:
    place = f"namespaces/{{namespace}}/{kind.plural}" if kind.namespaced else kind.plural
    collection: Row = {"post": _operation(kind, "post")}
    single: Row = {verb: _operation(kind, action) for verb, action in (("put", "put"), ("patch", "patch"))}
    return [(place, collection), (f"{place}/{{name}}", single)]


def _operation(kind: AnyKind, action: str) -> Row:
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}} for name in PARAMETERS
    ]
    return {
        "operationId": f"{action}{kind.name}",
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _identity(kind),
    }


def _schema(kind: AnyKind) -> Row:
    return {
        "type": "object",
        "description": (kind.type.__doc__ or "").strip(),
        "x-kubernetes-group-version-kind": [_identity(kind)],
        "x-kubernetes-preserve-unknown-fields": True,
    }
