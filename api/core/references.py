"""The objects that a pod refers to, and the values of `fieldRef` and `resourceFieldRef`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from decimal import ROUND_CEILING
from typing import NamedTuple

from api.core.config import ConfigMap, Secret
from api.core.pod import Container, Pod
from api.core.resource_requests import all_containers
from api.core.storage import PersistentVolumeClaim
from api.core.volumes import Volume
from api.meta import quantity
from api.meta.types import Object, ResourceFieldSelector

RESOURCE_FIELD = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-[A-Za-z0-9]+)")
ACCEPTED_RESOURCE_FIELDS = "limits. and requests. of cpu, memory, ephemeral-storage and hugepages-SIZE are accepted"

_FIELD_BY_KEY = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")

_FIELDS: Mapping[str, Callable[[Pod], str]] = {
    "metadata.name": lambda pod: pod.metadata.name,
    "metadata.namespace": lambda pod: pod.metadata.namespace,
    "metadata.uid": lambda pod: pod.metadata.uid,
    "spec.nodeName": lambda pod: pod.spec.node_name,
    "spec.serviceAccountName": lambda pod: pod.spec.service_account_name,
    "status.hostIP": lambda pod: pod.status.host_ip,
    "status.hostIPs": lambda pod: pod.status.host_ip,
    "status.podIP": lambda pod: pod.status.pod_ip,
    "status.podIPs": lambda pod: pod.status.pod_ip,
}
ACCEPTED_FIELDS = f"{', '.join(_FIELDS)}, metadata.labels['KEY'] and metadata.annotations['KEY'] are accepted"


# --- field values -----------------------------------------------------------------------------------------------------


def is_pod_field(path: str) -> bool:
    """Return whether a path names a field that `fieldRef` supports."""
    return path in _FIELDS or _FIELD_BY_KEY.fullmatch(path) is not None


def pod_field_value(pod: Pod, path: str) -> str:
    """Return the value of a field, an empty string if the pod has none. Raises KeyError for an unsupported path."""
    match = _FIELD_BY_KEY.fullmatch(path)
    if match is None:
        return _FIELDS[path](pod)
    values = pod.metadata.labels if match[1] == "labels" else pod.metadata.annotations
    return values.get(match[2], "")


def resource_field_value(
    pod: Pod, selector: ResourceFieldSelector, container: str, allocatable: Mapping[str, str]
) -> str:
    """Return the value of a resource field in units of its divisor, rounded up.

    The container is `container` unless the selector names another. A missing limit is the node's allocatable amount, as
    in Kubernetes. Raises KeyError if the pod has no such container.
    """
    name = selector.container_name or container
    resources = next((candidate.resources for candidate in all_containers(pod) if candidate.name == name), None)
    if resources is None:
        raise KeyError(name)
    kind, _, resource = selector.resource.partition(".")
    if kind == "limits":
        amount = resources.limits.get(resource, allocatable.get(resource, "0"))
    else:
        amount = resources.requests.get(resource, "0")
    divisor = quantity.parse(selector.divisor or 1) or quantity.parse(1)
    return str(int((quantity.parse(amount) / divisor).to_integral_value(ROUND_CEILING)))


# --- references -------------------------------------------------------------------------------------------------------


class Reference(NamedTuple):
    """A reference to one object. `namespace` is empty for cluster-scoped kinds."""

    kind: type[Object]
    namespace: str
    name: str

    def __str__(self) -> str:
        return f'{self.kind.KIND.lower()} "{self.name}"'


def pod_refs(pod: Pod) -> frozenset[Reference]:
    """Return all objects that a pod refers to, whether they exist or not."""
    namespace = pod.metadata.namespace
    of_volumes = {ref for volume in pod.spec.volumes for ref in volume_refs(volume, namespace)}
    of_containers = {ref for container in all_containers(pod) for ref in env_refs(container, namespace)}
    return frozenset((*of_volumes, *of_containers, *image_pull_secret_refs(pod)))


def image_pull_secret_refs(pod: Pod) -> tuple[Reference, ...]:
    """Return the Secrets with the registry credentials of a pod."""
    return tuple(Reference(Secret, pod.metadata.namespace, secret.name) for secret in pod.spec.image_pull_secrets)


def env_refs(container: Container, namespace: str) -> Iterator[Reference]:
    """Yield the objects that the environment of a container refers to."""
    for source in container.env_from:
        if source.config_map_ref is not None:
            yield Reference(ConfigMap, namespace, source.config_map_ref.name)
        if source.secret_ref is not None:
            yield Reference(Secret, namespace, source.secret_ref.name)
    for variable in container.env:
        if variable.value_from is None:
            continue
        if variable.value_from.config_map_key_ref is not None:
            yield Reference(ConfigMap, namespace, variable.value_from.config_map_key_ref.name)
        if variable.value_from.secret_key_ref is not None:
            yield Reference(Secret, namespace, variable.value_from.secret_key_ref.name)


def volume_refs(volume: Volume, namespace: str) -> Iterator[Reference]:
    """Yield the objects that a volume of a pod refers to."""
    if volume.config_map is not None:
        yield Reference(ConfigMap, namespace, volume.config_map.name)
    if volume.secret is not None:
        yield Reference(Secret, namespace, volume.secret.secret_name)
    if volume.persistent_volume_claim is not None:
        yield Reference(PersistentVolumeClaim, namespace, volume.persistent_volume_claim.claim_name)
    for source in volume.projected.sources if volume.projected is not None else ():
        if source.config_map is not None:
            yield Reference(ConfigMap, namespace, source.config_map.name)
        if source.secret is not None:
            yield Reference(Secret, namespace, source.secret.name)
