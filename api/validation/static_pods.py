"""Static pods, which a node reads from files, a URL or its socket, and their mirror pods on the API server. Pure.

Defines for the master and the node agent what a static pod may contain and which pods a node may create.
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
SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
"""Priority of the class system-cluster-critical. Pods with this priority or a higher one are critical."""
CONFIG_HASH = "kubernetes.io/config.hash"
CONFIG_SEEN = "kubernetes.io/config.seen"
CONFIG_MIRROR = "kubernetes.io/config.mirror"
STATIC_POD_TOLERATION = Toleration(operator="Exists", effect="NoExecute")
"""The toleration of static pods: taints of the node do not evict them."""

NEEDS_MASTER = "a static pod runs without the master, so it may not refer to objects there"
_SPEC_REFERENCES = ("serviceAccountName", "serviceAccount", "imagePullSecrets", "resourceClaims")
_VOLUME_REFERENCES = ("configMap", "secret", "persistentVolumeClaim", "ephemeral", "csi")
_PROJECTED_REFERENCES = ("configMap", "secret", "serviceAccountToken", "clusterTrustBundle", "podCertificate")
_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")


def is_static(pod: Pod) -> bool:
    """Return whether a pod of a node is static. Pods of the API server must have passed through `from_api_server`."""
    return pod.metadata.annotations.get(CONFIG_SOURCE) != "api"


def is_critical_pod(pod: Pod) -> bool:
    """Return whether other pods are preempted for this pod, and this pod for none: a static or system-critical one."""
    return is_static(pod) or has_critical_priority(pod)


def has_critical_priority(pod: Pod) -> bool:
    """Return whether a pod has a system-critical priority, so that it is not evicted because of pressure."""
    return (pod.spec.priority or 0) >= SYSTEM_CRITICAL_PRIORITY


def from_api_server(pod: Pod) -> Pod:
    """Return a pod of the API server with the annotation that tells it from a static pod."""
    annotations = {**pod.metadata.annotations, CONFIG_SOURCE: "api"}
    return replace(pod, metadata=replace(pod.metadata, annotations=annotations))


def is_mirror(pod: Pod) -> bool:
    """Return whether a pod is a mirror pod, which represents a static pod on the master."""
    return CONFIG_MIRROR in pod.metadata.annotations


# --- manifest → static pod --------------------------------------------------------------------------------------------


def static_pod(pod: Pod, node: str, source: str, location: str, seen: datetime) -> Pod:
    """Return the pod of a manifest as it runs on a node: named after the node, bound to it, with a UID from its
    content.

    `source` is file or http. `location` is the path or URL of the manifest. Metadata that a server sets is dropped.
    """
    uid = sha256(msgspec.json.encode(pod, order="sorted") + f"\0{node}\0{location}".encode()).hexdigest()[:32]
    annotations = {key: value for key, value in pod.metadata.annotations.items() if key != CONFIG_MIRROR}
    annotations |= {CONFIG_SOURCE: source, CONFIG_HASH: uid, CONFIG_SEEN: times.format_time(seen)}
    meta = ObjectMeta(
        name=full_name(pod, node),
        namespace=pod.metadata.namespace or "default",
        uid=uid,
        creation_timestamp=times.format_time(seen),
        labels=pod.metadata.labels,
        annotations=annotations,
    )
    tolerations = [toleration for toleration in pod.spec.tolerations if toleration != STATIC_POD_TOLERATION]
    spec = replace(pod.spec, node_name=node, tolerations=(*tolerations, STATIC_POD_TOLERATION))
    return pod_defaults(
        replace(pod, api_version=Pod.API_VERSION, kind=Pod.KIND, metadata=meta, spec=spec, status=PodStatus())
    )


def full_name(pod: Pod, node: str) -> str:
    """Return the name of a manifest's pod on a node."""
    return f"{pod.metadata.name}-{node.lower()}"


def check_static_pod(pod: Pod, node: str) -> Iterator[FieldError]:
    """Yield the errors of a manifest that apply only to static pods."""
    name = full_name(pod, node)
    if not pod.metadata.name:
        yield FieldError("metadata.name", '""', "a name is required; generateName is not enough", MISSING)
    elif error := names.dns_subdomain_error(name):
        yield FieldError("metadata.name", quoted(name), error)
    if pod.spec.node_name not in {"", node}:
        yield FieldError("spec.nodeName", quoted(pod.spec.node_name), f"this node, {quoted(node)}, or none is accepted")
    yield from api_references(pod)


def api_references(pod: Pod) -> Iterator[FieldError]:
    """Yield an error for each reference of a pod to an object of the API."""
    spec = msgspec.to_builtins(pod.spec)
    yield from (_reference(f"spec.{field}") for field in _SPEC_REFERENCES if spec.get(field))
    for index, volume in enumerate(spec.get("volumes", ())):
        path = f"spec.volumes[{index}]"
        yield from (_reference(f"{path}.{field}") for field in _VOLUME_REFERENCES if volume.get(field) is not None)
        for source_index, source in enumerate(_objects(_field(volume.get("projected"), "sources"))):
            source_path = f"{path}.projected.sources[{source_index}]"
            yield from (_reference(f"{source_path}.{field}") for field in _PROJECTED_REFERENCES if field in source)
    for field in _CONTAINERS:
        for index, container in enumerate(_objects(spec.get(field))):
            yield from _container_references(f"spec.{field}[{index}]", container)


def _container_references(path: str, container: dict[str, Any]) -> Iterator[FieldError]:
    for index, source in enumerate(_objects(container.get("envFrom"))):
        for field in ("configMapRef", "secretRef"):
            if field in source:
                yield _reference(f"{path}.envFrom[{index}].{field}")
    for index, variable in enumerate(_objects(container.get("env"))):
        for field in ("configMapKeyRef", "secretKeyRef"):
            if _field(variable.get("valueFrom"), field) is not None:
                yield _reference(f"{path}.env[{index}].valueFrom.{field}")


def _reference(path: str) -> FieldError:
    return FieldError(path, "given", NEEDS_MASTER, FORBIDDEN)


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _objects(value: object) -> list[dict[str, Any]]:
    """Return the objects of a list; anything else in the list counts as an empty object, so that indexes stay."""
    if not isinstance(value, list | tuple):
        return []
    return [element if isinstance(element, dict) else {} for element in value]


# --- static pod → mirror pod ------------------------------------------------------------------------------------------


def mirror_pod(pod: Pod, node: Node) -> Pod:
    """Return the mirror pod of a static pod. Its owner is the Node."""
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


def creation_denial(pod: Pod, node: str, node_uid: str) -> str | None:
    """Return why a node may not create a pod, None if it may.

    A node may create mirror pods of its own static pods, without references to objects of the API.
    """
    if not is_mirror(pod):
        return f"a node creates only pods with the annotation {CONFIG_MIRROR}"
    if pod.spec.node_name != node:
        return f"node {node} creates only pods that are bound to it, not to {pod.spec.node_name!r}"
    owners = [(owner.api_version, owner.kind, owner.name, owner.uid) for owner in pod.metadata.owner_references]
    if owners != [("v1", "Node", node, node_uid)]:
        return f"a mirror pod has one owner, the Node {node} with the uid {node_uid}"
    if any(owner.block_owner_deletion for owner in pod.metadata.owner_references):
        return "a mirror pod does not block the deletion of its Node"
    reference = next(api_references(pod), None)
    return None if reference is None else f"a mirror pod refers to no object of the API, but it has {reference.path}"


def check_mirror_pod(pod: Pod) -> Iterator[FieldError]:
    """Yield an error if a mirror pod is not bound to a node."""
    if is_mirror(pod) and not pod.spec.node_name:
        yield FieldError("spec.nodeName", '""', f"a node is required with the annotation {CONFIG_MIRROR}", MISSING)


def check_mirror_pod_update(old: Pod, new: Pod) -> Iterator[FieldError]:
    """Yield an error if an update changes whether a pod is a mirror pod, or of which static pod."""
    old_hash = old.metadata.annotations.get(CONFIG_MIRROR)
    new_hash = new.metadata.annotations.get(CONFIG_MIRROR)
    if old_hash != new_hash:
        yield FieldError(f"metadata.annotations[{CONFIG_MIRROR}]", quoted(new_hash), "field is immutable", FORBIDDEN)
