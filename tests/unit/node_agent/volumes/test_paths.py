"""Paths of volumes on the host, and mounts of containers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from api.core.node import Node
from api.core.pod import Pod
from api.core.references import Reference, pod_refs
from api.core.storage import PersistentVolume, PersistentVolumeClaim
from api.core.volumes import Volume
from api.meta.types import Object, ObjectMeta
from api.validation.registry import decode
from node_agent.volumes.paths import (
    SubPath,
    binds,
    claim_paths,
    claimed_volumes,
    local_path,
    resolve_claim,
    sub_paths,
    tmpfs_size,
    volume_dir,
)
from reconcile.errors import DriverError, NotReady, Refused
from tests.unit.node_agent.examples import make_pod

VOLUMES = (
    "  volumes: [{name: e, emptyDir: {}}, {name: h, hostPath: {path: /srv}}, {name: c, configMap: {name: x}},"
    " {name: s, secret: {secretName: x}}, {name: d, downwardAPI: {}}, {name: p, projected: {}}]"
)
POD_VOLUMES = "/pods/u/volumes/kubernetes.io~"

BINDS = [
    ("name: e", f"{POD_VOLUMES}empty-dir/e:/m"),
    ("name: e, readOnly: true", f"{POD_VOLUMES}empty-dir/e:/m:ro"),
    ("name: h", "/srv:/m"),
    ("name: h, mountPropagation: HostToContainer", "/srv:/m:rslave"),
    ("name: h, mountPropagation: None", "/srv:/m"),
    ("name: h, mountPropagation: Bidirectional", "/srv:/m:rshared"),
    ("name: h, readOnly: true, recursiveReadOnly: IfPossible", "/srv:/m:ro"),
    ("name: h, readOnly: true, mountPropagation: HostToContainer", "/srv:/m:ro,rslave"),
    ("name: c", f"{POD_VOLUMES}configmap/c:/m:ro"),
    ("name: s", f"{POD_VOLUMES}secret/s:/m:ro"),
    ("name: d", f"{POD_VOLUMES}downward-api/d:/m:ro"),
    ("name: p", f"{POD_VOLUMES}projected/p:/m:ro"),
    ("name: e, subPath: a/b", "/pods/u/volume-subpaths/e/main/0:/m"),
    ("name: c, subPathExpr: $(N)", "/pods/u/volume-subpaths/c/main/0:/m:ro"),
]


@pytest.mark.parametrize(("mount", "expected"), BINDS)
def test_volume_mount_translates_to_a_docker_bind(mount: str, expected: str) -> None:
    rights = "securityContext: {privileged: true}"
    pod = make_pod(f"[{{name: main, image: i, {rights}, volumeMounts: [{{mountPath: /m, {mount}}}]}}]", VOLUMES)
    assert binds(pod, pod.spec.containers[0], "/pods/u") == (expected,)


def test_unsupported_volume_mount_is_rejected() -> None:
    pod = make_pod("[{name: main, image: i, volumeMounts: [{mountPath: /m, name: h, readOnly: true}]}]", VOLUMES)
    [mount] = pod.spec.containers[0].volume_mounts
    container = replace(pod.spec.containers[0], volume_mounts=(replace(mount, recursive_read_only="Enabled"),))
    with pytest.raises(Refused, match="recursiveReadOnly Enabled"):
        binds(pod, container, "/pods/u")


def test_unknown_volume_type_is_rejected() -> None:
    with pytest.raises(Refused, match="no volume plugin matched volume 'v'"):
        volume_dir("/pods/u", Volume(name="v"))


PARTS = [
    ("name: e, subPath: a/b",
     SubPath(f"{POD_VOLUMES}empty-dir/e", "a/b", "/pods/u/volume-subpaths/e/main/1", create_missing=True)),
    ("name: h, subPath: x", SubPath("/srv", "x", "/pods/u/volume-subpaths/h/main/1", create_missing=True)),
    ("name: c, subPath: key",
     SubPath(f"{POD_VOLUMES}configmap/c", "key", "/pods/u/volume-subpaths/c/main/1", create_missing=False)),
    ("name: e, subPathExpr: $(N)/$$(N)",
     SubPath(f"{POD_VOLUMES}empty-dir/e", "web/$(N)", "/pods/u/volume-subpaths/e/main/1", create_missing=True)),
]  # fmt: skip


@pytest.mark.parametrize(("mount", "expected"), PARTS)
def test_sub_path_translates_to_its_host_path(mount: str, expected: SubPath) -> None:
    mounts = f"[{{name: e, mountPath: /whole}}, {{mountPath: /m, {mount}}}]"
    pod = make_pod(f"[{{name: main, image: i, volumeMounts: {mounts}}}]", VOLUMES)
    assert list(sub_paths(pod, pod.spec.containers[0], "/pods/u", {"N": "web"})) == [expected]


@pytest.mark.parametrize(
    ("expression", "message"),
    [("$(NONE)", "the container has no variable NONE"), ("$(UP)/x", "a relative path"), ("$(ROOT)", "a relative path"),
     ("$(EMPTY)", "a relative path")],
)  # fmt: skip
def test_invalid_expanded_sub_path_is_rejected(expression: str, message: str) -> None:
    mount = f"[{{name: e, mountPath: /m, subPathExpr: {expression}}}]"
    pod = make_pod(f"[{{name: main, image: i, volumeMounts: {mount}}}]", VOLUMES)
    env = {"UP": "a/..", "ROOT": "/etc", "EMPTY": ""}
    with pytest.raises(Refused, match=message):
        list(sub_paths(pod, pod.spec.containers[0], "/pods/u", env))


@pytest.mark.parametrize(
    ("limit", "resources", "expected"),
    [("", "{}", 1000), ("sizeLimit: 10, ", "{}", 10), ("sizeLimit: 2000, ", "{}", 1000),
     ("", "{limits: {memory: 500}}", 500), ("sizeLimit: 10, ", "{limits: {memory: 500}}", 10)],
)  # fmt: skip
def test_memory_volume_size_is_the_smallest_limit(limit: str, resources: str, expected: int) -> None:
    volumes = f"  volumes: [{{name: e, emptyDir: {{{limit}medium: Memory}}}}]"
    pod = make_pod(f"[{{name: main, image: i, resources: {resources}}}]", volumes)
    assert tmpfs_size(pod.spec.volumes[0], pod, 1000) == expected


POD = make_pod(
    "[{name: main, image: i, volumeMounts: [{name: v, mountPath: /v}]}]",
    "  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]",
)
CLAIM = Reference(PersistentVolumeClaim, "red", "data")
DISK = Reference(PersistentVolume, "", "disk")


def objects(source: dict[str, Any], *, phase: str = "Bound", holder: str = "u1") -> dict[Reference, Object]:
    claim = msgspec.convert({"spec": {"volumeName": "disk"}, "status": {"phase": phase}}, PersistentVolumeClaim)
    disk = msgspec.convert({"spec": source | {"claimRef": {"uid": holder}}}, PersistentVolume)
    return {CLAIM: replace(claim, metadata=ObjectMeta(name="data", namespace="red", uid="u1")), DISK: disk}


NFS = {"nfs": {"server": "files", "path": "/srv"}, "mountOptions": ["nolock"]}


def test_claim_resolves_to_its_persistent_volume() -> None:
    assert pod_refs(POD) == {CLAIM}
    claim_objects = objects(NFS)
    assert list(claimed_volumes({CLAIM: claim_objects[CLAIM]})) == [DISK]
    volume, options = resolve_claim(POD.spec.volumes[0], "red", claim_objects, None)
    assert volume.nfs is not None
    assert (volume.nfs.server, volume.nfs.read_only, options) == ("files", False, ("nolock",))
    pod = replace(POD, spec=replace(POD.spec, volumes=(volume,)))
    assert binds(pod, pod.spec.containers[0], "/pods/u") == ("/pods/u/volumes/kubernetes.io~nfs/v:/v",)


@pytest.mark.parametrize("source", [NFS, {"hostPath": {"path": "/srv"}}])
def test_read_only_claim_is_mounted_read_only(source: dict[str, Any]) -> None:
    pod_volume = POD.spec.volumes[0]
    claim = replace(pod_volume.persistent_volume_claim, read_only=True)  # type: ignore[type-var]
    volume, _ = resolve_claim(replace(pod_volume, persistent_volume_claim=claim), "red", objects(source), None)
    pod = replace(POD, spec=replace(POD.spec, volumes=(volume,)))
    (bind,) = binds(pod, pod.spec.containers[0], "/pods/u")
    assert bind.endswith(":/v:ro")
    assert volume.nfs is None or volume.nfs.read_only


@pytest.mark.parametrize(
    ("claim_objects", "message"),
    [
        ({}, 'persistentvolumeclaim "data" not found'),
        (objects(NFS, phase="Pending"), 'persistentvolumeclaim "data" is not bound to a volume: it is Pending'),
        ({CLAIM: objects(NFS)[CLAIM]}, 'persistentvolume "disk" not found'),
        (objects(NFS, holder="u0"), 'persistentvolume "disk" does not belong to persistentvolumeclaim "data"'),
    ],
)
def test_unbound_claim_reports_why(claim_objects: dict[Reference, Object], message: str) -> None:
    with pytest.raises(DriverError) as error:
        resolve_claim(POD.spec.volumes[0], "red", claim_objects, None)
    assert str(error.value) == message


LOCAL = {
    "local": {"path": "/disks/one"},
    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}
    ]}]}},
}  # fmt: skip


def node_named(name: str) -> Node:
    return Node(metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name}))


def test_local_volume_is_mounted_in_the_pods_directory() -> None:
    volume, _ = resolve_claim(POD.spec.volumes[0], "red", objects(LOCAL), node_named("node-1"))
    assert local_path(volume) == "/disks/one"
    pod = replace(POD, spec=replace(POD.spec, volumes=(volume,)))
    assert binds(pod, pod.spec.containers[0], "/pods/u") == ("/pods/u/volumes/kubernetes.io~local-volume/v:/v",)
    paths = claim_paths(POD, objects(LOCAL), "/pods/u", node_named("node-1"))
    assert paths == {"v": "/pods/u/volumes/kubernetes.io~local-volume/v"}


@pytest.mark.parametrize("source", [LOCAL, LOCAL | {"local": None, "hostPath": {"path": "/srv"}}])
def test_volume_is_refused_on_a_node_that_its_affinity_excludes(source: dict[str, Any]) -> None:
    resolve_claim(POD.spec.volumes[0], "red", objects(source), node_named("node-1"))
    with pytest.raises(Refused, match="no matching NodeSelectorTerms"):
        resolve_claim(POD.spec.volumes[0], "red", objects(source), node_named("node-2"))
    with pytest.raises(NotReady, match="not registered"):
        resolve_claim(POD.spec.volumes[0], "red", objects(source), None)


def test_pod_cannot_name_a_local_volume_itself() -> None:
    """The path of a local volume comes from a PersistentVolume only, which projects cannot create."""
    volume = {"name": "v", "local": {"path": "/etc"}}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"volumes": [volume]}}
    pod, errors, warnings = decode(Pod, document)
    assert any("spec.volumes[0].local" in text for text in (*map(str, errors), *warnings))
    assert pod is None or local_path(pod.spec.volumes[0]) == ""
