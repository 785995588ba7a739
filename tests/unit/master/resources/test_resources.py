"""Stored kinds: defaults, validation, immutable fields and tables."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from api.validation.registry import check_update, decode, default
from master.registry.strategy import prepare_subresource_update
from master.resources import BUILTIN
from master.resources.resource import READ_VERBS, VERBS
from master.resources.scheme import BY_KIND, BY_PATH, SERVED, STORED
from master.serialization import tables
from master.serialization.negotiation import View
from tests.unit.master.resources.examples import (
    BACKEND,
    CPU,
    EVENT,
    FLOW_RULE,
    GOOD,
    HITS,
    KINDS,
    NODE,
    NOW,
    PARENT,
    POD,
    QUEUE,
    RESOURCE_RULE,
    SC,
    TARGET,
    TEMPLATE,
    document,
    egress,
    flow_schema,
    held_by,
    ingress,
    policy,
    priority_level,
    read,
    resource_metric,
    scaler,
)

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
    *(("events", {key: value for key, value in EVENT.items() if key != missing}, missing)
      for missing in ("eventTime", "reportingController", "reportingInstance", "action", "reason", "type")),
    ("events", {**EVENT, "regarding": {**POD, "namespace": "blue"}}, "regarding.namespace"),
    ("events", {**EVENT, "eventTime": "yesterday"}, "eventTime"),
    ("events", {**EVENT, "reportingController": "a b"}, "reportingController"),
    ("events", {**EVENT, "action": "a" * 129}, "action"),
    ("events", {**EVENT, "note": "a" * 1025}, "note"),
    ("events", {**EVENT, "type": "Loud"}, "type"),
    ("events", {**EVENT, "series": {"count": 1, "lastObservedTime": "2026-01-01T00:01:00Z"}}, "series.count"),
    ("events", {**EVENT, "series": {"count": 2}}, "series.lastObservedTime"),
]  # fmt: skip

BAD += [
    ("podtemplates", {"template": {"spec": {}}}, "template.spec.containers"),
    ("controllerrevisions", {}, "data"),
    ("controllerrevisions", {"data": 3}, "data"),
    ("controllerrevisions", {"data": {}, "revision": -1}, "revision"),
    ("networkpolicies", policy(), "spec.ingress[0].from[0]"),
    ("networkpolicies", policy(ipBlock={}), "spec.ingress[0].from[0].ipBlock.cidr"),
    ("networkpolicies", policy(ipBlock={"cidr": "10.0.0.1"}), "spec.ingress[0].from[0].ipBlock.cidr"),
    ("networkpolicies", policy(ipBlock={"cidr": "10.0.0.0/8"}, podSelector={}), "spec.ingress[0].from[0]"),
    ("networkpolicies", policy(ipBlock={"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}),
     "spec.ingress[0].from[0].ipBlock.except[0]"),
    ("networkpolicies", policy(ipBlock={"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}),
     "spec.ingress[0].from[0].ipBlock.except[0]"),
    ("networkpolicies", policy(ipBlock={"cidr": "10.0.0.0/8", "except": ["2001:db8::/64"]}),
     "spec.ingress[0].from[0].ipBlock.except[0]"),
    ("networkpolicies", policy(podSelector={"matchLabels": {"/": "b"}}),
     "spec.ingress[0].from[0].podSelector.matchLabels"),
    ("networkpolicies", {"spec": {"policyTypes": ["Both"]}}, "spec.policyTypes[0]"),
    ("networkpolicies", {"spec": {"policyTypes": ["Egress"] * 3}}, "spec.policyTypes"),
    ("networkpolicies", {"spec": {"egress": [{"ports": [{"port": 0}]}]}}, "spec.egress[0].ports[0].port"),
    ("networkpolicies", {"spec": {"egress": [{"ports": [{"port": "A b"}]}]}}, "spec.egress[0].ports[0].port"),
    ("networkpolicies", {"spec": {"egress": [{"ports": [{"port": 9, "endPort": 8}]}]}},
     "spec.egress[0].ports[0].endPort"),
    ("networkpolicies", {"spec": {"egress": [{"ports": [{"endPort": 8}]}]}}, "spec.egress[0].ports[0].endPort"),
    ("networkpolicies", {"spec": {"egress": [{"ports": [{"protocol": "ICMP"}]}]}}, "spec.egress[0].ports[0].protocol"),
    ("ingresses", {}, "spec"),
    ("ingresses", {"spec": {"rules": [{"host": "1.2.3.4"}]}}, "spec.rules[0].host"),
    ("ingresses", {"spec": {"rules": [{"host": "*.*.a"}]}}, "spec.rules[0].host"),
    ("ingresses", {"spec": {"rules": [{"http": {}}]}}, "spec.rules[0].http.paths"),
    ("ingresses", ingress(pathType=None), "spec.rules[0].http.paths[0].pathType"),
    ("ingresses", ingress(pathType="Some"), "spec.rules[0].http.paths[0].pathType"),
    ("ingresses", ingress(path="a"), "spec.rules[0].http.paths[0].path"),
    ("ingresses", ingress(path="/a//b"), "spec.rules[0].http.paths[0].path"),
    ("ingresses", ingress(path="/a/.."), "spec.rules[0].http.paths[0].path"),
    ("ingresses", ingress(backend={}), "spec.rules[0].http.paths[0].backend"),
    ("ingresses", ingress(backend={**BACKEND, "resource": {}}), "spec.rules[0].http.paths[0].backend"),
    ("ingresses", ingress(backend={"resource": {"kind": "A"}}), "spec.rules[0].http.paths[0].backend.resource.name"),
    ("ingresses", ingress(backend={"service": {"name": "A", "port": {"number": 1}}}),
     "spec.rules[0].http.paths[0].backend.service.name"),
    ("ingresses", ingress(backend={"service": {"name": "a"}}), "spec.rules[0].http.paths[0].backend.service.port"),
    ("ingresses", ingress(backend={"service": {"name": "a", "port": {"name": "b", "number": 1}}}),
     "spec.rules[0].http.paths[0].backend.service.port"),
    ("ingresses", ingress(backend={"service": {"name": "a", "port": {"number": 70000}}}),
     "spec.rules[0].http.paths[0].backend.service.port.number"),
    ("ingresses", {"spec": {"defaultBackend": BACKEND, "ingressClassName": "A"}}, "spec.ingressClassName"),
    ("ingresses", {"spec": {"defaultBackend": BACKEND, "tls": [{"hosts": ["A"]}]}}, "spec.tls[0].hosts[0]"),
    ("ingresses", {"spec": {"defaultBackend": BACKEND, "tls": [{"secretName": "A"}]}}, "spec.tls[0].secretName"),
    ("ingresses", {"metadata": {"annotations": {"kubernetes.io/ingress.class": "a"}},
                   "spec": {"defaultBackend": BACKEND, "ingressClassName": "a"}},
     "metadata.annotations[kubernetes.io/ingress.class]"),
    ("ingressclasses", {}, "spec.controller"),
    ("ingressclasses", {"spec": {"controller": "nginx"}}, "spec.controller"),
    ("ingressclasses", {"spec": {"controller": "a/b", "parameters": {"kind": "A"}}}, "spec.parameters.name"),
    ("ingressclasses", {"spec": {"controller": "a/b", "parameters": {"kind": "A", "name": "b", "scope": "All"}}},
     "spec.parameters.scope"),
    ("ingressclasses", {"spec": {"controller": "a/b", "parameters": {"kind": "A", "name": "b", "scope": "Namespace"}}},
     "spec.parameters.namespace"),
    ("ingressclasses", {"spec": {"controller": "a/b", "parameters": {"kind": "A", "name": "b", "namespace": "c"}}},
     "spec.parameters.namespace"),
    ("servicecidrs", {}, "spec.cidrs"),
    ("servicecidrs", {"spec": {"cidrs": ["10"]}}, "spec.cidrs[0]"),
    ("ipaddresses", {"spec": {"parentRef": PARENT}}, "metadata.name"),
    ("ipaddresses", {"metadata": {"name": "fd00:0::5"}, "spec": {"parentRef": PARENT}}, "metadata.name"),
    ("ipaddresses", {"metadata": {"name": "10.0.0.5"}}, "spec.parentRef"),
    ("ipaddresses", {"metadata": {"name": "10.0.0.5"}, "spec": {"parentRef": {**PARENT, "name": ""}}},
     "spec.parentRef.name"),
    ("flowschemas", flow_schema(matchingPrecedence=10_001), "spec.matchingPrecedence"),
    ("flowschemas", flow_schema(priorityLevelConfiguration=None), "spec.priorityLevelConfiguration.name"),
    ("flowschemas", flow_schema(distinguisherMethod={"type": "Some"}), "spec.distinguisherMethod.type"),
    ("flowschemas", flow_schema(rules=[{**FLOW_RULE, "subjects": []}]), "spec.rules[0].subjects"),
    ("flowschemas", flow_schema(rules=[{"subjects": FLOW_RULE["subjects"]}]), "spec.rules[0]"),
    ("flowschemas", flow_schema(rules=[{**FLOW_RULE, "subjects": [{"kind": "Group"}]}]),
     "spec.rules[0].subjects[0].group"),
    ("flowschemas", flow_schema(rules=[{**FLOW_RULE, "nonResourceRules": [{"verbs": ["get"]}]}]),
     "spec.rules[0].nonResourceRules[0].nonResourceURLs"),
    ("flowschemas", flow_schema(rules=[{**FLOW_RULE, "resourceRules": [{**RESOURCE_RULE, "namespaces": []}]}]),
     "spec.rules[0].resourceRules[0].namespaces"),
    ("prioritylevelconfigurations", {}, "spec.type"),
    ("prioritylevelconfigurations", {"spec": {"type": "Limited"}}, "spec.limited"),
    ("prioritylevelconfigurations", {"spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Queue"}}}},
     "spec.limited.limitResponse.queuing"),
    ("prioritylevelconfigurations", priority_level(handSize=99), "spec.limited.limitResponse.queuing.handSize"),
    ("prioritylevelconfigurations", {"spec": {"type": "Exempt", "exempt": {"lendablePercent": 101}}},
     "spec.exempt.lendablePercent"),
    ("egressnetworkpolicies", egress(type="Maybe"), "spec.egress[0].type"),
    ("egressnetworkpolicies", egress(to={}), "spec.egress[0].to"),
    ("egressnetworkpolicies", egress(to={"cidrSelector": "10.0.0.0/8", "dnsName": "a"}), "spec.egress[0].to"),
    *(("egressnetworkpolicies", egress(to={"cidrSelector": text}), "spec.egress[0].to.cidrSelector")
      for text in ("10", "10.0.0.0/255.0.0.0", "fe80::1%eth0/64", "10.0.0.0/33", "10.0.0.0/+8", "a/8", "10.0.0.0/8\n")),
    ("egressnetworkpolicies", egress(to={"dnsName": "A_"}), "spec.egress[0].to.dnsName"),
    ("egressnetworkpolicies", {"spec": {"egress": [egress()["spec"]["egress"][0]] * 1001}}, "spec.egress"),
    ("horizontalpodautoscalers", {"spec": {"maxReplicas": 1, "scaleTargetRef": {"name": "d"}}},
     "spec.scaleTargetRef.kind"),
    ("horizontalpodautoscalers", {"spec": {"scaleTargetRef": TARGET}}, "spec.maxReplicas"),
    ("horizontalpodautoscalers", scaler(minReplicas=0), "spec.minReplicas"),
    ("horizontalpodautoscalers", scaler(minReplicas=6), "spec.maxReplicas"),
    ("horizontalpodautoscalers", scaler({"type": "Some"}), "spec.metrics[0].type"),
    ("horizontalpodautoscalers", scaler({"type": "Resource"}), "spec.metrics[0]"),
    ("horizontalpodautoscalers", scaler({**CPU, "type": "Pods"}), "spec.metrics[0].pods"),
    ("horizontalpodautoscalers", scaler({**CPU, **QUEUE}), "spec.metrics[0]"),
    ("horizontalpodautoscalers", resource_metric(type="Value", value="1"), "spec.metrics[0].resource.target.type"),
    ("horizontalpodautoscalers", resource_metric(type="Utilization"),
     "spec.metrics[0].resource.target.averageUtilization"),
    ("horizontalpodautoscalers", resource_metric(type="Utilization", averageUtilization=0),
     "spec.metrics[0].resource.target.averageUtilization"),
    ("horizontalpodautoscalers", resource_metric(type="AverageValue", averageValue="0"),
     "spec.metrics[0].resource.target.averageValue"),
    ("horizontalpodautoscalers", scaler(*[CPU] * 101), "spec.metrics"),
    ("horizontalpodautoscalers", scaler(behavior={"scaleUp": {
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 1}] * 101}}), "spec.behavior.scaleUp.policies"),
    ("horizontalpodautoscalers", resource_metric(type="AverageValue", averageValue="much"),
     "spec.metrics[0].resource.target.averageValue"),
    ("horizontalpodautoscalers", resource_metric(type="AverageValue", averageValue="1", value="2"),
     "spec.metrics[0].resource.target.value"),
    ("horizontalpodautoscalers",
     scaler({"type": "Pods", "pods": {"target": {"type": "AverageValue", "averageValue": 1}}}),
     "spec.metrics[0].pods.metric.name"),
    ("horizontalpodautoscalers", scaler({"type": "ContainerResource", "containerResource": CPU["resource"]}),
     "spec.metrics[0].containerResource.container"),
    ("horizontalpodautoscalers", scaler(behavior={"scaleUp": {"selectPolicy": "Most"}}),
     "spec.behavior.scaleUp.selectPolicy"),
    ("horizontalpodautoscalers", scaler(behavior={"scaleDown": {"stabilizationWindowSeconds": 3601}}),
     "spec.behavior.scaleDown.stabilizationWindowSeconds"),
    ("horizontalpodautoscalers", scaler(behavior={"scaleDown": {"policies": [{"type": "Pods", "periodSeconds": 1}]}}),
     "spec.behavior.scaleDown.policies[0].value"),
]  # fmt: skip

FIXED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("priorityclasses", {"value": 1}, {"value": 2}, "value"),
    ("priorityclasses", {"value": 1}, {"value": 1, "preemptionPolicy": "Never"}, "preemptionPolicy"),
    ("runtimeclasses", {"handler": "a"}, {"handler": "b"}, "handler"),
    ("storageclasses", SC, {"provisioner": "other"}, "provisioner"),
    ("storageclasses", SC, {**SC, "parameters": {"a": "b"}}, "parameters"),
    ("storageclasses", SC, {**SC, "reclaimPolicy": "Retain"}, "reclaimPolicy"),
    ("storageclasses", SC, {**SC, "volumeBindingMode": "WaitForFirstConsumer"}, "volumeBindingMode"),
    ("csidrivers", {}, {"spec": {"attachRequired": False}}, "spec.attachRequired"),
    ("csidrivers", {}, {"spec": {"volumeLifecycleModes": ["Ephemeral"]}}, "spec.volumeLifecycleModes"),
    ("csinodes", NODE, {"spec": {"drivers": [{"name": "csi.example.org", "nodeID": "n-2"}]}}, "spec.drivers[0]"),
    ("events", EVENT, {**EVENT, "deprecatedSource": {"component": "c"}}, "deprecatedSource"),
    ("events", EVENT, {**EVENT, "regarding": {**POD, "uid": "u"}}, "regarding"),
]

ROWS: list[tuple[str, dict[str, Any], list[object]]] = [
    ("priorityclasses", {"value": 7}, ["x", 7, False, "2m21s", "PreemptLowerPriority"]),
    ("runtimeclasses", {"handler": "crun"}, ["x", "crun", "2m21s"]),
    ("storageclasses", SC, ["x", "example.org/nfs", "Delete", "Immediate", False, "2m21s"]),
    ("storageclasses", {**SC, "metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}},
     ["x (default)", "example.org/nfs", "Delete", "Immediate", False, "2m21s"]),
    ("csidrivers", {}, ["x", True, False, False, "<unset>", False, "Persistent", "2m21s"]),
    ("csinodes", NODE, ["x", 1, "2m21s"]),
    ("podtemplates", {"template": TEMPLATE}, ["x", "c", "i", "a=b"]),
    ("controllerrevisions", {"data": {}, "revision": 3}, ["x", "<none>", 3, "2m21s"]),
    ("controllerrevisions", {"data": {}, "metadata": {"ownerReferences": [
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "u", "controller": True}]}},
     ["x", "statefulset.apps/web", 0, "2m21s"]),
    ("networkpolicies", policy(podSelector={}), ["x", "<none>", "2m21s"]),
    ("ingresses", ingress(), ["x", "<none>", "*.example.org", "", "80", "2m21s"]),
    ("ingresses", {"spec": {"rules": [{"host": f"{name}.org"} for name in "abcde"], "ingressClassName": "k",
                            "tls": [{}]}, "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}}},
     ["x", "k", "a.org,b.org,c.org + 2 more...", "10.0.0.1", "80, 443", "2m21s"]),
    ("ingresses", {"spec": {"defaultBackend": BACKEND}}, ["x", "<none>", "*", "", "80", "2m21s"]),
    ("ingressclasses", {"spec": {"controller": "a/b", "parameters": {"apiGroup": "g.io", "kind": "K", "name": "n"}}},
     ["x", "a/b", "K.g.io/n", "2m21s"]),
    ("servicecidrs", {"spec": {"cidrs": ["10.0.0.0/8"]}}, ["x", "10.0.0.0/8", "2m21s"]),
    ("ipaddresses", {"metadata": {"name": "10.0.0.5"}, "spec": {"parentRef": PARENT}},
     ["10.0.0.5", "services/red/web", "2m21s"]),
    ("flowschemas", flow_schema(), ["x", "low", 1000, "<none>", "2m21s", "?"]),
    ("prioritylevelconfigurations", priority_level(), ["x", "Limited", 30, 64, 8, 50, "2m21s"]),
    ("prioritylevelconfigurations", {"spec": {"type": "Exempt"}},
     ["x", "Exempt", 0, "<none>", "<none>", "<none>", "2m21s"]),
    ("egressnetworkpolicies", egress(), ["x", "2m21s"]),
    ("horizontalpodautoscalers", scaler(), ["x", "Deployment/d", "cpu: <unknown>/80%", "1", 5, 0, "2m21s"]),
    ("horizontalpodautoscalers", scaler(CPU, HITS, QUEUE) | {"status": {"currentReplicas": 2, "desiredReplicas": 2,
        "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 7}}}]}},
     ["x", "Deployment/d", "cpu: 7%/70%, <unknown>/2k + 1 more...", "1", 5, 2, "2m21s"]),
]  # fmt: skip


@pytest.mark.parametrize(("plural", "content"), GOOD)
def test_accepted_object_keeps_its_fields_and_is_defaulted_once(plural: str, content: dict[str, Any]) -> None:
    resource, obj = KINDS[plural], read(plural, content)
    assert default(obj, resource.rules) == obj
    assert not list(check_update(obj, obj, resource.rules))
    encoded = json.loads(tables.encode_object(resource, obj, View.OBJECT, NOW))
    held_by(document(resource, content), encoded)


@pytest.mark.parametrize(("plural", "content", "path"), BAD)
def test_invalid_object_is_rejected_by_path(plural: str, content: dict[str, Any], path: str) -> None:
    resource = KINDS[plural]
    _, problems, _ = decode(resource.type, document(resource, content), resource.rules)
    assert [problem.path for problem in problems] == [path]


@pytest.mark.parametrize(("plural", "before", "after", "path"), FIXED)
def test_immutable_fields_are_rejected_in_updates(
    plural: str, before: dict[str, Any], after: dict[str, Any], path: str
) -> None:
    problems = check_update(read(plural, before), read(plural, after), KINDS[plural].rules)
    assert [problem.path for problem in problems] == [path]


@pytest.mark.parametrize(("plural", "content", "cells"), ROWS)
def test_stored_kinds_table_rows(plural: str, content: dict[str, Any], cells: list[object]) -> None:
    actual = json.loads(tables.encode_object(KINDS[plural], read(plural, content), View.TABLE, NOW))
    assert actual["rows"][0]["cells"] == cells
    assert len(actual["columnDefinitions"]) == len(cells)


def test_creating_an_object_without_effect_causes_a_warning() -> None:
    for plural, content in (
        ("networkpolicies", policy(podSelector={})), ("egressnetworkpolicies", egress()), ("ingresses", ingress()),
    ):  # fmt: skip
        resource = KINDS[plural]
        _, _, warnings = decode(resource.type, document(resource, content), resource.rules)
        assert len(warnings) == 1, plural


def test_every_resource_is_registered_once() -> None:
    assert len(BY_PATH) == len(SERVED)
    assert len(BY_KIND) == len(STORED)


def test_resources_that_clients_cannot_create_state_why() -> None:
    for resource in BUILTIN:
        assert bool(resource.create_denial) == ("create" not in resource.verbs), resource.plural
        assert set(resource.verbs) <= set(VERBS)
    assert not [resource.plural for resource in BUILTIN if resource.create_denial and "update" in resource.verbs]


def test_resources_that_are_listed_empty_are_read_only_and_not_a_projection() -> None:
    resources = [resource for resource in BUILTIN if resource.listed_empty]
    assert "resourceslices" in {resource.plural for resource in resources}
    assert {resource.stored_as for resource in resources} == {None}
    assert {resource.plural: resource.verbs for resource in resources if resource.verbs != READ_VERBS} == {
        "resourceslices": ("deletecollection", *READ_VERBS)
    }


def test_autoscaler_behavior_defaults_are_set_when_some_is_given() -> None:
    assert read("horizontalpodautoscalers", scaler()).spec.behavior is None
    actual = read("horizontalpodautoscalers", scaler(behavior={"scaleDown": {"selectPolicy": "Min"}})).spec.behavior
    assert [(scaling_policy.type, scaling_policy.value) for scaling_policy in actual.scale_up.policies] == [
        ("Pods", 4),
        ("Percent", 100),
    ]
    assert (actual.scale_down.select_policy, actual.scale_down.stabilization_window_seconds) == ("Min", None)


def test_network_policy_types_default_from_its_rules() -> None:
    assert read("networkpolicies", policy(podSelector={})).spec.policy_types == ("Ingress",)
    both = read("networkpolicies", {"spec": {"podSelector": {}, "egress": [{"ports": [{"port": 1}]}]}}).spec
    assert both.policy_types == ("Ingress", "Egress")
    assert both.egress[0].ports[0].protocol == "TCP"


def test_status_update_may_change_labels_and_annotations() -> None:
    old = read("ingresses", ingress())
    spec, metadata = replace(old.spec, ingress_class_name="x"), replace(old.metadata, labels={"a": "b"})
    new = replace(old, spec=spec, metadata=metadata)
    assert prepare_subresource_update(KINDS["ingresses"], "status", new, old) == replace(old, metadata=new.metadata)
