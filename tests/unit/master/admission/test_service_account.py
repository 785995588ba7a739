"""The defaults of a new pod from its service account."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from api.core.pod import Container, Pod, PodSpec
from api.core.volumes import EmptyDirVolumeSource, Volume, VolumeMount
from api.meta.types import LocalObjectReference, ObjectMeta
from api.validation.static_pods import CONFIG_MIRROR
from master.admission.service_account import TOKEN_MOUNT_PATH, apply_service_account, set_service_account_name
from master.errors import StatusError
from master.resources.configuration import ServiceAccount

ACCOUNT = ServiceAccount(metadata=ObjectMeta(name="default", namespace="red"))
POD = Pod(
    metadata=ObjectMeta(name="p", namespace="red"),
    spec=PodSpec(
        init_containers=(Container(name="first", image="i"),),
        containers=(Container(name="main", image="i"), Container(name="side", image="i")),
    ),
)
VOLUME = {
    "name": "kube-api-access-abcde",
    "projected": {
        "defaultMode": 420,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {
                "downwardAPI": {
                    "items": [
                        {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
                    ]
                }
            },
        ],
    },
}


def admitted(pod: Pod, account: ServiceAccount | None = ACCOUNT) -> Pod:
    return apply_service_account(set_service_account_name(pod), account, "abcde")


def mounts(pod: Pod) -> list[list[str]]:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return [[mount.mount_path for mount in container.volume_mounts] for container in containers]


def test_service_account_token_is_mounted_in_every_container() -> None:
    pod = admitted(POD)
    assert (pod.spec.service_account_name, pod.spec.service_account) == ("default", "default")
    assert mounts(pod) == [[TOKEN_MOUNT_PATH]] * 3
    assert [mount.read_only for container in pod.spec.containers for mount in container.volume_mounts] == [True, True]
    assert msgspec.json.decode(msgspec.json.encode(pod.spec.volumes)) == [VOLUME]
    assert admitted(pod) == pod


def test_copied_pod_keeps_its_token_volume() -> None:
    pod = apply_service_account(admitted(POD), ACCOUNT, "other")
    assert [volume.name for volume in pod.spec.volumes] == ["kube-api-access-abcde"]


def test_existing_mount_at_the_token_path_is_kept() -> None:
    own = VolumeMount(name="mine", mount_path=TOKEN_MOUNT_PATH)
    volume = Volume(name="mine", empty_dir=EmptyDirVolumeSource())
    container = replace(POD.spec.containers[0], volume_mounts=(own,))
    spec = replace(POD.spec, init_containers=(), containers=(container,), volumes=(volume,))
    assert admitted(replace(POD, spec=spec)).spec.volumes == (volume,)
    both = replace(spec, containers=(container, POD.spec.containers[1]))
    pod = admitted(replace(POD, spec=both))
    assert [volume.name for volume in pod.spec.volumes] == ["mine", "kube-api-access-abcde"]
    assert [container.volume_mounts[0].name for container in pod.spec.containers] == ["mine", "kube-api-access-abcde"]


@pytest.mark.parametrize(
    ("of_pod", "of_account", "has"),
    [(None, None, True), (None, False, False), (True, False, True), (False, None, False), (False, True, False)],
)
def test_automount_token_is_decided_by_pod_then_service_account(
    of_pod: bool | None, of_account: bool | None, has: bool
) -> None:
    pod = replace(POD, spec=replace(POD.spec, automount_service_account_token=of_pod))
    account = replace(ACCOUNT, automount_service_account_token=of_account)
    assert bool(admitted(pod, account).spec.volumes) == has


def test_image_pull_secrets_default_to_the_service_accounts() -> None:
    registry, other = LocalObjectReference(name="registry"), LocalObjectReference(name="other")
    account = replace(ACCOUNT, image_pull_secrets=(registry,))
    assert admitted(POD, account).spec.image_pull_secrets == (registry,)
    own = replace(POD, spec=replace(POD.spec, image_pull_secrets=(other,)))
    assert admitted(own, account).spec.image_pull_secrets == (other,)


def test_deprecated_service_account_field_is_used() -> None:
    pod = set_service_account_name(replace(POD, spec=replace(POD.spec, service_account="robot")))
    assert (pod.spec.service_account_name, pod.spec.service_account) == ("robot", "robot")


def test_missing_service_account_is_named() -> None:
    with pytest.raises(StatusError) as refused:
        admitted(replace(POD, spec=replace(POD.spec, service_account_name="robot")), None)
    assert refused.value.status.code == 403
    assert refused.value.status.message == (
        'pods "p" is forbidden: error looking up service account red/robot: serviceaccount "robot" not found'
    )


def test_mirror_pod_has_no_service_account() -> None:
    mirror = replace(POD, metadata=replace(POD.metadata, annotations={CONFIG_MIRROR: "x"}))
    assert admitted(mirror, None) == mirror
