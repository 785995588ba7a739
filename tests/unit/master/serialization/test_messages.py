"""Fields of protobuf messages: numbers from protobuf_fields.txt, types from Python types."""

from __future__ import annotations

import pytest

from master.serialization.messages import SCALARS, Field, message_fields, message_names, message_of


def test_type_of_a_field_follows_from_its_python_type() -> None:
    fields = {field.name: field for field in message_fields("DeploymentSpec")}
    assert fields["replicas"] == Field("replicas", 1, "int32", repeated=False, map=False, inline=False)
    assert fields["selector"].type == "LabelSelector"
    assert fields["paused"].type == "bool"
    meta = {field.name: field for field in message_fields("ObjectMeta")}
    assert meta["labels"] == Field("labels", 11, "string", repeated=False, map=True, inline=False)
    assert meta["ownerReferences"] == Field(
        "ownerReferences", 13, "OwnerReference", repeated=True, map=False, inline=False
    )
    assert (meta["generation"].type, meta["creationTimestamp"].type) == ("int64", "Time")


def test_type_in_the_file_replaces_that_of_the_python_type() -> None:
    fields = {field.name: field for field in message_fields("NodeStatus")}
    assert (fields["capacity"].type, fields["capacity"].map) == ("Quantity", True)
    assert (fields["conditions"].type, fields["conditions"].repeated) == ("NodeCondition", True)
    assert [field.name for field in message_fields("Probe") if field.inline] == ["handler"]


def test_field_of_a_message_without_a_python_type_is_a_string() -> None:
    fields = {field.name: field.type for field in message_fields("AzureDiskVolumeSource")}
    assert (fields["diskName"], fields["readOnly"]) == ("string", "bool")


def test_every_message_has_unique_fields_of_known_types() -> None:
    assert len(list(message_names())) > 300
    for name in message_names():
        fields = message_fields(name)
        assert len({field.number for field in fields}) == len(fields), name
        assert len({field.name for field in fields}) == len(fields), name
        assert {field.type for field in fields} <= SCALARS | set(message_names()), name


@pytest.mark.parametrize(
    ("version", "kind", "message"),
    [
        ("v1", "Event", "Event"),
        ("events.k8s.io/v1", "Event", "EventV1"),
        ("autoscaling/v1", "HorizontalPodAutoscaler", "HorizontalPodAutoscalerV1"),
        ("batch/v1beta1", "CronJob", "CronJob"),
        ("meta.k8s.io/v1", "DeleteOptions", "DeleteOptions"),
        ("authorization.openshift.io/v1", "Role", "LegacyRole"),
        ("authorization.openshift.io/v1", "SubjectAccessReview", "LegacySubjectAccessReview"),
        ("authorization.k8s.io/v1", "SubjectAccessReview", "SubjectAccessReview"),
    ],
)
def test_message_of_a_kind(version: str, kind: str, message: str) -> None:
    assert message_of(version, kind) == message
