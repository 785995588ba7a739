"""Which objects of the API a pod needs in order to run. Pure.

A node may read exactly these, and follows each of them while it runs the pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from api.configuration import ConfigMap, Secret
from api.objects import Container, Object, Pod
from api.resources import containers_of
from api.storage import PersistentVolumeClaim
from api.volumes import Volume


class Reference(NamedTuple):
    """One object; `namespace` is empty for kinds that have none."""

    kind: type[Object]
    namespace: str
    name: str

    def __str__(self) -> str:
        return f'{self.kind.KIND.lower()} "{self.name}"'


def references(pod: Pod) -> frozenset[Reference]:
    """Everything that the pod names, whether it is there or not."""
    namespace = pod.metadata.namespace
    of_volumes = {found for volume in pod.spec.volumes for found in references_of(volume, namespace)}
    of_containers = {found for one in containers_of(pod) for found in variables_of(one, namespace)}
    return frozenset((*of_volumes, *of_containers, *passwords_of(pod)))


def passwords_of(pod: Pod) -> tuple[Reference, ...]:
    """Where the passwords for the images of a pod stand."""
    return tuple(Reference(Secret, pod.metadata.namespace, one.name) for one in pod.spec.image_pull_secrets)


def variables_of(container: Container, namespace: str) -> Iterator[Reference]:
    """What the environment of a container of that namespace is taken from."""
    for source in container.env_from:
        for kind, whole in ((ConfigMap, source.config_map_ref), (Secret, source.secret_ref)):
            if whole is not None:
                yield Reference(kind, namespace, whole.name)
    for variable in container.env:
        if variable.value_from is not None:
            keys = ((ConfigMap, variable.value_from.config_map_key_ref), (Secret, variable.value_from.secret_key_ref))
            yield from (Reference(kind, namespace, key.name) for kind, key in keys if key is not None)


def references_of(volume: Volume, namespace: str) -> Iterator[Reference]:
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
