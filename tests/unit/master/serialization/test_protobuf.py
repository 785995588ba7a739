"""Protobuf request bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.codec.limits import MAX_DEPTH, MAX_VALUES
from api.meta.schema import without_nulls
from master.errors import StatusError
from master.resources import BUILTIN
from master.serialization import protobuf
from master.serialization.negotiation import decode_body
from tests.testbed.apiserver.protobuf_encoder import encoded
from tests.unit.master.resources.examples import GOOD, KINDS, document

# What `kubectl create namespace red` of 1.32 sends.
CREATE_NAMESPACE = (
    b'k8s\x00\n\x0f\n\x02v1\x12\tNamespace\x12\x1b\n\x13\n\x03red\x12\x00\x1a\x00"\x00*\x002\x008\x00B\x00'
    b'\x12\x00\x1a\x02\n\x00\x1a\x00"\x00'
)


def test_protobuf_of_kubectl_create_namespace_is_decoded() -> None:
    assert protobuf.document(CREATE_NAMESPACE) == {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "red", "generation": 0},
        "spec": {},
        "status": {},
    }


@given(st.binary(max_size=60))
def test_bytes_without_protobuf_magic_are_rejected(data: bytes) -> None:
    for body in (data, protobuf.MAGIC + data, CREATE_NAMESPACE[: len(data)], CREATE_NAMESPACE[:20] + data):
        try:
            protobuf.document(body)
        except protobuf.Unreadable:
            pass


def varint(number: int) -> bytes:
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def part(number: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def envelope(version: str, kind: str, content: bytes) -> bytes:
    return protobuf.MAGIC + part(1, part(1, version) + part(2, kind)) + part(2, content)


def test_protobuf_deployment_with_maps_and_inline_fields_is_decoded() -> None:
    probe = part(1, part(3, part(1, number(1, 0) + number(2, 80)))) + number(2, 5)
    container = part(1, "main") + part(2, "image") + part(10, probe) + part(7, part(1, "A") + part(2, "b"))
    template = part(1, part(11, part(1, "app") + part(2, "web"))) + part(2, part(2, container))
    spec = number(1, 0) + part(2, part(1, part(1, "app") + part(2, "web"))) + part(3, template)
    actual = protobuf.document(
        envelope("apps/v1", "Deployment", part(1, part(1, "web") + part(8, b"")) + part(2, spec))
    )
    assert actual == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "containers": [
                        {
                            "name": "main",
                            "image": "image",
                            "env": [{"name": "A", "value": "b"}],
                            "livenessProbe": {"tcpSocket": {"port": 80}, "initialDelaySeconds": 5},
                        }
                    ]
                },
            },
        },
    }


def test_protobuf_bytes_quantities_and_times_are_decoded() -> None:
    secret = envelope("v1", "Secret", part(2, part(1, "k") + part(2, b"\xff")) + part(3, "Opaque"))
    assert protobuf.document(secret)["data"] == {"k": "/w=="}
    quota = part(2, part(1, part(1, "cpu") + part(2, part(1, "100m"))))
    assert protobuf.document(envelope("v1", "ResourceQuota", quota))["spec"] == {"hard": {"cpu": "100m"}}
    event = part(6, number(1, 1_700_000_000))
    assert protobuf.document(envelope("v1", "Event", event))["firstTimestamp"] == "2023-11-14T22:13:20Z"
    first = part(2, part(4, number(1, (-62_135_596_798) % (1 << 64))))
    actual = protobuf.document(envelope("coordination.k8s.io/v1", "Lease", first))
    assert actual["spec"]["renewTime"] == "0001-01-01T00:00:02.000000Z"


def test_protobuf_subresource_bodies_are_decoded() -> None:
    scale = envelope("autoscaling/v1", "Scale", part(1, part(1, "web")) + part(2, number(1, 3)))
    assert protobuf.document(scale) == {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {"name": "web"},
        "spec": {"replicas": 3},
    }


def test_json_inside_protobuf_is_decoded() -> None:
    content = part(2, part(1, b'{"spec": {"a": [1]}}')) + number(3, 2)
    actual = protobuf.document(envelope("apps/v1", "ControllerRevision", content))
    assert (actual["data"], actual["revision"]) == ({"spec": {"a": [1]}}, 2)
    with pytest.raises(protobuf.Unreadable, match="a RawExtension is not JSON"):
        protobuf.document(envelope("apps/v1", "ControllerRevision", part(2, part(1, b"{"))))


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5_000])
def test_json_inside_protobuf_with_too_many_levels_is_rejected(depth: int) -> None:
    body = envelope("apps/v1", "ControllerRevision", part(2, part(1, b"[" * depth + b"]" * depth)))
    with pytest.raises(StatusError, match=f"has more than {MAX_DEPTH} levels"):
        decode_body(False, "application/vnd.kubernetes.protobuf", body)


def test_equally_named_kinds_have_their_own_messages() -> None:
    about = part(8, part(1, "Pod") + part(3, "web")) + part(10, "a note") + part(2, number(1, 1_700_000_000))
    assert protobuf.document(envelope("events.k8s.io/v1", "Event", about)) == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "eventTime": "2023-11-14T22:13:20.000000Z",
        "regarding": {"kind": "Pod", "name": "web"},
        "note": "a note",
    }
    there = part(1, "10.1.0.2") + part(5, part(1, "kubernetes.io/hostname") + part(2, "n1"))
    for version, topology in (("v1", "deprecatedTopology"), ("v1beta1", "topology")):
        actual = protobuf.document(envelope(f"discovery.k8s.io/{version}", "EndpointSlice", part(2, there)))
        assert actual["endpoints"] == [{"addresses": ["10.1.0.2"], topology: {"kubernetes.io/hostname": "n1"}}]
    spec = part(2, number(3, 4) + number(4, 70))
    actual = protobuf.document(envelope("autoscaling/v1", "HorizontalPodAutoscaler", spec))["spec"]
    assert actual == {"maxReplicas": 4, "targetCPUUtilizationPercentage": 70}


def test_protobuf_ingress_rule_paths_are_inlined() -> None:
    paths = part(1, part(1, "/a") + part(2, part(4, part(1, "web"))))
    spec = part(2, part(3, part(1, "example.org") + part(2, part(1, paths))))
    rules = protobuf.document(envelope("networking.k8s.io/v1", "Ingress", spec))["spec"]["rules"]
    assert rules == [
        {"host": "example.org", "http": {"paths": [{"path": "/a", "backend": {"service": {"name": "web"}}}]}}
    ]


def test_unknown_protobuf_field_is_rejected() -> None:
    with pytest.raises(protobuf.Unreadable, match="field 99 of ObjectMeta is not known here"):
        protobuf.document(envelope("v1", "ConfigMap", part(1, part(1, "c") + part(99, "x"))))


@pytest.mark.parametrize("kind", ["", "Unknown", "TypeMeta", "Nothing"])
def test_kind_without_a_protobuf_message_is_rejected(kind: str) -> None:
    with pytest.raises(protobuf.Unreadable, match="application/json only"):
        protobuf.document(envelope("v1", kind, b""))


def test_every_served_kubernetes_kind_has_a_protobuf_message() -> None:
    for resource in BUILTIN:
        groups = resource.group, resource.stored_resource.group
        is_ours = any(group.endswith(("openshift.io", "podlane.io")) for group in groups)
        # Definitions are accepted as JSON only: their schemas are documents.
        if not is_ours and "update" in resource.verbs and resource.kind != "CustomResourceDefinition":
            assert protobuf.document(envelope(resource.type.API_VERSION, resource.kind, b""))["kind"] == resource.kind


@pytest.mark.parametrize(("plural", "content"), GOOD)
def test_document_round_trips_through_protobuf(plural: str, content: dict[str, Any]) -> None:
    resource = KINDS[plural]
    if resource.group.endswith("openshift.io"):
        return
    given = without_nulls(
        {**document(resource, content), "apiVersion": resource.type.API_VERSION, "kind": resource.kind}
    )
    assert protobuf.document(encoded(given)) == without_empty(given)  # type: ignore[arg-type]


def without_empty(value: Any) -> Any:
    """Protobuf knows no empty lists, maps and texts, and quantities are texts."""
    if isinstance(value, dict):
        inner = {key: without_empty(member) for key, member in value.items()}
        return {key: member for key, member in inner.items() if member not in ("", [])}
    return [without_empty(element) for element in value] if isinstance(value, list) else value


@given(st.binary(max_size=80), st.sampled_from(["Pod", "Deployment", "Service", "Event"]))
def test_any_protobuf_bytes_are_decoded_or_rejected(data: bytes, kind: str) -> None:
    try:
        protobuf.document(envelope("v1", kind, data))
    except protobuf.Unreadable:
        pass


def pod_with(containers: int) -> bytes:
    return envelope("v1", "Pod", part(2, part(2, b"") * containers))


def config_map_with(keys: int) -> bytes:
    return envelope("v1", "ConfigMap", b"".join(part(2, part(1, f"k{key}")) for key in range(keys)))


@pytest.mark.parametrize(
    ("body", "accepted"),
    [(pod_with, MAX_VALUES - len(("spec", "containers"))), (config_map_with, MAX_VALUES - len(("data",)))],
)
def test_protobuf_with_too_many_values_is_rejected_before_they_are_converted(
    body: Callable[[int], bytes], accepted: int
) -> None:
    assert protobuf.document(body(accepted))
    with pytest.raises(protobuf.TooManyValues):
        protobuf.document(body(accepted + 1))
    with pytest.raises(StatusError, match=f"more than {MAX_VALUES} values"):
        decode_body(False, "application/vnd.kubernetes.protobuf", body(accepted + 1))


def test_json_inside_protobuf_with_too_many_values_is_rejected() -> None:
    for count in (100, MAX_VALUES):
        content = b"[" + b"1," * count + b"1]"
        body = envelope("apps/v1", "ControllerRevision", part(2, part(1, content)))
        if count < MAX_VALUES:
            assert len(decode_body(False, "application/vnd.kubernetes.protobuf", body).document["data"]) == count + 1
            continue
        with pytest.raises(StatusError, match=f"more than {MAX_VALUES} values"):
            decode_body(False, "application/vnd.kubernetes.protobuf", body)
