"""PersistentVolumes and PersistentVolumeClaims."""

from __future__ import annotations

from typing import Any

import pytest

from api.core.storage import PersistentVolume, PersistentVolumeClaim
from api.meta.types import Object
from api.validation.registry import check_update, decode, default

DISK: dict[str, Any] = {
    "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "nfs": {"server": "files", "path": "/srv"}
}  # fmt: skip
ON_NODE: dict[str, Any] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [
    {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}
]}]}}  # fmt: skip
CLAIM: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}


def paths(kind: type[Object], spec: dict[str, Any]) -> list[str]:
    document = {"metadata": {"name": "x", "namespace": "red"}, "spec": spec}
    return [problem.path for problem in decode(kind, document)[1]]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({}, []),
        ({"nfs": None, "hostPath": {"path": "/srv"}}, []),
        ({"claimRef": {"namespace": "red", "name": "c"}, "mountOptions": ["nolock", "vers=4"]}, []),
        ({"nfs": None}, ["spec"]),
        ({"hostPath": {"path": "/srv"}}, ["spec"]),
        ({"nfs": None, "csi": {"driver": "x"}}, ["spec.csi"]),
        ({"nfs": {"server": "", "path": "/srv"}}, ["spec.nfs.server"]),
        ({"nfs": {"server": "-o", "path": "/srv"}}, ["spec.nfs.server"]),
        ({"nfs": {"server": "files", "path": "srv"}}, ["spec.nfs.path"]),
        ({"capacity": {}}, ["spec.capacity[storage]"]),
        ({"capacity": {"storage": "much"}}, ["spec.capacity[storage]"]),
        ({"accessModes": []}, ["spec.accessModes"]),
        ({"accessModes": ["ReadWrite", "ReadWriteOncePod"]}, ["spec.accessModes[0]", "spec.accessModes[1]"]),
        *[({"persistentVolumeReclaimPolicy": name}, []) for name in ("Retain", "Delete", "Recycle")],
        ({"persistentVolumeReclaimPolicy": "Keep"}, ["spec.persistentVolumeReclaimPolicy"]),
        ({"volumeMode": "Block"}, ["spec.volumeMode"]),
        ({"nodeAffinity": {"required": {}}}, ["spec.nodeAffinity.required.nodeSelectorTerms"]),
        ({"nodeAffinity": {}}, ["spec.nodeAffinity.required"]),
        ({"nodeAffinity": ON_NODE}, []),
        ({"nfs": None, "local": {"path": "/disks/a"}, "nodeAffinity": ON_NODE}, []),
        ({"nfs": None, "local": {"path": "/disks/a"}}, ["spec.nodeAffinity"]),
        ({"nfs": None, "local": {"path": "a"}, "nodeAffinity": ON_NODE}, ["spec.local.path"]),
        ({"nfs": None, "local": {"path": "/a/../b"}, "nodeAffinity": ON_NODE}, ["spec.local.path"]),
        ({"nfs": None, "local": {"path": "/a", "fsType": "ext4"}, "nodeAffinity": ON_NODE}, ["spec.local.fsType"]),
        (
            {"nfs": None, "local": {"path": "/a"}, "nodeAffinity": ON_NODE, "mountOptions": ["suid"]},
            ["spec.mountOptions"],
        ),
        ({"claimRef": {"name": "c"}}, ["spec.claimRef"]),
        ({"mountOptions": ["ro,suid", "-o"]}, ["spec.mountOptions[0]", "spec.mountOptions[1]"]),
    ],
)
def test_invalid_persistent_volume_is_rejected_by_path(change: dict[str, Any], wanted: list[str]) -> None:
    assert paths(PersistentVolume, DISK | change) == wanted


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({}, []),
        ({"volumeName": "disk", "storageClassName": ""}, []),
        ({"volumeName": "A"}, ["spec.volumeName"]),
        ({"resources": {}}, ["spec.resources.requests[storage]"]),
        ({"resources": {"requests": {"storage": "0"}}}, ["spec.resources.requests[storage]"]),
        ({"accessModes": []}, ["spec.accessModes"]),
        ({"dataSource": {"kind": "x"}}, ["spec.dataSource"]),
    ],
)
def test_invalid_persistent_volume_claim_is_rejected_by_path(change: dict[str, Any], wanted: list[str]) -> None:
    assert paths(PersistentVolumeClaim, CLAIM | change) == wanted


def made(kind: type[Any], spec: dict[str, Any]) -> Any:
    obj, problems, _ = decode(kind, {"metadata": {"name": "x", "namespace": "red"}, "spec": spec})
    assert obj is not None, problems
    assert default(default(obj)) == default(obj)
    return default(obj)


def test_volume_source_and_claim_spec_are_immutable() -> None:
    disk, claim = made(PersistentVolume, DISK), made(PersistentVolumeClaim, CLAIM)
    elsewhere = made(PersistentVolume, DISK | {"nfs": {"server": "other", "path": "/srv"}})
    assert [problem.path for problem in check_update(disk, elsewhere)] == ["spec.persistentvolumesource"]
    pinned = made(PersistentVolume, DISK | {"nodeAffinity": ON_NODE})
    assert not list(check_update(disk, pinned))
    assert [problem.path for problem in check_update(pinned, disk)] == ["spec.nodeAffinity"]
    assert not list(check_update(disk, made(PersistentVolume, DISK | {"mountOptions": ["ro"]})))
    named = made(PersistentVolumeClaim, CLAIM | {"volumeName": "disk"})
    assert not list(check_update(claim, named))
    for other in (claim, made(PersistentVolumeClaim, CLAIM | {"volumeName": "other"})):
        assert [problem.path for problem in check_update(named, other)] == ["spec"]
