from __future__ import annotations

from api.core.config import ConfigMap
from api.core.node import Node
from api.core.pod import Pod
from master.resources.merge_schema import OPEN, MergeKind, merge_schema_of


def test_lists_of_a_pod_are_told_apart_by_the_marks_on_its_fields() -> None:
    spec = merge_schema_of(Pod).at("spec")
    container = spec.at("containers").item
    assert container is not None
    assert (spec.at("containers").form, spec.at("containers").keys) == (MergeKind.LIST_MAP, ("name",))
    assert container.at("ports").keys == ("containerPort", "protocol")
    assert container.at("command").form is MergeKind.ATOMIC
    assert spec.at("topologySpreadConstraints").keys == ("topologyKey", "whenUnsatisfiable")
    assert spec.at("nodeSelector").form is MergeKind.ATOMIC
    assert spec.at("priority").form is MergeKind.ATOMIC
    assert merge_schema_of(Pod).at("metadata").at("finalizers").form is MergeKind.SET
    assert merge_schema_of(Node).at("status").at("conditions").keys == ("type",)


def test_maps_of_users_and_what_has_no_type() -> None:
    assert merge_schema_of(ConfigMap).at("data").form is MergeKind.MAP
    assert merge_schema_of(Pod).at("spec").at("overhead") is OPEN
    assert merge_schema_of(Pod).at("nothing") is OPEN
