"""Kinds that are kept and served: what is filled in, what is refused, what may not change, how they are shown."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from api.validate import decode, default, immutable
from master import tables
from master.kinds import ALL
from master.kinds.kind import AnyKind
from master.request import View

NOW = datetime.datetime(2026, 1, 1, 0, 2, 21, tzinfo=datetime.UTC)
KINDS = {kind.plural: kind for kind in ALL}

SC = {"provisioner": "example.org/nfs"}
VAC = {"driverName": "csi.example.org", "parameters": {"iops": "3"}}
NODE = {"spec": {"drivers": [{"name": "csi.example.org", "nodeID": "n-1", "topologyKeys": ["zone"]}]}}
PLACE = {"attacher": "csi.example.org", "nodeName": "n", "source": {"persistentVolumeName": "pv"}}
POD = {"kind": "Pod", "name": "web", "namespace": "red"}
TOLD = {"eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "example.org/c", "reportingInstance": "c-1",
        "action": "Binding", "reason": "Scheduled", "type": "Normal", "regarding": POD}  # fmt: skip

GOOD: list[tuple[str, dict[str, Any]]] = [
    ("priorityclasses", {"value": 1000, "globalDefault": True, "description": "much"}),
    ("priorityclasses", {"metadata": {"name": "system-node-critical"}, "value": 2_000_001_000}),
    ("runtimeclasses", {"handler": "crun", "overhead": {"podFixed": {"cpu": "10m"}},
                        "scheduling": {"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}]}}),
    ("storageclasses", {**SC, "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]}),
    ("volumeattributesclasses", VAC),
    ("csidrivers", {"spec": {"tokenRequests": [{"audience": "a"}, {"expirationSeconds": 600}]}}),
    ("csinodes", NODE),
    ("csistoragecapacities", {"storageClassName": "fast", "capacity": "3Gi",
                              "nodeTopology": {"matchLabels": {"a": "b"}}}),
    ("volumeattachments", {"spec": PLACE}),
    ("events", {**TOLD, "note": "x", "series": {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}}),
    ("events", {"regarding": POD, "deprecatedFirstTimestamp": "2026-01-01T00:00:00Z", "deprecatedCount": 3,
                "deprecatedSource": {"component": "kubelet", "host": "n"}}),
]  # fmt: skip

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("priorityclasses", {"value": 1_000_000_001}, "value"),
    ("priorityclasses", {"value": -(1 << 31) - 1}, "value"),
    ("priorityclasses", {"metadata": {"name": "system-mine"}, "value": 1}, "metadata.name"),
    ("priorityclasses", {"metadata": {"name": "system-node-critical"}, "value": 1}, "metadata.name"),
    ("priorityclasses", {"value": 1, "preemptionPolicy": "Always"}, "preemptionPolicy"),
    ("runtimeclasses", {}, "handler"),
    ("runtimeclasses", {"handler": "A_B"}, "handler"),
    ("runtimeclasses", {"handler": "a", "overhead": {"podFixed": {"cpu": "much"}}}, "overhead.podFixed[cpu]"),
    ("runtimeclasses", {"handler": "a", "overhead": {"podFixed": {"cpu": "-1"}}}, "overhead.podFixed[cpu]"),
    ("runtimeclasses", {"handler": "a", "scheduling": {"nodeSelector": {"-": "b"}}}, "scheduling.nodeSelector[-]"),
    ("runtimeclasses", {"handler": "a", "scheduling": {"tolerations": [{}]}}, "scheduling.tolerations[0].operator"),
    ("storageclasses", {}, "provisioner"),
    ("storageclasses", {"provisioner": "a/b/c"}, "provisioner"),
    ("storageclasses", {**SC, "reclaimPolicy": "Recycle"}, "reclaimPolicy"),
    ("storageclasses", {**SC, "volumeBindingMode": "Later"}, "volumeBindingMode"),
    ("storageclasses", {**SC, "parameters": {"": "x"}}, "parameters"),
    ("storageclasses", {**SC, "parameters": {str(n): "x" for n in range(513)}}, "parameters"),
    ("storageclasses", {**SC, "parameters": {"a": "x" * (256 << 10)}}, "parameters"),
    ("storageclasses", {**SC, "allowedTopologies": [{"matchLabelExpressions": [{"key": "a"}]}]},
     "allowedTopologies[0].matchLabelExpressions[0].values"),
    ("volumeattributesclasses", {"driverName": "csi.example.org"}, "parameters"),
    ("volumeattributesclasses", {**VAC, "driverName": "a" * 64}, "driverName"),
    ("csidrivers", {"metadata": {"name": "a" * 64}}, "metadata.name"),
    ("csidrivers", {"spec": {"fsGroupPolicy": "Some"}}, "spec.fsGroupPolicy"),
    ("csidrivers", {"spec": {"volumeLifecycleModes": ["Persistent", "Brief"]}}, "spec.volumeLifecycleModes[1]"),
    ("csidrivers", {"spec": {"tokenRequests": [{}, {}]}}, "spec.tokenRequests[1].audience"),
    ("csidrivers", {"spec": {"tokenRequests": [{"expirationSeconds": 1}]}}, "spec.tokenRequests[0].expirationSeconds"),
    ("csinodes", {"spec": {"drivers": [{"nodeID": "n"}]}}, "spec.drivers[0].name"),
    ("csinodes", {"spec": {"drivers": [{"name": "a"}]}}, "spec.drivers[0].nodeID"),
    ("csinodes", {"spec": {"drivers": [{"name": "a", "nodeID": "n" * 257}]}}, "spec.drivers[0].nodeID"),
    ("csinodes", {"spec": {"drivers": [{"name": "a", "nodeID": "n"}] * 2}}, "spec.drivers[1].name"),
    ("csinodes", {"spec": {"drivers": [{"name": "a", "nodeID": "n", "allocatable": {"count": -1}}]}},
     "spec.drivers[0].allocatable.count"),
    ("csistoragecapacities", {"capacity": "1Gi"}, "storageClassName"),
    ("csistoragecapacities", {"storageClassName": "a", "capacity": "-1"}, "capacity"),
    ("csistoragecapacities", {"storageClassName": "a", "nodeTopology": {"matchLabels": {"a": "/"}}},
     "nodeTopology.matchLabels[a]"),
    ("volumeattachments", {"spec": {**PLACE, "source": {}}}, "spec.source"),
    ("volumeattachments", {"spec": {**PLACE, "source": {"persistentVolumeName": "a", "inlineVolumeSpec": {}}}},
     "spec.source"),
    ("volumeattachments", {"spec": {**PLACE, "attacher": ""}}, "spec.attacher"),
    ("volumeattachments", {"spec": {**PLACE, "nodeName": "A"}}, "spec.nodeName"),
    *(("events", {key: value for key, value in TOLD.items() if key != missing}, missing)
      for missing in ("eventTime", "reportingController", "reportingInstance", "action", "reason", "type")),
    ("events", {**TOLD, "regarding": {**POD, "namespace": "blue"}}, "regarding.namespace"),
    ("events", {**TOLD, "eventTime": "yesterday"}, "eventTime"),
    ("events", {**TOLD, "reportingController": "a b"}, "reportingController"),
    ("events", {**TOLD, "action": "a" * 129}, "action"),
    ("events", {**TOLD, "note": "a" * 1025}, "note"),
    ("events", {**TOLD, "type": "Loud"}, "type"),
    ("events", {**TOLD, "series": {"count": 1, "lastObservedTime": "2026-01-01T00:01:00Z"}}, "series.count"),
    ("events", {**TOLD, "series": {"count": 2}}, "series.lastObservedTime"),
]  # fmt: skip

FIXED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("priorityclasses", {"value": 1}, {"value": 2}, "value"),
    ("priorityclasses", {"value": 1}, {"value": 1, "preemptionPolicy": "Never"}, "preemptionPolicy"),
    ("runtimeclasses", {"handler": "a"}, {"handler": "b"}, "handler"),
    ("storageclasses", SC, {"provisioner": "other"}, "provisioner"),
    ("storageclasses", SC, {**SC, "parameters": {"a": "b"}}, "parameters"),
    ("storageclasses", SC, {**SC, "reclaimPolicy": "Retain"}, "reclaimPolicy"),
    ("storageclasses", SC, {**SC, "volumeBindingMode": "WaitForFirstConsumer"}, "volumeBindingMode"),
    ("volumeattributesclasses", VAC, {**VAC, "parameters": {"iops": "4"}}, "parameters"),
    ("csidrivers", {}, {"spec": {"attachRequired": False}}, "spec.attachRequired"),
    ("csidrivers", {}, {"spec": {"volumeLifecycleModes": ["Ephemeral"]}}, "spec.volumeLifecycleModes"),
    ("csinodes", NODE, {"spec": {"drivers": [{"name": "csi.example.org", "nodeID": "n-2"}]}}, "spec.drivers[0]"),
    ("csistoragecapacities", {"storageClassName": "a"}, {"storageClassName": "b"}, "storageClassName"),
    ("volumeattachments", {"spec": PLACE}, {"spec": {**PLACE, "nodeName": "m"}}, "spec"),
    *(
        ("events", TOLD, {**TOLD, key: "Other"}, key)
        for key in ("reason", "action", "reportingController", "reportingInstance", "note")
    ),
    ("events", TOLD, {**TOLD, "regarding": {**POD, "uid": "u"}}, "regarding"),
]

ROWS: list[tuple[str, dict[str, Any], list[object]]] = [
    ("priorityclasses", {"value": 7}, ["x", 7, False, "2m21s", "PreemptLowerPriority"]),
    ("runtimeclasses", {"handler": "crun"}, ["x", "crun", "2m21s"]),
    ("storageclasses", SC, ["x", "example.org/nfs", "Delete", "Immediate", False, "2m21s"]),
    ("storageclasses", {**SC, "metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}},
     ["x (default)", "example.org/nfs", "Delete", "Immediate", False, "2m21s"]),
    ("volumeattributesclasses", VAC, ["x", "csi.example.org", "2m21s"]),
    ("csidrivers", {}, ["x", True, False, False, "<unset>", False, "Persistent", "2m21s"]),
    ("csinodes", NODE, ["x", 1, "2m21s"]),
    ("csistoragecapacities", {"storageClassName": "a"}, ["x", "a", "<unset>", "2m21s"]),
    ("volumeattachments", {"spec": PLACE}, ["x", "csi.example.org", "pv", "n", False, "2m21s"]),
]  # fmt: skip


def document(kind: AnyKind, content: dict[str, Any]) -> dict[str, Any]:
    given = {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"}
    if kind.namespaced:
        given["namespace"] = "red"
    return {**content, "metadata": given | content.get("metadata", {})}


def read(plural: str, content: dict[str, Any]) -> Any:
    kind = KINDS[plural]
    item, problems, _ = decode(kind.type, document(kind, content), kind.rules)
    assert not problems
    return default(item, kind.rules)


@pytest.mark.parametrize(("plural", "content"), GOOD)
def test_what_is_accepted_keeps_all_its_fields_and_is_filled_in_once(plural: str, content: dict[str, Any]) -> None:
    kind, item = KINDS[plural], read(plural, content)
    assert default(item, kind.rules) == item
    assert not list(immutable(item, item, kind.rules))
    kept = json.loads(tables.shown(kind, item, View.OBJECT, NOW))
    held_by(document(kind, content), kept)


def held_by(given: Any, kept: Any) -> None:
    """Everything that was given is kept."""
    if isinstance(given, dict):
        for key, value in given.items():
            held_by(value, kept[key])
    elif isinstance(given, list):
        for mine, there in zip(given, kept, strict=True):
            held_by(mine, there)
    else:
        assert given == kept


@pytest.mark.parametrize(("plural", "content", "path"), BAD)
def test_what_is_refused_says_where(plural: str, content: dict[str, Any], path: str) -> None:
    kind = KINDS[plural]
    _, problems, _ = decode(kind.type, document(kind, content), kind.rules)
    assert [problem.path for problem in problems] == [path]


@pytest.mark.parametrize(("plural", "before", "after", "path"), FIXED)
def test_what_may_not_change(plural: str, before: dict[str, Any], after: dict[str, Any], path: str) -> None:
    problems = immutable(read(plural, before), read(plural, after), KINDS[plural].rules)
    assert [problem.path for problem in problems] == [path]


@pytest.mark.parametrize(("plural", "content", "cells"), ROWS)
def test_how_they_are_shown(plural: str, content: dict[str, Any], cells: list[object]) -> None:
    found = json.loads(tables.shown(KINDS[plural], read(plural, content), View.TABLE, NOW))
    assert found["rows"][0]["cells"] == cells
    assert len(found["columnDefinitions"]) == len(cells)
