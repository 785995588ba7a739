"""Kinds of resource.k8s.io: defaults, validation and tables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.meta.schema import without_nulls
from api.validation.registry import check_update, decode, default
from master.serialization import tables
from master.serialization.negotiation import View
from tests.unit.master.resources.device_examples import (
    GOOD_DEVICES,
    GPU,
    PARAMETERS,
    claim,
    device,
    exactly,
    slice_of,
    template,
)
from tests.unit.master.resources.examples import KINDS, NOW, document, held_by, read

AT = "spec.devices.requests[0]"
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("resourceclaims", claim({"name": "A", "exactly": GPU}), f"{AT}.name"),
    ("resourceclaims", claim({"name": "a"}), AT),
    ("resourceclaims", claim({"name": "a", "exactly": GPU, "firstAvailable": [{"name": "b", **GPU}]}), AT),
    ("resourceclaims", claim(*[{"name": "a", "exactly": GPU}] * 2), "spec.devices.requests[1].name"),
    ("resourceclaims", claim(*({"name": f"a{n}", "exactly": GPU} for n in range(33))), "spec.devices.requests"),
    ("resourceclaims", claim({"name": "a", "firstAvailable": [{"name": f"b{n}", **GPU} for n in range(9)]}),
     f"{AT}.firstAvailable"),
    ("resourceclaims", exactly(deviceClassName=""), f"{AT}.exactly.deviceClassName"),
    ("resourceclaims", exactly(allocationMode="Some"), f"{AT}.exactly.allocationMode"),
    ("resourceclaims", exactly(allocationMode="All", count=2), f"{AT}.exactly.count"),
    ("resourceclaims", exactly(count=-1), f"{AT}.exactly.count"),
    ("resourceclaims", exactly(selectors=[{}]), f"{AT}.exactly.selectors[0].cel.expression"),
    ("resourceclaims", exactly(selectors=[{"cel": {"expression": "a" * 10241}}]),
     f"{AT}.exactly.selectors[0].cel.expression"),
    ("resourceclaims", exactly(tolerations=[{}]), f"{AT}.exactly.tolerations[0].operator"),
    ("resourceclaims", exactly(tolerations=[{"operator": "Exists", "value": "a"}]),
     f"{AT}.exactly.tolerations[0].value"),
    ("resourceclaims", exactly(tolerations=[{"key": "a", "effect": "Some"}]), f"{AT}.exactly.tolerations[0].effect"),
    ("resourceclaims", exactly(capacity={"requests": {"a": "-1"}}), f"{AT}.exactly.capacity.requests[a]"),
    ("resourceclaims", claim(constraints=[{}]), "spec.devices.constraints[0]"),
    ("resourceclaims", claim(constraints=[{"matchAttribute": "numa"}]), "spec.devices.constraints[0].matchAttribute"),
    ("resourceclaims", claim(config=[{"requests": ["b"], **PARAMETERS}]), "spec.devices.config[0].requests[0]"),
    ("resourceclaims", claim(config=[{}]), "spec.devices.config[0].opaque"),
    ("resourceclaims", claim(config=[{"opaque": {"driver": "d"}}]), "spec.devices.config[0].opaque.parameters"),
    ("resourceclaimtemplates", template(metadata={"name": "a"}), "spec.metadata"),
    ("resourceclaimtemplates", {"spec": claim({"name": "a"})}, "spec.spec.devices.requests[0]"),
    ("deviceclasses", {"spec": {"selectors": [{}]}}, "spec.selectors[0].cel.expression"),
    ("deviceclasses", {"spec": {"config": [{}]}}, "spec.config[0].opaque"),
    ("deviceclasses", {"spec": {"extendedResourceName": "gpu"}}, "spec.extendedResourceName"),
    ("resourceslices", slice_of(driver=""), "spec.driver"),
    ("resourceslices", slice_of(pool={"name": "A_", "resourceSliceCount": 1}), "spec.pool.name"),
    ("resourceslices", slice_of(pool={"name": "a"}), "spec.pool.resourceSliceCount"),
    ("resourceslices", slice_of(nodeName=None), "spec"),
    ("resourceslices", slice_of(allNodes=True), "spec"),
    ("resourceslices", slice_of(nodeName="A"), "spec.nodeName"),
    ("resourceslices", slice_of(device(), device()), "spec.devices[1].name"),
    ("resourceslices", slice_of(device(name="")), "spec.devices[0].name"),
    ("resourceslices", slice_of(device(allNodes=True)), "spec.devices[0]"),
    ("resourceslices", slice_of(device(), nodeName=None, perDeviceNodeSelection=True), "spec.devices[0]"),
    ("resourceslices", slice_of(device(attributes={"a": {}})), "spec.devices[0].attributes[a]"),
    ("resourceslices", slice_of(device(attributes={"a-b": {"int": 1}})), "spec.devices[0].attributes"),
    ("resourceslices", slice_of(device(attributes={"a": {"string": "a" * 65}})),
     "spec.devices[0].attributes[a].string"),
    ("resourceslices", slice_of(device(capacity={"a": {}})), "spec.devices[0].capacity[a].value"),
    ("resourceslices", slice_of(device(taints=[{"key": "a", "effect": "PreferNoSchedule"}])),
     "spec.devices[0].taints[0].effect"),
    ("resourceslices", slice_of(device(consumesCounters=[{"counterSet": "s"}])),
     "spec.devices[0].consumesCounters[0].counters"),
    ("resourceslices", slice_of(*(device(name=f"a{n}") for n in range(129))), "spec.devices"),
    ("resourceslices", slice_of(sharedCounters=[{"name": "", "counters": {"a": {"value": 1}}}]),
     "spec.sharedCounters[0].name"),
]  # fmt: skip


@pytest.mark.parametrize(("plural", "content"), GOOD_DEVICES)
def test_accepted_device_object_keeps_its_fields_and_is_defaulted_once(plural: str, content: dict[str, Any]) -> None:
    kind, item = KINDS[plural], read(plural, content)
    assert default(item, kind.rules) == item
    held_by(without_nulls(document(kind, content)), json.loads(tables.encode_object(kind, item, View.OBJECT, NOW)))


@pytest.mark.parametrize(("plural", "content", "path"), BAD)
def test_invalid_device_object_is_rejected_by_path(plural: str, content: dict[str, Any], path: str) -> None:
    kind = KINDS[plural]
    _, problems, _ = decode(kind.type, document(kind, content), kind.rules)
    assert [problem.path for problem in problems] == [path]


def test_device_object_defaults_are_set() -> None:
    found = read("resourceclaims", exactly(tolerations=[{"key": "a"}])).spec.devices.requests[0].exactly
    assert (found.allocation_mode, found.count, found.tolerations[0].operator) == ("ExactCount", 1, "Equal")
    every = read("resourceclaims", exactly(allocationMode="All")).spec.devices.requests[0].exactly
    assert every.count == 0


@pytest.mark.parametrize(
    ("plural", "before", "after", "path"),
    [
        ("resourceclaims", exactly(), exactly(count=2), "spec"),
        ("resourceclaimtemplates", template(), template(metadata={"labels": {"a": "b"}}), "spec"),
        ("resourceslices", slice_of(), slice_of(driver="other"), "spec.driver"),
        ("resourceslices", slice_of(), slice_of(nodeName="m"), "spec.nodeName"),
    ],
)
def test_device_object_fields_are_immutable(
    plural: str, before: dict[str, Any], after: dict[str, Any], path: str
) -> None:
    problems = check_update(read(plural, before), read(plural, after), KINDS[plural].rules)
    assert [problem.path for problem in problems] == [path]


def test_device_object_table_rows() -> None:
    given = {"allocation": {}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}
    rows = [
        ("resourceclaims", exactly(), ["x", "pending", "2m21s"]),
        ("resourceclaims", {**exactly(), "status": given}, ["x", "allocated,reserved", "2m21s"]),
        ("resourceslices", slice_of(), ["x", "n", "gpu.example.org", "n", "2m21s"]),
        ("deviceclasses", {}, ["x", "2m21s"]),
    ]
    for plural, content, cells in rows:
        found = json.loads(tables.encode_object(KINDS[plural], read(plural, content), View.TABLE, NOW))
        assert found["rows"][0]["cells"] == cells


def test_resource_slices_are_selectable_by_node_and_driver() -> None:
    found = KINDS["resourceslices"].field_values(read("resourceslices", slice_of()))
    assert (found["spec.nodeName"], found["spec.driver"]) == ("n", "gpu.example.org")
