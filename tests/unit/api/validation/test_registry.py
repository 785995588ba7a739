"""Validation of documents: every error by path, all at once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.codec import manifest
from api.core.node import Namespace
from api.core.pod import Pod
from api.core.resource_requests import qos_class
from api.core.services import Service
from api.network.queries import NodeQuery
from api.network.types import ClusterNetwork, HostSubnet, NetNamespace
from api.validation.registry import MAX_ANNOTATIONS_BYTES, check_update, decode, default

HOOK = {"preStop": {"sleep": {"seconds": 1}}}
INIT = {"name": "i", "image": "b:1"}


def pod(**spec: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"containers": [{"name": "a", "image": "b:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": base | spec}


def paths(document: object, kind: type[Any] = Pod) -> list[str]:
    return [problem.path for problem in decode(kind, document)[1]]


@pytest.mark.parametrize(("more", "expected"), [(0, []), (1, ["metadata.annotations"])])
def test_annotations_have_at_most_256_kib(more: int, expected: list[str]) -> None:
    document = pod()
    document["metadata"]["annotations"] = {"key": "x" * (MAX_ANNOTATIONS_BYTES - len("key") + more)}
    assert paths(document) == expected


def test_valid_pod_has_no_errors() -> None:
    obj, problems, warnings = decode(Pod, pod())
    assert obj is not None
    assert not problems
    assert not warnings


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"command": "sh"}, "command"),
        ({"ports": [{"containerPort": "x"}]}, "ports[0].containerPort"),
        ({"ports": [{}]}, "ports[0].containerPort"),
        ({"ports": [{"containerPort": 80, "hostPort": 1}] * 2}, "ports[1].hostPort"),
        ({"ports": [{"containerPort": 80, "hostIP": "x"}]}, "ports[0].hostIP"),
        ({"workingDir": "x"}, "workingDir"),
        ({"env": [{"name": "a=b"}]}, "env[0].name"),
        ({"env": [{"name": "a", "valueFrom": {}}]}, "env[0].valueFrom"),
        ({"env": [{"name": "a", "valueFrom": {"secretKeyRef": {}}}]}, "env[0].valueFrom.secretKeyRef.key"),
        ({"env": [{"name": "a", "valueFrom": {"fieldRef": {}}}]}, "env[0].valueFrom.fieldRef.fieldPath"),
        (
            {"env": [{"name": "a", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]},
            "env[0].valueFrom.fieldRef.fieldPath",
        ),
        ({"resources": {"limits": {"cpu": "-1"}}}, "resources.limits[cpu]"),
        ({"resources": {"limits": {"cpu": 1}, "requests": {"cpu": 2}}}, "resources.requests[cpu]"),
        ({"securityContext": {"runAsUser": -1}}, "securityContext.runAsUser"),
    ],
)
def test_invalid_container_is_rejected_by_path(fields: dict[str, Any], path: str) -> None:
    container = {"name": "a", "image": "b", **fields}
    assert paths(pod(containers=[container])) == [f"spec.containers[0].{path}"]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"containers": []}, "spec.containers"),
        ({"containers": [{"name": "a"}]}, "spec.containers[0].image"),
        ({"containers": [{"name": "A", "image": "b"}]}, "spec.containers[0].name"),
        ({"containers": [{"image": "b"}]}, "spec.containers[0].name"),
        ({"containers": [{"name": "a", "image": "b"}] * 2}, "spec.containers[1].name"),
        ({"containers": "a"}, "spec.containers"),
        ({"restartPolicy": "Sometimes"}, "spec.restartPolicy"),
        ({"hostPID": True, "shareProcessNamespace": True}, "spec.shareProcessNamespace"),
        ({"subdomain": "A"}, "spec.subdomain"),
        ({"hostAliases": [{"ip": "x"}]}, "spec.hostAliases[0].ip"),
        ({"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["A_B"]}]}, "spec.hostAliases[0].hostnames[0]"),
        ({"dnsPolicy": "None"}, "spec.dnsConfig.nameservers"),
        ({"dnsConfig": {"nameservers": ["a"]}}, "spec.dnsConfig.nameservers[0]"),
        ({"dnsConfig": {"nameservers": ["10.0.0.1"] * 4}}, "spec.dnsConfig.nameservers"),
        ({"dnsConfig": {"searches": ["a b"]}}, "spec.dnsConfig.searches[0]"),
        ({"dnsConfig": {"searches": ["-a.b"]}}, "spec.dnsConfig.searches[0]"),
        ({"dnsConfig": {"searches": ["a.._b"]}}, "spec.dnsConfig.searches[0]"),
        ({"dnsConfig": {"searches": ["a"] * 33}}, "spec.dnsConfig.searches"),
        ({"securityContext": {"sysctls": [{"name": "net..a", "value": "1"}]}}, "spec.securityContext.sysctls[0].name"),
        ({"dnsConfig": {"options": [{"value": "1"}]}}, "spec.dnsConfig.options[0].name"),
        ({"nodeName": "A_B"}, "spec.nodeName"),
        ({"terminationGracePeriodSeconds": -1}, "spec.terminationGracePeriodSeconds"),
        ({"initContainers": [INIT | {"restartPolicy": "Never"}]}, "spec.initContainers[0].restartPolicy"),
        ({"initContainers": [INIT | {"lifecycle": HOOK}]}, "spec.initContainers[0].lifecycle"),
        ({"initContainers": [INIT | {"name": "a"}]}, "spec.initContainers[0].name"),
        ({"initContainers": [{"name": "i"}]}, "spec.initContainers[0].image"),
        ({"containers": [INIT | {"restartPolicy": "Always"}]}, "spec.containers[0].restartPolicy"),
        ({"ephemeralContainers": [INIT | {"ports": [{"containerPort": 1}]}]}, "spec.ephemeralContainers[0].ports"),
        ({"ephemeralContainers": [INIT | {"targetContainerName": "x"}]},
         "spec.ephemeralContainers[0].targetContainerName"),
        ({"volumes": [{"name": "v", "csi": {"driver": "x"}}]}, "spec.volumes[0].csi"),
        ({"volumes": [{"name": "v"}]}, "spec.volumes[0]"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/a/../b"}}]}, "spec.volumes[0].hostPath.path"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/a", "type": "Folder"}}]}, "spec.volumes[0].hostPath.type"),
        ({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "x"}}]}, "spec.volumes[0].emptyDir.sizeLimit"),
        ({"tenent": "red"}, "spec.tenent"),
    ],
)  # fmt: skip
def test_invalid_pod_field_is_rejected_by_path(spec: dict[str, Any], path: str) -> None:
    assert paths(pod(**spec)) == [path]


@pytest.mark.parametrize(
    "spec",
    [
        {"dnsConfig": {"searches": [".", "a_b.example.com", "_sip._tcp.example.com."]}},
        {"securityContext": {"sysctls": [{"name": name, "value": "1"} for name in ("kernel", "net.ipv4.a", "net/b")]}},
    ],
)
def test_valid_pod_field_is_accepted(spec: dict[str, Any]) -> None:
    assert paths(pod(**spec)) == []


@pytest.mark.parametrize(("name", "is_accepted"), [("1web", True), ("web-1", True), ("a" * 64, False), ("Web", False)])
def test_name_of_a_service_may_begin_with_a_digit(name: str, is_accepted: bool) -> None:
    service = {"metadata": {"name": name}, "spec": {"ports": [{"port": 1}]}}
    assert paths(service, Service) == ([] if is_accepted else ["metadata.name"])


def test_all_errors_of_a_pod_are_reported_at_once() -> None:
    document = pod(
        restartPolicy="Sometimes", containers=[{"name": "a", "ports": [{"containerPort": 0}]}], subdomain="A.B"
    )
    document["metadata"] = {"name": "Bad_Name", "labels": {"a b": "c d"}}
    assert set(paths(document)) == {
        "metadata.name",
        "metadata.labels",
        "spec.restartPolicy",
        "spec.subdomain",
        "spec.containers[0].image",
        "spec.containers[0].ports[0].containerPort",
    }


def test_unknown_fields_are_pruned_with_a_warning_and_suggestion() -> None:
    obj, [problem], _ = decode(Pod, pod(restartPolcy="Never"))
    assert obj is not None
    assert str(problem) == 'spec.restartPolcy: is not a field; did you mean "restartPolicy"?'


def test_hostname_override_is_a_whole_name_of_a_pod_with_its_own_network() -> None:
    assert not paths(pod(hostnameOverride="front.example", hostname="web", subdomain="shops"))
    for fields in (
        {"hostnameOverride": "front", "hostNetwork": True},
        {"hostnameOverride": "front", "setHostnameAsFQDN": True},
        {"hostnameOverride": "a" * 65},
        {"hostnameOverride": "Front"},
        {"hostnameOverride": ""},
    ):
        assert paths(pod(**fields)) == ["spec.hostnameOverride"], fields


def test_image_volume_is_refused_with_its_reason() -> None:
    _, problems, _ = decode(Pod, pod(volumes=[{"name": "v", "image": {"reference": "a"}}]))
    (problem,) = problems
    assert (problem.path, "Docker cannot mount an image" in problem.detail) == ("spec.volumes[0].image", True)
    assert not paths(pod(volumes=[{"name": "v", "emptyDir": {}}]))


def test_null_field_means_absent() -> None:
    assert not paths(pod(volumes=None, nodeSelector=None, restartPolicy=None))


def test_stored_fields_without_effect_cause_warnings() -> None:
    document = pod(
        resources={"requests": {"cpu": "1"}},
    )
    warnings = decode(Pod, document)[2]
    assert [warning.partition(":")[0] for warning in warnings] == [
        "spec.resources",
    ]


@pytest.mark.parametrize(
    ("kind", "fields", "path"),
    [
        (Namespace, {"metadata": {"name": "a.b"}}, "metadata.name"),
        (Namespace, {"metadata": {}}, "metadata.name"),
        (NetNamespace, {"metadata": {"name": "a"}, "netname": "a", "netid": 1 << 24}, "netid"),
        (NetNamespace, {"metadata": {"name": "a"}, "netname": "b", "netid": 1}, "netname"),
        (HostSubnet, {"metadata": {"name": "a"}, "host": "a", "hostIP": "127.0.0.1", "subnet": "10.0.0.0/8"}, "hostIP"),
        (HostSubnet, {"metadata": {"name": "a"}, "host": "a", "hostIP": "10.1.1.1", "subnet": "10.0.0.1/23"}, "subnet"),
        (ClusterNetwork, {"metadata": {"name": "default"}, "network": "10.128.0.0/14", "hostsubnetlength": 19,
          "serviceNetwork": "172.30.0.0/16", "pluginName": "redhat/openshift-ovs-subnet"}, "hostsubnetlength"),
        (ClusterNetwork, {"metadata": {"name": "default"}, "network": "10.128.0.0/14", "hostsubnetlength": 9,
          "serviceNetwork": "10.130.0.0/16", "pluginName": "redhat/openshift-ovs-subnet"}, "serviceNetwork"),
    ],
)  # fmt: skip
def test_invalid_object_of_another_kind_is_rejected_by_path(kind: type[Any], fields: dict[str, Any], path: str) -> None:
    assert paths(fields, kind) == [path]


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
fields = st.sampled_from(
    [
        "metadata",
        "spec",
        "containers",
        "name",
        "image",
        "ports",
        "volumes",
        "labels",
        "env",
        "resources",
        "limits",
        "kind",
    ]
)
shaped = st.recursive(
    st.text(max_size=4) | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner, max_size=4),
    max_leaves=25,
)


@given(json | shaped)
def test_any_document_is_decoded_or_rejected(document: object) -> None:
    for kind in manifest.KINDS:
        obj, problems, _ = decode(kind, document)
        assert (obj is None) == any(problem.reason != "UnknownField" for problem in problems)


@given(st.text(max_size=200))
def test_any_manifest_is_parsed_or_rejected(text: str) -> None:
    for document in manifest.parse_manifest(text):
        assert document.obj is not None or document.errors


def test_pod_defaults_are_set_once() -> None:
    document = pod(containers=[{"name": "a", "image": "reg:5000/b", "ports": [{"containerPort": 1}],
                                "resources": {"limits": {"cpu": "1", "memory": "1Mi"}}}])  # fmt: skip
    obj, _, _ = decode(Pod, document)
    assert obj is not None
    full = default(obj)
    assert default(full) == full
    [container] = full.spec.containers
    assert (container.image_pull_policy, container.ports[0].protocol) == ("Always", "TCP")
    assert container.resources.requests == {"cpu": "1", "memory": "1Mi"}
    assert (full.spec.restart_policy, full.spec.termination_grace_period_seconds) == ("Always", 30)
    assert (full.status.phase, full.status.qos_class) == ("Pending", "Guaranteed")
    assert decode(Pod, msgspec.to_builtins(full))[0] == full


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("a", "Always"),
        ("a:latest", "Always"),
        ("a:1", "IfNotPresent"),
        ("h:5/a:1", "IfNotPresent"),
        ("a@sha256:0", "IfNotPresent"),
    ],
)
def test_image_pull_policy_defaults_from_the_tag(image: str, policy: str) -> None:
    obj, _, _ = decode(Pod, pod(containers=[{"name": "a", "image": image}]))
    assert obj is not None
    assert default(obj).spec.containers[0].image_pull_policy == policy


def test_qos_class_is_computed() -> None:
    def of(**resources: Any) -> str:
        obj, problems, _ = decode(Pod, pod(containers=[{"name": "a", "image": "b", "resources": resources}]))
        assert obj is not None, problems
        return qos_class(default(obj).spec.containers)

    assert of() == "BestEffort"
    assert of(requests={"cpu": "1"}) == "Burstable"
    assert of(limits={"cpu": "1"}) == "Burstable"
    assert of(limits={"cpu": "1", "memory": "1Gi"}) == "Guaranteed"
    assert of(limits={"cpu": "1", "memory": "1Gi"}, requests={"cpu": "500m"}) == "Burstable"


def test_pod_spec_is_immutable_except_for_images() -> None:
    def make(**container: Any) -> Pod:
        obj, _, _ = decode(Pod, pod(containers=[{"name": "a", "image": "b:1"} | container]))
        assert obj is not None
        return obj

    assert not list(check_update(make(), make(image="b:2")))
    assert [problem.path for problem in check_update(make(), make(workingDir="/x"))] == ["spec"]


def test_rejected_manifest_error_names_file_path_value_and_accepted_values() -> None:
    text = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {tenent: red, containers: [{name: a, ports: [{containerPort: 70000}]}]}
"""
    [document] = manifest.parse_manifest(text)
    assert manifest.format_errors("web.yaml", document.errors) == (
        "web.yaml: not accepted (3 problems)\n"
        "  spec.tenent                                is not a field\n"
        '  spec.containers[0].image                   is missing; an image is required, for example "nginx:1.27"\n'
        "  spec.containers[0].ports[0].containerPort  is 70000; a port is 1 to 65535"
    )


def test_lists_and_multiple_documents_are_parsed_one_by_one() -> None:
    text = """
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: a}}
- {apiVersion: v1, kind: Gadget, metadata: {name: b}}
---
[1, 2]
---
{"apiVersion": "network.openshift.io/v1", "kind": "NetNamespace", "metadata": {"name": "a"}, "netname": "a", "netid": 3}
"""
    documents = manifest.parse_manifest(text)
    assert [document.obj is None for document in documents] == [False, True, True, False]
    assert [document.number for document in documents] == [1, 2, 3, 4]


@pytest.mark.parametrize(("pcap", "good"), [("", True), ("1MOyoQ==", True), ("*", False), (7, False)])
def test_binary_fields_must_be_base64(pcap: object, good: bool) -> None:
    document = {"metadata": {"name": "q"}, "spec": {"nodeName": "n", "report": True}, "status": {"pcap": pcap}}
    actual = paths(document, NodeQuery)
    assert actual == ([] if good else ["status.pcap"])


@pytest.mark.parametrize(
    ("text", "good"), [("1k", True), ("10M", True), ("1P", True), ("999", False), ("2P", False), ("x", False)]
)
def test_bandwidth_annotation_has_a_range(text: str, good: bool) -> None:
    document = pod()
    document["metadata"] = {**document["metadata"], "annotations": {"kubernetes.io/egress-bandwidth": text}}
    actual = paths(document)
    assert actual == ([] if good else ["metadata.annotations[kubernetes.io/egress-bandwidth]"])


@pytest.mark.parametrize(
    ("fields", "expected_paths"),
    [
        ({}, []),
        ({"protocol": "arp", "vlan": 7, "sourceMac": "0a:58:0a:80:00:02"}, []),
        ({"enters": "docker"}, []),
        ({"enters": "node"}, ["spec.trace.sender"]),
        ({"enters": "node", "sender": ""}, []),
        ({"enters": "tunnel", "sender": "", "tunnelSource": "10.245.2.4", "vnid": 7}, []),
        ({"enters": "tunnel", "sender": ""}, ["spec.trace.tunnelSource"]),
        ({"sender": ""}, ["spec.trace.sender"]),
        ({"tunnelSource": "10.245.2.4", "vnid": 7}, ["spec.trace.tunnelSource", "spec.trace.vnid"]),
        ({"enters": "air", "protocol": "sctp"}, ["spec.trace.enters", "spec.trace.protocol", "spec.trace.sender"]),
        ({"source": "x", "target": "::1"}, ["spec.trace.source", "spec.trace.target"]),
        ({"vlan": 4096, "targetMac": "x"}, ["spec.trace.vlan", "spec.trace.targetMac"]),
        ({"vlan": "7"}, ["spec.trace.vlan"]),
        ({"port": 80}, ["spec.trace.port"]),
        ({"protocol": "ipv6", "fragment": "later"}, ["spec.trace.fragment"]),
        ({"fragment": "last"}, ["spec.trace.fragment"]),
    ],
)
def test_invalid_trace_packet_is_rejected_by_path(fields: dict[str, Any], expected_paths: list[str]) -> None:
    requested = {"enters": "pod", "sender": "10.128.0.2", "source": "10.128.0.2", "target": "10.128.2.3"} | fields
    document = {"metadata": {"name": "q"}, "spec": {"nodeName": "n", "trace": requested}}
    assert paths(document, NodeQuery) == expected_paths
