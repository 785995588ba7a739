"""The objects that a pod refers to, and the values of `fieldRef` and `resourceFieldRef`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from decimal import ROUND_CEILING
from typing import NamedTuple

from api.core.config import ConfigMap, Secret
from api.core.pod import Container, Pod
from api.core.resources import all_containers
from api.core.storage import PersistentVolumeClaim
from api.core.volumes import Volume
from api.meta import quantity
from api.meta.types import Object, ResourceFieldSelector

_ACCEPTED = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-[A-Za-z0-9]+)")
WORDS = "limits. and requests. of cpu, memory, ephemeral-storage and hugepages-SIZE are accepted"


def resource_field_value(
    pod: Pod, selector: ResourceFieldSelector, container: str, allocatable: Mapping[str, str]
) -> str:
    """In whole divisors, rounded up; a limit that is missing is what the node can give (facts: node 7).

    `container` is asked unless the selector names another. Raises KeyError if the pod has no such container.
    """
    name = selector.container_name or container
    found = next((one for one in all_containers(pod) if one.name == name), None)
    if found is None:
        raise KeyError(name)
    kind, _, resource = selector.resource.partition(".")
    if kind == "limits":
        given = found.resources.limits.get(resource, allocatable.get(resource, "0"))
    else:
        given = found.resources.requests.get(resource, "0")
    divisor = quantity.parse(selector.divisor or 1) or quantity.parse(1)
    return str(int((quantity.parse(given) / divisor).to_integral_value(ROUND_CEILING)))


_BY_KEY = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")

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

ACCEPTED = f"{', '.join(_FIELDS)}, metadata.labels['KEY'] and metadata.annotations['KEY'] are accepted"


def is_field(path: str) -> bool:
    """Whether a path names such a field."""
    return path in _FIELDS or _BY_KEY.fullmatch(path) is not None


def field_value(pod: Pod, path: str) -> str:
    """The field's value; empty where the pod has none. Raises KeyError for a path that `is_field` refuses."""
    found = _BY_KEY.fullmatch(path)
    if found is None:
        return _FIELDS[path](pod)
    kept = pod.metadata.labels if found[1] == "labels" else pod.metadata.annotations
    return kept.get(found[2], "")


class Reference(NamedTuple):
    """One object; `namespace` is empty for kinds that have none."""

    kind: type[Object]
    namespace: str
    name: str

    def __str__(self) -> str:
        return f'{self.kind.KIND.lower()} "{self.name}"'


def pod_refs(pod: Pod) -> frozenset[Reference]:
    """Everything that the pod names, whether it is there or not."""
    namespace = pod.metadata.namespace
    of_volumes = {found for volume in pod.spec.volumes for found in volume_refs(volume, namespace)}
    of_containers = {found for one in all_containers(pod) for found in env_refs(one, namespace)}
    return frozenset((*of_volumes, *of_containers, *image_pull_secret_refs(pod)))


def image_pull_secret_refs(pod: Pod) -> tuple[Reference, ...]:
    """Where the passwords for the images of a pod stand."""
    return tuple(Reference(Secret, pod.metadata.namespace, one.name) for one in pod.spec.image_pull_secrets)


def env_refs(container: Container, namespace: str) -> Iterator[Reference]:
    """What the environment of a container of that namespace is taken from."""
    for source in container.env_from:
        for kind, whole in ((ConfigMap, source.config_map_ref), (Secret, source.secret_ref)):
            if whole is not None:
                yield Reference(kind, namespace, whole.name)
    for variable in container.env:
        if variable.value_from is not None:
            keys = ((ConfigMap, variable.value_from.config_map_key_ref), (Secret, variable.value_from.secret_key_ref))
            yield from (Reference(kind, namespace, key.name) for kind, key in keys if key is not None)


def volume_refs(volume: Volume, namespace: str) -> Iterator[Reference]:
    """What one volume of a pod in that namespace names."""
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
