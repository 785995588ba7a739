"""Docker's configuration of sandboxes and containers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.pod import PodStatus
from api.validation.static_pods import from_api_server
from node_agent.cgroups.hierarchy import cpu_quota, cpu_shares
from node_agent.host import HostInfo
from node_agent.runtime import container as label
from node_agent.runtime.environment import EnvSources, container_env, expand
from node_agent.runtime.spec import ContainerInputs, container_config, oom_score, sandbox_config
from tests.unit.node_agent.examples import SANDBOX, UID, make_pod, with_status

HOST = HostInfo("/pods", 8 << 30, -1000)

FULL = """\
[{
  name: main, image: toolbox:1, command: ["sh", "-c"], args: ["echo $(WHO) $$(WHO) $(NOBODY)"], workingDir: /tmp,
  env: [
    {name: WHO, value: web}, {name: GREETING, value: "hi $(WHO)"},
    {name: ADDRESS, valueFrom: {fieldRef: {fieldPath: status.podIP}}},
    {name: APP, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app.io/name']"}}},
    {name: URL, value: "http://$(ADDRESS)/"}],
  resources: {requests: {cpu: 250m}, limits: {cpu: "1.5", memory: 64Mi}},
  volumeMounts: [{name: scratch, mountPath: /scratch}, {name: logs, mountPath: /logs, readOnly: true}]}]"""
VOLUMES = "  volumes: [{name: scratch, emptyDir: {}}, {name: logs, hostPath: {path: /var/log}}]"
POD = with_status(
    make_pod(FULL, VOLUMES, ", labels: {app.io/name: shop}, annotations: {note: kept}"),
    PodStatus(qos_class="Burstable", pod_ip="10.128.0.2", host_ip="10.245.2.3"),
)


def test_container_config_follows_the_manifest() -> None:
    spec = container_config(
        POD,
        POD.spec.containers[0],
        ContainerInputs("sha256:1", SANDBOX, 2, 1, container_env(POD, POD.spec.containers[0], EnvSources())),
        HOST,
    )
    assert spec.name == f"k8s_main_web_red_{UID}_2"
    assert (spec.entrypoint, spec.command) == (("sh", "-c"), ("echo web $(WHO) $(NOBODY)",))
    assert spec.environment == (
        "WHO=web",
        "GREETING=hi web",
        "ADDRESS=10.128.0.2",
        "APP=shop",
        "URL=http://10.128.0.2/",
    )
    assert spec.binds == (
        f"/pods/{UID}/volumes/kubernetes.io~empty-dir/scratch:/scratch",
        "/var/log:/logs:ro",
        f"/pods/{UID}/containers/main/00000002:/dev/termination-log",
        f"/pods/{UID}/etc-hosts:/etc/hosts",
        f"/pods/{UID}/resolv.conf:/etc/resolv.conf",
    )
    assert (spec.network, spec.ipc) == (f"container:{SANDBOX}", f"container:{SANDBOX}")
    assert (spec.cpu_shares, spec.cpu_quota, spec.memory) == (256, 150_000, 64 << 20)
    assert spec.oom_score_adj == 1000 - 1000 * (64 << 20) // (8 << 30)
    assert spec.labels["annotation.io.kubernetes.container.restartCount"] == "2"


@pytest.mark.parametrize(
    ("resources", "more", "score"),
    [
        ("{limits: {cpu: 1, memory: 64Mi}}", "", -997),
        ("{}", "", 1000),
        ("{requests: {memory: 8Gi}}", "", 3),
        ("{requests: {memory: 1}}", "", 999),
        ("{requests: {memory: 4Gi}}", "", 500),
        ("{}", "  priorityClassName: system-node-critical\n  priority: 2000001000", -997),
        ("{}", "  priorityClassName: system-node-critical", 1000),
        ("{}", "  priorityClassName: system-cluster-critical", 1000),
        ("{}", "  priority: 2000001000", 1000),
    ],
)
def test_oom_score_adj_equals_kubelets(resources: str, more: str, score: int) -> None:
    pod = from_api_server(make_pod(f"[{{name: main, image: a, resources: {resources}}}]", more))
    assert oom_score(pod, pod.spec.containers[0], 8 << 30) == score


def test_args_without_command_keep_the_image_entrypoint() -> None:
    pod = make_pod("[{name: main, image: a, args: [x]}]")
    spec = container_config(pod, pod.spec.containers[0], ContainerInputs("sha256:1", SANDBOX), HOST)
    assert (spec.entrypoint, spec.command) == (None, ("x",))


def test_command_without_args_drops_the_image_arguments() -> None:
    pod = make_pod("[{name: main, image: a, command: [x]}]")
    spec = container_config(pod, pod.spec.containers[0], ContainerInputs("sha256:1", SANDBOX), HOST)
    assert (spec.entrypoint, spec.command) == (("x",), ())


def test_sandbox_has_its_pods_labels() -> None:
    spec = sandbox_config(POD, "pause", 3, HOST)
    assert spec.name == f"k8s_POD_web_red_{UID}_3"
    assert spec.labels["app.io/name"] == "shop"
    assert spec.labels["annotation.note"] == "kept"
    assert spec.labels["io.kubernetes.docker.type"] == "podsandbox"
    assert (spec.network, spec.hostname) == ("none", "web")


def test_pod_label_cannot_override_an_agent_label() -> None:
    pod = make_pod(meta=', labels: {io.kubernetes.docker.type: container, io.kubernetes.pod.uid: "other"}')
    labels = sandbox_config(pod, "pause", 0, HOST).labels
    assert (labels["io.kubernetes.docker.type"], labels["io.kubernetes.pod.uid"]) == ("podsandbox", UID)


def test_every_accepted_field_reference_has_a_value() -> None:
    values_by_path = {
        "metadata.name": "web",
        "metadata.namespace": "red",
        "metadata.uid": UID,
        "spec.nodeName": "node-1",
        "spec.serviceAccountName": "",
        "status.hostIP": "10.245.2.3",
        "status.hostIPs": "10.245.2.3",
        "status.podIP": "10.128.0.2",
        "status.podIPs": "10.128.0.2",
        "metadata.annotations['note']": "kept",
        "metadata.labels['none']": "",
    }
    variables = ", ".join(
        f'{{name: V{number}, valueFrom: {{fieldRef: {{fieldPath: "{path}"}}}}}}'
        for number, path in enumerate(values_by_path)
    )
    pod = make_pod(f"[{{name: main, image: a, env: [{variables}]}}]", meta=", annotations: {note: kept}")
    pod_with_status = with_status(pod, POD.status)
    assert list(container_env(pod_with_status, pod_with_status.spec.containers[0], EnvSources()).values()) == list(
        values_by_path.values()
    )


@pytest.mark.parametrize(
    ("text", "becomes"),
    [("$(A)", "1"), ("$$(A)", "$(A)"), ("$$$(A)", "$1"), ("$(B)", "$(B)"), ("$A", "$A"), ("$(", "$("), ("$$", "$")],
)
def test_variable_references_are_expanded_in_arguments(text: str, becomes: str) -> None:
    assert expand(text, {"A": "1"}) == becomes


@given(st.text(alphabet=st.characters(exclude_characters="$")))
def test_arguments_without_a_dollar_are_unchanged(text: str) -> None:
    assert expand(text, {"A": "1"}) == text


@pytest.mark.parametrize(("milli", "shares"), [(0, 2), (1, 2), (100, 102), (1000, 1024), (10**9, 262_144)])
def test_cpu_request_converts_to_shares(milli: int, shares: int) -> None:
    assert cpu_shares(milli) == shares


@pytest.mark.parametrize(("milli", "quota"), [(0, 0), (1, 1000), (500, 50_000), (2000, 200_000)])
def test_cpu_limit_converts_to_quota(milli: int, quota: int) -> None:
    assert cpu_quota(milli) == quota


def test_agent_provided_files_yield_to_volume_mounts() -> None:
    paths = ("/etc/hosts/", "/etc/resolv.conf", "/dev/termination-log")
    mounts = f"[{', '.join(f'{{name: v, mountPath: {path}}}' for path in paths)}]"
    pod = make_pod(f"[{{name: main, image: a, volumeMounts: {mounts}}}]", "  volumes: [{name: v, emptyDir: {}}]")
    spec = container_config(pod, pod.spec.containers[0], ContainerInputs("sha256:1", SANDBOX), HOST)
    assert not [bind for bind in spec.binds if "emptyDir" not in bind and "/v:" not in bind]


def test_pod_annotations_and_labels_cannot_override_agent_labels() -> None:
    pod = make_pod()
    annotations = {key.removeprefix("annotation."): "abc" for key in label.RESERVED_LABELS}
    meta = replace(
        pod.metadata, annotations={**annotations, "note": "kept"}, labels=dict.fromkeys(label.RESERVED_LABELS, "abc")
    )
    spec = sandbox_config(replace(pod, metadata=meta), "pause", 0, HOST)
    assert spec.labels["annotation.note"] == "kept"
    assert "abc" not in spec.labels.values()
