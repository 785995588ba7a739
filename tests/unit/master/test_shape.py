from __future__ import annotations

from api.core.config import ConfigMap
from api.core.node import Node
from api.core.pod import Pod
from master.kinds.shape import OPEN, Form, shape_of


def test_lists_of_a_pod_are_told_apart_by_the_marks_on_its_fields() -> None:
    spec = shape_of(Pod).at("spec")
    container = spec.at("containers").item
    assert container is not None
    assert (spec.at("containers").form, spec.at("containers").keys) == (Form.LIST_MAP, ("name",))
    assert container.at("ports").keys == ("containerPort", "protocol")
    assert container.at("command").form is Form.ATOMIC
    assert spec.at("topologySpreadConstraints").keys == ("topologyKey", "whenUnsatisfiable")
    assert spec.at("nodeSelector").form is Form.ATOMIC
    assert spec.at("priority").form is Form.ATOMIC
    assert shape_of(Pod).at("metadata").at("finalizers").form is Form.SET
    assert shape_of(Node).at("status").at("conditions").keys == ("type",)


def test_maps_of_users_and_what_has_no_type() -> None:
    assert shape_of(ConfigMap).at("data").form is Form.MAP
    assert shape_of(Pod).at("spec").at("overhead") is OPEN
    assert shape_of(Pod).at("nothing") is OPEN
