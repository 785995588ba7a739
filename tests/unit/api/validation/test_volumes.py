"""Volumes and mounts: their defaults, and every error by path."""

from __future__ import annotations

from typing import Any

import pytest

from api.core.pod import Pod
from api.core.references import pod_refs
from api.validation.registry import decode, default


def pod(volume: dict[str, Any], mounts: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    container = {"name": "a", "image": "b:1", "volumeMounts": mounts or []}
    spec = {"containers": [container], "volumes": [{"name": "v", **volume}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "red"}, "spec": spec}


def paths(document: dict[str, Any]) -> list[str]:
    return [problem.path.removeprefix("spec.volumes[0].") for problem in decode(Pod, document)[1]]


FIELD = {"path": "f", "fieldRef": {"fieldPath": "metadata.name"}}


def downward(**fields: Any) -> dict[str, Any]:
    return {"downwardAPI": {"items": [{"path": "f", **fields}]}}


def projected(*sources: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"projected": {"sources": list(sources), **rest}}


WRONG = [
    ({"configMap": {}}, ["configMap.name"]),
    ({"configMap": {"name": "A"}}, ["configMap.name"]),
    ({"configMap": {"name": "c", "defaultMode": 512}}, ["configMap.defaultMode"]),
    ({"configMap": {"name": "c", "items": [{"key": "", "path": "x"}]}}, ["configMap.items[0].key"]),
    ({"configMap": {"name": "c", "items": [{"key": "k"}]}}, ["configMap.items[0].path"]),
    ({"configMap": {"name": "c", "items": [{"key": "k", "path": "x", "mode": -1}]}}, ["configMap.items[0].mode"]),
    ({"configMap": {"name": "c", "items": [{"key": "k", "path": "x"}] * 2}}, ["configMap.items[1].path"]),
    ({"secret": {}}, ["secret.secretName"]),
    ({"secret": {"secretName": "s", "items": [{"key": "k", "path": "../x"}]}}, ["secret.items[0].path"]),
    ({"emptyDir": {}, "secret": {"secretName": "s"}}, ["spec.volumes[0]"]),
    ({"emptyDir": {"sizeLimit": "-1"}}, ["emptyDir.sizeLimit"]),
    (downward(), ["downwardAPI.items[0]"]),
    (downward(fieldRef={"fieldPath": "status.podIP"}), ["downwardAPI.items[0].fieldRef.fieldPath"]),
    (downward(resourceFieldRef={"containerName": "a", "resource": "cpu"}),
     ["downwardAPI.items[0].resourceFieldRef.resource"]),
    (downward(resourceFieldRef={"resource": "limits.cpu", "divisor": "x"}),
     ["downwardAPI.items[0].resourceFieldRef.divisor", "downwardAPI.items[0].resourceFieldRef.containerName"]),
    (projected({}), ["projected.sources[0]"]),
    (projected({"configMap": {"name": "c"}, "secret": {"name": "s"}}), ["projected.sources[0]"]),
    (projected({"configMap": {"name": "c", "items": [{"key": "k", "path": "f"}]}}, {"downwardAPI": {"items": [FIELD]}}),
     ["projected.sources[1]"]),
    (projected({"clusterTrustBundle": {"path": "x"}}), ["projected.sources[0].clusterTrustBundle"]),
    (projected(defaultMode=1000), ["projected.defaultMode"]),
]  # fmt: skip


@pytest.mark.parametrize(("volume", "wanted"), WRONG, ids=str)
def test_invalid_volume_is_rejected_by_path(volume: dict[str, Any], wanted: list[str]) -> None:
    assert paths(pod(volume)) == wanted


@pytest.mark.parametrize("path", ["", "/a", "..", "../a", "a/../b", "..a", "a/..", "x" * 4097])
def test_file_path_that_leaves_its_volume_is_rejected(path: str) -> None:
    assert paths(pod({"configMap": {"name": "c", "items": [{"key": "k", "path": path}]}})) == [
        "configMap.items[0].path"
    ]


@pytest.mark.parametrize("path", ["a", "a/b", ".a", "a/..b", "a..b", "x" * 4096])
def test_relative_file_path_is_accepted(path: str) -> None:
    assert paths(pod({"configMap": {"name": "c", "items": [{"key": "k", "path": path}]}})) == []


MOUNTS = [
    ({"subPath": "a/b"}, []),
    ({"subPathExpr": "$(NAME)/logs"}, []),
    ({"mountPropagation": "HostToContainer"}, []),
    ({"recursiveReadOnly": "Disabled"}, []),
    ({"subPath": "/a"}, ["subPath"]),
    ({"subPath": "a/../b"}, ["subPath"]),
    ({"subPathExpr": "../$(NAME)"}, ["subPathExpr"]),
    ({"subPath": "a", "subPathExpr": "b"}, ["subPathExpr"]),
    ({"mountPropagation": "Bidirectional"}, ["mountPropagation"]),
    ({"mountPropagation": "Sideways"}, ["mountPropagation"]),
    ({"recursiveReadOnly": "Enabled"}, ["recursiveReadOnly"]),
    ({"recursiveReadOnly": "IfPossible"}, ["recursiveReadOnly"]),
    ({"recursiveReadOnly": "IfPossible", "readOnly": True}, []),
    ({"recursiveReadOnly": "IfPossible", "readOnly": True, "mountPropagation": "None"}, []),
    (
        {"recursiveReadOnly": "IfPossible", "readOnly": True, "mountPropagation": "HostToContainer"},
        ["recursiveReadOnly"],
    ),
    ({"mountPath": "data"}, ["mountPath"]),
    ({"name": "w"}, ["name"]),
]


@pytest.mark.parametrize(("mount", "wanted"), MOUNTS, ids=str)
def test_invalid_volume_mount_is_rejected_by_path(mount: dict[str, Any], wanted: list[str]) -> None:
    document = pod({"emptyDir": {}}, [{"name": "v", "mountPath": "/v", **mount}])
    assert paths(document) == [f"spec.containers[0].volumeMounts[0].{path}" for path in wanted]


def test_bidirectional_mount_needs_a_privileged_container() -> None:
    mount = {"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}
    document = pod({"emptyDir": {}}, [mount])
    document["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert paths(document) == []


def test_volume_defaults_are_set_once() -> None:
    volume = projected({"downwardAPI": {"items": [FIELD]}})
    for source, mode in ((volume, "projected"), ({"secret": {"secretName": "s"}}, "secret")):
        obj, _, _ = decode(Pod, pod(source))
        assert obj is not None
        full = default(obj)
        assert default(full) == full
        assert getattr(full.spec.volumes[0], mode).default_mode == 0o644
    obj, _, _ = decode(Pod, pod({"hostPath": {"path": "/x"}}))
    assert obj is not None
    assert default(obj).spec.volumes[0].host_path.type == ""  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("volume", "names"),
    [
        ({"emptyDir": {}}, []),
        ({"configMap": {"name": "c", "optional": True}}, ['configmap "c"']),
        ({"secret": {"secretName": "s"}}, ['secret "s"']),
        (projected({"configMap": {"name": "c"}}, {"secret": {"name": "s"}}, {"configMap": {"name": "c"}}),
         ['configmap "c"', 'secret "s"']),
    ],
)  # fmt: skip
def test_volume_references_name_their_objects(volume: dict[str, Any], names: list[str]) -> None:
    obj, _, _ = decode(Pod, pod(volume))
    assert obj is not None
    assert sorted(map(str, pod_refs(obj))) == names
    assert {reference.namespace for reference in pod_refs(obj)} <= {"red"}
