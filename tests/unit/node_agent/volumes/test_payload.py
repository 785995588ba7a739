"""The files of volumes of every type."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.core.config import ConfigMap, Secret
from api.core.references import Reference
from api.core.volumes import ServiceAccountTokenProjection
from api.meta.types import ObjectMeta
from node_agent.volumes.payload import PayloadSources, format_map, payload_files
from reconcile.errors import DriverError, NotReady, Refused
from tests.unit.node_agent.examples import make_pod

OBJECTS = {
    Reference(ConfigMap, "red", "c"): ConfigMap(
        metadata=ObjectMeta(name="c", namespace="red"), data={"a": "1", "b": "two\n"}, binary_data={"raw": b"\0"}
    ),
    Reference(Secret, "red", "s"): Secret(metadata=ObjectMeta(name="s", namespace="red"), data={"key": b"hidden"}),
}
TOKEN = ServiceAccountTokenProjection(path="token", expiration_seconds=3600)
MATERIAL = PayloadSources(OBJECTS, {"cpu": "4", "memory": "1000"}, {TOKEN: "jwt"})
LIMITS = "{limits: {cpu: 1500m}, requests: {memory: 3Mi}}"


def payload(source: str, spec: str = "", meta: str = "") -> dict[str, tuple[str, str]]:
    """Return text and mode of each file of a volume that is given as YAML."""
    containers = f"[{{name: main, image: toolbox, resources: {LIMITS}}}]"
    pod = make_pod(containers, f"  volumes: [{{name: v, {source}}}]\n{spec}", meta)
    files = payload_files(pod.spec.volumes[0], pod, MATERIAL)
    return {path: (file.content.decode(), f"{file.mode:o}") for path, file in files.items()}


GOOD = [
    ("configMap: {name: c}", {"a": ("1", "644"), "b": ("two\n", "644"), "raw": ("\0", "644")}),
    ("configMap: {name: c, defaultMode: 256, items: [{key: a, path: x/y}]}", {"x/y": ("1", "400")}),
    ("configMap: {name: c, items: [{key: a, path: x, mode: 448}, {key: a, path: y}]}",
     {"x": ("1", "700"), "y": ("1", "644")}),
    ("configMap: {name: none, optional: true}", {}),
    ("configMap: {name: c, optional: true, items: [{key: none, path: x}, {key: a, path: y}]}", {"y": ("1", "644")}),
    ("secret: {secretName: s, defaultMode: 0}", {"key": ("hidden", "0")}),
    ("secret: {secretName: none, optional: true}", {}),
    ("downwardAPI: {items: [{path: n, fieldRef: {fieldPath: metadata.name}}]}", {"n": ("web", "644")}),
    ("downwardAPI: {items: [{path: l, mode: 292, fieldRef: {fieldPath: metadata.labels}}]}",
     {"l": ('app="web"\nz="1"', "444")}),
    ("downwardAPI: {items: [{path: l, fieldRef: {fieldPath: \"metadata.labels['app']\"}}]}", {"l": ("web", "644")}),
    ("downwardAPI: {items: [{path: c, resourceFieldRef: {containerName: main, resource: limits.cpu}}]}",
     {"c": ("2", "644")}),
    ("downwardAPI: {items: [{path: c, resourceFieldRef: {containerName: main, resource: limits.cpu, divisor: 1m}}]}",
     {"c": ("1500", "644")}),
    ("downwardAPI: {items: [{path: m, resourceFieldRef: {containerName: main, resource: limits.memory}}]}",
     {"m": ("1000", "644")}),
    ("downwardAPI: {items: [{path: m, resourceFieldRef: {containerName: main, resource: requests.memory, "
     "divisor: 2Mi}}]}", {"m": ("2", "644")}),
    ("downwardAPI: {items: [{path: m, resourceFieldRef: {containerName: main, resource: requests.ephemeral-storage}}]}",
     {"m": ("0", "644")}),
    ("projected: {defaultMode: 256, sources: [{configMap: {name: c, items: [{key: a, path: x}]}}, {secret: {name: s}}, "
     "{downwardAPI: {items: [{path: d/n, fieldRef: {fieldPath: metadata.namespace}}]}}]}",
     {"x": ("1", "400"), "key": ("hidden", "400"), "d/n": ("red", "400")}),
]  # fmt: skip


@pytest.mark.parametrize(("source", "expected"), GOOD)
def test_volume_payload_has_its_files_and_modes(source: str, expected: dict[str, tuple[str, str]]) -> None:
    assert payload(source, meta=", labels: {z: '1', app: web}") == expected


BAD = [
    ("configMap: {name: none}", NotReady, 'configmap "none" not found'),
    ("secret: {secretName: none}", NotReady, 'secret "none" not found'),
    ("configMap: {name: c, items: [{key: none, path: x}]}", NotReady, "references non-existent config key: none"),
    ("secret: {secretName: s, items: [{key: none, path: x}]}", NotReady, "references non-existent secret key: none"),
    ("projected: {sources: [{configMap: {name: c}}, {configMap: {name: c}}]}", Refused,
     "two sources have the path 'a'"),
    ("projected: {sources: [{configMap: {name: c}}, {secret: {name: s, items: [{key: key, path: a/b}]}}]}", Refused,
     "'a' is a file and a directory"),
    ("downwardAPI: {items: [{path: c, resourceFieldRef: {containerName: other, resource: limits.cpu}}]}", Refused,
     "the pod has no container 'other'"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "kind", "message"), BAD)
def test_missing_volume_source_is_named(source: str, kind: type[DriverError], message: str) -> None:
    with pytest.raises(kind) as error:
        payload(source)
    assert str(error.value) == message


def test_fs_group_may_read_its_files() -> None:
    spec = "  securityContext: {fsGroup: 2000}"
    assert payload("configMap: {name: c, defaultMode: 256, items: [{key: a, path: x}]}", spec) == {"x": ("1", "440")}
    assert payload("secret: {secretName: s, defaultMode: 420}", spec) == {"key": ("hidden", "644")}


@pytest.mark.parametrize(
    ("context", "main", "expected"),
    [("{}", "{}", (0o644, 0)), ("{fsGroup: 2000}", "{}", (0o640, 0)), ("{runAsUser: 1000}", "{}", (0o600, 1000)),
     ("{runAsUser: 1000}", "{runAsUser: 1001}", (0o644, 0)), ("{fsGroup: 2000, runAsUser: 1000}", "{}", (0o640, 1000))],
)  # fmt: skip
def test_token_file_mode_follows_user_and_fs_group(context: str, main: str, expected: tuple[int, int]) -> None:
    containers = f"[{{name: main, image: i, securityContext: {main}}}, {{name: side, image: i}}]"
    volume = "{name: v, projected: {sources: [{serviceAccountToken: {path: token}}]}}"
    pod = make_pod(containers, f"  volumes: [{volume}]\n  securityContext: {context}")
    file = payload_files(pod.spec.volumes[0], pod, MATERIAL)["token"]
    assert (file.content, file.mode, file.owner) == (b"jwt", *expected)


@pytest.mark.parametrize(
    ("value", "escaped"),
    [("plain", "plain"), ('a"b\\c', 'a\\"b\\\\c'), ("two\nlines\t", "two\\nlines\\t"), ("ü€😀", "ü€😀"),
     ("\x00\x7f", "\\x00\\x7f"), ("\u200b", "\\u200b"), ("\U000e0001", "\\U000e0001")],
)  # fmt: skip
def test_downward_api_values_are_quoted_as_in_go(value: str, escaped: str) -> None:
    assert format_map({"k": value}) == f'k="{escaped}"'


@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.text(max_size=10), max_size=5))
def test_downward_api_labels_have_one_line_each(labels: dict[str, str]) -> None:
    text = format_map(labels)
    assert [line.partition("=")[0] for line in text.split("\n") if line] == sorted(labels)


def test_objects_of_another_namespace_are_not_used() -> None:
    blue = {Reference(ConfigMap, "blue", "c"): OBJECTS[Reference(ConfigMap, "red", "c")]}
    pod = make_pod(spec="  volumes: [{name: v, configMap: {name: c}}]")
    with pytest.raises(NotReady):
        payload_files(pod.spec.volumes[0], pod, PayloadSources(blue, {}))
