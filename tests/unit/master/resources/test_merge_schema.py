"""Merge keys of lists and maps."""

from __future__ import annotations

from api.core.config import ConfigMap
from api.core.node import Node
from api.core.pod import Pod
from master.resources.merge_schema import OPEN, MergeKind, merge_schema_of


def test_merge_keys_of_pod_lists_follow_their_field_annotations() -> None:
    spec = merge_schema_of(Pod).child("spec")
    container = spec.child("containers").items
    assert container is not None
    assert (spec.child("containers").kind, spec.child("containers").keys) == (MergeKind.LIST_MAP, ("name",))
    assert container.child("ports").keys == ("containerPort", "protocol")
    assert container.child("command").kind is MergeKind.ATOMIC
    assert spec.child("topologySpreadConstraints").keys == ("topologyKey", "whenUnsatisfiable")
    assert spec.child("nodeSelector").kind is MergeKind.ATOMIC
    assert spec.child("priority").kind is MergeKind.ATOMIC
    assert merge_schema_of(Pod).child("metadata").child("finalizers").kind is MergeKind.SET
    assert merge_schema_of(Node).child("status").child("conditions").keys == ("type",)


def test_merge_schema_of_maps_and_untyped_values() -> None:
    assert merge_schema_of(ConfigMap).child("data").kind is MergeKind.MAP
    assert merge_schema_of(Pod).child("metadata").child("managedFields") is OPEN
    assert merge_schema_of(Pod).child("nothing") is OPEN
