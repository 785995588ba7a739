"""Objects of the resources that are stored and that nothing acts on."""

from __future__ import annotations

import datetime
from typing import Any

from api.validation.registry import decode, default
from master.resources import BUILTIN
from master.resources.resource import AnyResource
from master.resources.scheme import BY_KIND

NOW = datetime.datetime(2026, 1, 1, 0, 2, 21, tzinfo=datetime.UTC)


KINDS = {resource.plural: resource for resource in BUILTIN} | {
    "horizontalpodautoscalers": BY_KIND["HorizontalPodAutoscaler"]
}


SC = {"provisioner": "example.org/nfs"}


NODE = {"spec": {"drivers": [{"name": "csi.example.org", "nodeID": "n-1", "topologyKeys": ["zone"]}]}}


POD = {"kind": "Pod", "name": "web", "namespace": "red"}


EVENT = {"eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "example.org/c", "reportingInstance": "c-1",
        "action": "Binding", "reason": "Scheduled", "type": "Normal", "regarding": POD}  # fmt: skip


CONTAINER = {"name": "c", "image": "i", "imagePullPolicy": "Always"}


TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [CONTAINER]}}


BACKEND = {"service": {"name": "web", "port": {"number": 80}}}


PATH = {"path": "/a", "pathType": "Prefix", "backend": BACKEND}


def ingress(**path: Any) -> dict[str, Any]:
    return {"spec": {"rules": [{"host": "*.example.org", "http": {"paths": [PATH | path]}}]}}


def policy(**peer: Any) -> dict[str, Any]:
    return {"spec": {"podSelector": {}, "ingress": [{"from": [peer]}]}}


def egress(**rule: Any) -> dict[str, Any]:
    return {"spec": {"egress": [{"type": "Deny", "to": {"cidrSelector": "10.0.0.0/8"}} | rule]}}


PARENT = {"resource": "services", "namespace": "red", "name": "web"}


RESOURCE_RULE = {"verbs": ["*"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["red"]}


FLOW_RULE: dict[str, Any] = {
    "subjects": [{"kind": "ServiceAccount", "serviceAccount": {"namespace": "red", "name": "*"}}],
    "resourceRules": [RESOURCE_RULE],
    "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz"]}],
}


def flow_schema(**spec: Any) -> dict[str, Any]:
    return {"spec": {"priorityLevelConfiguration": {"name": "low"}, "rules": [FLOW_RULE], **spec}}


def priority_level(**queuing: Any) -> dict[str, Any]:
    response = {"type": "Queue", "queuing": {"queues": 64, **queuing}}
    return {"spec": {"type": "Limited", "limited": {"limitResponse": response}}}


TARGET = {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}


CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}}


QUEUE = {"type": "External", "external": {"metric": {"name": "queue", "selector": {"matchLabels": {"a": "b"}}},
                                          "target": {"type": "AverageValue", "averageValue": "30"}}}  # fmt: skip


HITS = {"type": "Object", "object": {"metric": {"name": "hits"}, "describedObject": TARGET,
                                     "target": {"type": "Value", "value": "2k"}}}  # fmt: skip


def scaler(*metrics: dict[str, Any], **rest: Any) -> dict[str, Any]:
    spec = {"scaleTargetRef": TARGET, "maxReplicas": 5, **rest}
    return {"spec": spec | ({"metrics": list(metrics)} if metrics else {})}


def resource_metric(**target: Any) -> dict[str, Any]:
    return scaler({"type": "Resource", "resource": {"name": "cpu", "target": target}})


GOOD: list[tuple[str, dict[str, Any]]] = [
    ("priorityclasses", {"value": 1000, "globalDefault": True, "description": "much"}),
    ("priorityclasses", {"metadata": {"name": "system-node-critical"}, "value": 2_000_001_000}),
    ("runtimeclasses", {"handler": "crun", "overhead": {"podFixed": {"cpu": "10m"}},
                        "scheduling": {"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}]}}),
    ("storageclasses", {**SC, "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]}),
    ("csidrivers", {"spec": {"tokenRequests": [{"audience": "a"}, {"expirationSeconds": 600}]}}),
    ("csinodes", NODE),
    ("events", {**EVENT, "note": "x", "series": {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}}),
    ("events", {"regarding": POD, "deprecatedFirstTimestamp": "2026-01-01T00:00:00Z", "deprecatedCount": 3,
                "deprecatedSource": {"component": "kubelet", "host": "n"}}),
    ("podtemplates", {"template": TEMPLATE}),
    ("controllerrevisions", {"data": {"spec": {"a": [1]}}, "revision": 3}),
    ("networkpolicies", policy(podSelector={"matchLabels": {"a": "b"}}, namespaceSelector={})),
    ("networkpolicies", policy(ipBlock={"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]})),
    ("networkpolicies", {"spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [
        {"ports": [{"port": 80, "endPort": 90, "protocol": "UDP"}, {"port": "web"}]}]}}),
    ("ingresses", ingress()),
    ("ingresses", ingress(path="", pathType="ImplementationSpecific",
                          backend={"resource": {"kind": "A", "name": "b"}})),
    ("ingresses", {"spec": {"defaultBackend": {"service": {"name": "web", "port": {"name": "http"}}},
                            "ingressClassName": "x", "tls": [{"hosts": ["a.example.org"], "secretName": "s"}]}}),
    ("ingressclasses", {"spec": {"controller": "example.org/ingress", "parameters": {
        "kind": "Lane", "name": "a", "apiGroup": "example.org", "scope": "Namespace", "namespace": "red"}}}),
    ("servicecidrs", {"spec": {"cidrs": ["172.30.0.0/16"]}}),
    ("ipaddresses", {"metadata": {"name": "fd00::5"}, "spec": {"parentRef": PARENT}}),
    ("flowschemas", flow_schema(matchingPrecedence=9, distinguisherMethod={"type": "ByUser"})),
    ("prioritylevelconfigurations", priority_level(handSize=9, queueLengthLimit=5)),
    ("egressnetworkpolicies", egress()),
    ("egressnetworkpolicies", egress(type="Allow", to={"dnsName": "example.org"})),
    ("horizontalpodautoscalers", scaler(CPU, QUEUE, HITS, minReplicas=2)),
    ("horizontalpodautoscalers", scaler(behavior={"scaleUp": {"policies": [
        {"type": "Pods", "value": 1, "periodSeconds": 60}], "tolerance": "0.1"}})),
]  # fmt: skip


def document(resource: AnyResource, content: dict[str, Any]) -> dict[str, Any]:
    given = {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"}
    if resource.namespaced:
        given["namespace"] = "red"
    return {**content, "metadata": given | content.get("metadata", {})}


def read(plural: str, content: dict[str, Any]) -> Any:
    resource = KINDS[plural]
    obj, problems, _ = decode(resource.type, document(resource, content), resource.rules)
    assert not problems
    return default(obj, resource.rules)


def held_by(given: Any, stored: Any) -> None:
    """Check that all given values are stored. An empty text may be absent."""
    if isinstance(given, dict):
        for key, value in given.items():
            held_by(value, stored.get(key, ""))
    elif isinstance(given, list):
        for mine, there in zip(given, stored, strict=True):
            held_by(mine, there)
    else:
        assert given == stored
