"""ServiceAccount: the account of a pod, its image pull secrets and its token volume. Pure."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from api.core.pod import Container, Pod
from api.core.volumes import (
    ConfigMapProjection,
    DownwardAPIProjection,
    DownwardAPIVolumeFile,
    KeyToPath,
    ProjectedVolumeSource,
    ServiceAccountTokenProjection,
    Volume,
    VolumeMount,
    VolumeProjection,
)
from api.meta.types import ObjectFieldSelector
from api.validation.static_pods import is_mirror
from master import errors
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.auth.service_account_tokens import DEFAULT_SERVICE_ACCOUNT, ROOT_CA_CONFIGMAP
from master.resources.configuration import ServiceAccount
from master.resources.pods import PODS
from master.resources.scheme import group_resource
from master.storage.interface import Key, Transaction

TOKEN_MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where programs look for the token by which they are known to the API."""

TOKEN_VOLUME_PREFIX = "kube-api-access-"
TOKEN_SECONDS = 3607
"""How long the token is good for: a little more than an hour, by which the reference knows tokens of this volume."""


class ServiceAccountPlugin(AdmissionPlugin):
    """Completes new pods with their service account, its image pull secrets and a token volume."""

    def mutate(self, request: AdmissionRequest, item: Any, objects: Transaction) -> Any:
        if request.operation is not Operation.CREATE or not isinstance(item, Pod):
            return item
        pod = set_service_account_name(item)
        account = objects.get(
            Key(group_resource(ServiceAccount), pod.metadata.namespace, pod.spec.service_account_name)
        )
        return apply_service_account(pod, account, request.random_suffix())


def set_service_account_name(pod: Pod) -> Pod:
    """The pod with the name of its account, under both names of that field; a mirror pod has none."""
    name = pod.spec.service_account_name or pod.spec.service_account or DEFAULT_SERVICE_ACCOUNT
    if is_mirror(pod):
        return pod
    return replace(pod, spec=replace(pod.spec, service_account_name=name, service_account=name))


def apply_service_account(pod: Pod, account: ServiceAccount | None, letters: str) -> Pod:
    """The named pod with what its account gives; `letters` are five for the name of the volume."""
    spec = pod.spec
    if is_mirror(pod):
        return pod
    if account is None:
        name = spec.service_account_name
        why = f'error looking up service account {pod.metadata.namespace}/{name}: serviceaccount "{name}" not found'
        raise errors.forbidden(PODS, pod.metadata.name, why)
    if not spec.image_pull_secrets:
        pod = replace(pod, spec=replace(spec, image_pull_secrets=account.image_pull_secrets))
    wishes = (spec.automount_service_account_token, account.automount_service_account_token)
    wanted = next((wish for wish in wishes if wish is not None), True)
    return _with_token(pod, letters) if wanted else pod


def _with_token(pod: Pod, letters: str) -> Pod:
    """The token in every container that has nothing else at its place."""
    spec = pod.spec
    found = next((volume for volume in spec.volumes if volume.name.startswith(TOKEN_VOLUME_PREFIX)), None)
    volume = found or token_volume(TOKEN_VOLUME_PREFIX + letters)
    begun = tuple(_with_mount(container, volume.name) for container in spec.init_containers)
    main = tuple(_with_mount(container, volume.name) for container in spec.containers)
    if (begun, main) == (spec.init_containers, spec.containers):
        return pod
    volumes = spec.volumes if found is not None else (*spec.volumes, volume)
    return replace(pod, spec=replace(spec, init_containers=begun, containers=main, volumes=volumes))


def _with_mount(container: Container, volume: str) -> Container:
    if any(mount.mount_path == TOKEN_MOUNT_PATH for mount in container.volume_mounts):
        return container
    mount = VolumeMount(name=volume, mount_path=TOKEN_MOUNT_PATH, read_only=True)
    return replace(container, volume_mounts=(*container.volume_mounts, mount))


def token_volume(name: str) -> Volume:
    """A token, the certificate by which the API server is known, and the name of the project."""
    authority = ConfigMapProjection(name=ROOT_CA_CONFIGMAP, items=(KeyToPath(key="ca.crt", path="ca.crt"),))
    field = ObjectFieldSelector(api_version="v1", field_path="metadata.namespace")
    namespace = DownwardAPIProjection(items=(DownwardAPIVolumeFile(path="namespace", field_ref=field),))
    sources = (
        VolumeProjection(
            service_account_token=ServiceAccountTokenProjection(path="token", expiration_seconds=TOKEN_SECONDS)
        ),
        VolumeProjection(config_map=authority),
        VolumeProjection(downward_api=namespace),
    )
    return Volume(name=name, projected=ProjectedVolumeSource(sources=sources, default_mode=0o644))
