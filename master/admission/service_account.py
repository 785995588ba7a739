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
from master.auth.attributes import SERVICE_ACCOUNT_USER_PREFIX, User, service_account_groups
from master.auth.service_account_tokens import DEFAULT_SERVICE_ACCOUNT, ROOT_CA_CONFIGMAP
from master.resources.configuration import ServiceAccount
from master.resources.pods import PODS
from master.resources.scheme import group_resource
from master.storage.interface import Key, Transaction

TOKEN_MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Directory in which client libraries look for the token."""

TOKEN_VOLUME_PREFIX = "kube-api-access-"
TOKEN_SECONDS = 3607
"""Lifetime of the token in seconds, as in Kubernetes: tokens of this volume are recognized by it."""


class ServiceAccountPlugin(AdmissionPlugin):
    """Completes new pods with their service account, its image pull secrets and a token volume."""

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        if request.operation is not Operation.CREATE or not isinstance(obj, Pod):
            return obj
        pod = set_service_account_name(obj)
        account = objects.get(
            Key(group_resource(ServiceAccount), pod.metadata.namespace, pod.spec.service_account_name)
        )
        return apply_service_account(pod, account, request.random_suffix())


def set_service_account_name(pod: Pod) -> Pod:
    """Return the pod with the name of its account in both fields. A mirror pod has none."""
    name = pod.spec.service_account_name or pod.spec.service_account or DEFAULT_SERVICE_ACCOUNT
    if is_mirror(pod):
        return pod
    return replace(pod, spec=replace(pod.spec, service_account_name=name, service_account=name))


def apply_service_account(pod: Pod, account: ServiceAccount | None, suffix: str) -> Pod:
    """Return the pod with the image pull secrets and the token volume of its account. Raises Forbidden.

    `suffix` are five letters for the name of the volume.
    """
    spec = pod.spec
    if is_mirror(pod):
        return pod
    if account is None:
        name = spec.service_account_name
        reason = f'error looking up service account {pod.metadata.namespace}/{name}: serviceaccount "{name}" not found'
        raise errors.forbidden(PODS, pod.metadata.name, reason)
    if not spec.image_pull_secrets:
        pod = replace(pod, spec=replace(spec, image_pull_secrets=account.image_pull_secrets))
    settings = (spec.automount_service_account_token, account.automount_service_account_token)
    mounts_token = next((setting for setting in settings if setting is not None), True)
    return _with_token(pod, suffix) if mounts_token else pod


def _with_token(pod: Pod, suffix: str) -> Pod:
    """Return the pod with the token mounted in every container that mounts nothing else at TOKEN_MOUNT_PATH."""
    spec = pod.spec
    existing = next((volume for volume in spec.volumes if volume.name.startswith(TOKEN_VOLUME_PREFIX)), None)
    volume = existing or token_volume(TOKEN_VOLUME_PREFIX + suffix)
    init_containers = tuple(_with_mount(container, volume.name) for container in spec.init_containers)
    containers = tuple(_with_mount(container, volume.name) for container in spec.containers)
    if (init_containers, containers) == (spec.init_containers, spec.containers):
        return pod
    volumes = spec.volumes if existing is not None else (*spec.volumes, volume)
    return replace(pod, spec=replace(spec, init_containers=init_containers, containers=containers, volumes=volumes))


def _with_mount(container: Container, volume: str) -> Container:
    if any(mount.mount_path == TOKEN_MOUNT_PATH for mount in container.volume_mounts):
        return container
    mount = VolumeMount(name=volume, mount_path=TOKEN_MOUNT_PATH, read_only=True)
    return replace(container, volume_mounts=(*container.volume_mounts, mount))


def token_volume(name: str) -> Volume:
    """Return the volume with the token, the CA certificate of the API server, and the name of the namespace."""
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


def service_account_user(pod: Pod) -> User:
    """Return the user that a pod's service account is for decisions about what the pod may be.

    It is not a member of system:authenticated, so what everybody may use is used by the requester.
    """
    namespace, name = pod.metadata.namespace, pod.spec.service_account_name or DEFAULT_SERVICE_ACCOUNT
    return User(f"{SERVICE_ACCOUNT_USER_PREFIX}{namespace}:{name}", frozenset(service_account_groups(namespace)))
