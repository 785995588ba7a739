"""Static pods, which a node reads from files, a URL or its socket, and their mirror pods on the API server. Pure.

Master and node agent agree here on what a static pod may ask for and on which pods a node may create.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec
from msgspec.structs import replace

from api.core.node import Node
from api.core.placement import Toleration
from api.core.pod import Pod, PodStatus
from api.meta import names, times
from api.meta.schema import FORBIDDEN, MISSING, FieldError, quoted
from api.meta.types import ObjectMeta, OwnerReference
from api.validation.defaults import pod_defaults

CONFIG_SOURCE = "kubernetes.io/config.source"
CONFIG_HASH = "kubernetes.io/config.hash"
CONFIG_SEEN = "kubernetes.io/config.seen"
CONFIG_MIRROR = "kubernetes.io/config.mirror"
STATIC_POD_TOLERATION = Toleration(operator="Exists", effect="NoExecute")
"""The toleration of static pods: trouble of the node does not evict them."""

NEEDS_MASTER = "a static pod runs without the master, so it may not refer to objects there"
_SPEC_REFERENCES = ("serviceAccountName", "serviceAccount", "imagePullSecrets", "resourceClaims")
_VOLUME_REFERENCES = ("configMap", "secret", "persistentVolumeClaim", "ephemeral", "csi")
_PROJECTED_REFERENCES = ("configMap", "secret", "serviceAccountToken", "clusterTrustBundle", "podCertificate")
_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")


def is_static(pod: Pod) -> bool:
    """Whether a pod of a node came from elsewhere than the master; one from there must have been marked so."""
    return pod.metadata.annotations.get(CONFIG_SOURCE) != "api"


def from_master(pod: Pod) -> Pod:
    """The pod of the master as it runs on its node, marked as such, whatever its annotations said."""
    annotations = {**pod.metadata.annotations, CONFIG_SOURCE: "api"}
    return replace(pod, metadata=replace(pod.metadata, annotations=annotations))


def is_mirror(pod: Pod) -> bool:
    """Whether the pod only shows on the master what a node runs."""
    return CONFIG_MIRROR in pod.metadata.annotations


# --- manifest → static pod --------------------------------------------------------------------------------------------


def static_pod(pod: Pod, node: str, source: str, place: str, seen: datetime) -> Pod:
    """The pod of a manifest as it runs on this node: named after it, bound to it, with a UID made of its content.

    `source` is file or http, `place` the path or URL. Of the metadata, what a server sets is dropped.
    """
    uid = sha256(msgspec.json.encode(pod, order="sorted") + f"\0{node}\0{place}".encode()).hexdigest()[:32]
    given = {key: value for key, value in pod.metadata.annotations.items() if key != CONFIG_MIRROR}
    annotations = {**given, CONFIG_SOURCE: source, CONFIG_HASH: uid, CONFIG_SEEN: times.format_time(seen)}
    meta = ObjectMeta(
        name=full_name(pod, node),
        namespace=pod.metadata.namespace or "default",
        uid=uid,
        creation_timestamp=times.format_time(seen),
        labels=pod.metadata.labels,
        annotations=annotations,
    )
    tolerations = tuple(row for row in pod.spec.tolerations if row != STATIC_POD_TOLERATION)
    spec = replace(pod.spec, node_name=node, tolerations=(*tolerations, STATIC_POD_TOLERATION))
    named = replace(pod, api_version=Pod.API_VERSION, kind=Pod.KIND, metadata=meta, spec=spec, status=PodStatus())
    return pod_defaults(named)


def full_name(pod: Pod, node: str) -> str:
    """The name under which a manifest's pod runs on a node."""
    return f"{pod.metadata.name}-{node.lower()}"


def problems(pod: Pod, node: str) -> Iterator[FieldError]:
    """What a manifest, good as it may be for the master, cannot have on a node."""
    if not pod.metadata.name:
        yield FieldError("metadata.name", '""', "a name is required; generateName is not enough", MISSING)
    elif names.dns_subdomain_error(full_name(pod, node)):
        yield FieldError("metadata.name", quoted(full_name(pod, node)), names.dns_subdomain_error(full_name(pod, node)))
    if pod.spec.node_name not in {"", node}:
        yield FieldError("spec.nodeName", quoted(pod.spec.node_name), f"this node, {quoted(node)}, or none is accepted")
    yield from references(pod)


def references(pod: Pod) -> Iterator[FieldError]:
    """Every object of the API that the pod needs, by the path where it is named."""
    spec = msgspec.to_builtins(pod.spec)
    yield from (_reference(f"spec.{field}") for field in _SPEC_REFERENCES if spec.get(field))
    for number, volume in enumerate(spec.get("volumes", ())):
        place = f"spec.volumes[{number}]"
        yield from (_reference(f"{place}.{field}") for field in _VOLUME_REFERENCES if volume.get(field) is not None)
        for index, source in enumerate(_rows(_part(volume.get("projected"), "sources"))):
            path = f"{place}.projected.sources[{index}]"
            yield from (_reference(f"{path}.{field}") for field in _PROJECTED_REFERENCES if field in source)
    for kind in _CONTAINERS:
        for number, container in enumerate(_rows(spec.get(kind))):
            yield from _container_references(f"spec.{kind}[{number}]", container)


def _container_references(path: str, container: dict[str, Any]) -> Iterator[FieldError]:
    for number, row in enumerate(_rows(container.get("envFrom"))):
        fields = ("configMapRef", "secretRef")
        yield from (_reference(f"{path}.envFrom[{number}].{field}") for field in fields if field in row)
    for number, row in enumerate(_rows(container.get("env"))):
        for field in ("configMapKeyRef", "secretKeyRef"):
            if _part(row.get("valueFrom"), field) is not None:
                yield _reference(f"{path}.env[{number}].valueFrom.{field}")


def _reference(path: str) -> FieldError:
    return FieldError(path, "given", NEEDS_MASTER, FORBIDDEN)


def _part(value: object, field: str) -> object:
    return value.get(field) if isinstance(value, dict) else None


def _rows(value: object) -> list[dict[str, Any]]:
    """A list's objects, in their places; anything else in it is somebody else's problem."""
    return [row if isinstance(row, dict) else {} for row in value] if isinstance(value, list | tuple) else []


# --- static pod → mirror pod ------------------------------------------------------------------------------------------


def mirror_pod(pod: Pod, node: Node) -> Pod:
    """The object that shows a static pod on the master; it belongs to its Node."""
    owner = OwnerReference(
        api_version="v1", kind="Node", name=node.metadata.name, uid=node.metadata.uid, controller=True
    )
    meta = ObjectMeta(
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        labels=pod.metadata.labels,
        annotations={**pod.metadata.annotations, CONFIG_MIRROR: pod.metadata.annotations[CONFIG_HASH]},
        owner_references=(owner,),
    )
    return replace(pod, metadata=meta, status=PodStatus())


def creation_refusal(pod: Pod, node: str, node_uid: str) -> str | None:
    """Why a node may not create this pod, or None: it creates mirrors of its own static pods, and they need nothing."""
    if not is_mirror(pod):
        return f"a node creates only pods with the annotation {CONFIG_MIRROR}"
    if pod.spec.node_name != node:
        return f"node {node} creates only pods that are bound to it, not to {pod.spec.node_name!r}"
    owners = [(one.api_version, one.kind, one.name, one.uid) for one in pod.metadata.owner_references]
    if owners != [("v1", "Node", node, node_uid)]:
        return f"a mirror pod has one owner, the Node {node} with the uid {node_uid}"
    if any(one.block_owner_deletion for one in pod.metadata.owner_references):
        return "a mirror pod does not block the deletion of its Node"
    needed = next(references(pod), None)
    return None if needed is None else f"a mirror pod refers to no object of the API, but it has {needed.path}"


def check_mirror(pod: Pod) -> Iterator[FieldError]:
    """A mirror pod is where the pod is that it mirrors."""
    if is_mirror(pod) and not pod.spec.node_name:
        yield FieldError("spec.nodeName", '""', f"a node is required with the annotation {CONFIG_MIRROR}", MISSING)


def immutable(old: Pod, new: Pod) -> Iterator[FieldError]:
    """Whether a pod mirrors another, and which, is settled when it is made."""
    before, after = (pod.metadata.annotations.get(CONFIG_MIRROR) for pod in (old, new))
    if before != after:
        yield FieldError(f"metadata.annotations[{CONFIG_MIRROR}]", quoted(after), "field is immutable", FORBIDDEN)
