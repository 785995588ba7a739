"""What of objects and settings goes into an archive for support: only what is listed here. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from api.meta.redaction import REDACTED, redact_document, redact_text

SECRET_SETTINGS = frozenset({"manifestUrlHeaders"})
"""Settings of the daemons whose values may be secret, beside those whose names say so."""

ONLY_COUNTED = frozenset({"oauthaccesstokens", "oauthauthorizetokens", "useroauthaccesstokens"})
"""Resources whose names are hashes of tokens."""

_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "labels")
_CONTAINER = ("name", "image", "imagePullPolicy", "resources", "ports", "securityContext", "volumeMounts")
_POD = (
    "nodeName",
    "serviceAccountName",
    "hostNetwork",
    "hostPID",
    "restartPolicy",
    "nodeSelector",
    "tolerations",
    "priority",
    "securityContext",
    "terminationGracePeriodSeconds",
)
_NETWORK = (
    "change-network",
    "multicast-enabled",
    "podlane.io/",
    "pod.network.openshift.io/",
    "netnamespace.network.openshift.io/",
)
"""Beginnings and ends of annotations whose values are kept: they steer the pod network."""


def metadata(given: Any) -> dict[str, Any]:
    """Return the metadata of an object: of annotations only the names, but for those of the pod network."""
    found: Mapping[str, Any] = given if isinstance(given, dict) else {}
    kept = _chosen(found, _METADATA)
    annotations = found.get("annotations") or {}
    kept["annotations"] = {
        name: value if name.startswith(_NETWORK) or name.endswith(_NETWORK) else "left out"
        for name, value in annotations.items()
    }
    return kept


def _chosen(given: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given} if isinstance(given, dict) else {}


def pod(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod without commands, environment, probes and what containers have written."""
    spec = given.get("spec") or {}
    kept = _chosen(spec, _POD)
    for name in ("initContainers", "containers", "ephemeralContainers"):
        kept[name] = [_chosen(container, _CONTAINER) for container in spec.get(name) or ()]
    kept["volumes"] = [
        {"name": volume.get("name"), "types": sorted(volume.keys() - {"name"})} for volume in spec.get("volumes") or ()
    ]
    return {"metadata": metadata(given.get("metadata")), "spec": kept, "status": _without_messages(given.get("status"))}


def _without_messages(status: Any) -> Any:
    """Return the status of a pod without termination messages, which its programs write."""
    if isinstance(status, dict):
        return {
            key: _chosen(value, ("exitCode", "signal", "reason", "startedAt", "finishedAt"))
            if key == "terminated"
            else _without_messages(value)
            for key, value in status.items()
        }
    return [_without_messages(value) for value in status] if isinstance(status, list) else status


def event(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event."""
    names = ("involvedObject", "reason", "message", "type", "count", "firstTimestamp", "lastTimestamp", "source")
    return _chosen(given, names)


def whole(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of the network or a node, whose fields have no secrets."""
    return {**given, "metadata": metadata(given.get("metadata"))}


def listed(given: Mapping[str, Any]) -> str:
    """Return the name of an object, with its project."""
    found = given.get("metadata") or {}
    return "/".join(filter(None, (found.get("namespace"), found.get("name"))))


def settings(text: bytes) -> bytes:
    """Return a configuration file without the values of settings that are secret; all of it if it cannot be read."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError):
        return b"# not YAML\n" + redact_text(text)
    if isinstance(document, dict):
        document = {key: REDACTED.decode() if key in SECRET_SETTINGS else value for key, value in document.items()}
    return yaml.safe_dump(redact_document(document), sort_keys=False, allow_unicode=True).encode()


def encode(document: object) -> bytes:
    """Return a document as JSON that people can read."""
    return msgspec.json.format(msgspec.json.encode(redact_document(document)), indent=1)
