"""The startup requests of Kubernetes components, and objects of which each component finds some."""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

from api.pki import keys
from api.pki.pem import Subject

NODE = "ref1"
IN = "namespaces/red"

ACCEPT = "application/vnd.kubernetes.protobuf,application/json"
METADATA = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
ACCEPT_METADATA = f"application/vnd.kubernetes.protobuf{METADATA},application/json{METADATA},application/json"

WATCH_LIST = {
    "allowWatchBookmarks": "true",
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
    "timeoutSeconds": "300",
}


class Informer(NamedTuple):
    """A list that is watched: its path, and its selectors."""

    path: str
    query: dict[str, str] = {}


class Component(NamedTuple):
    """A component: its user, its groups and the collections that it watches."""

    user: str
    groups: str
    informers: tuple[Informer, ...]


def _all(group: str, *plurals: str) -> tuple[Informer, ...]:
    root = f"/apis/{group}" if "/" in group else f"/api/{group}"
    return tuple(Informer(f"{root}/{plural}") for plural in plurals)


KUBELET = Component(
    f"system:node:{NODE}",
    "system:nodes",
    (
        Informer("/api/v1/nodes", {"fieldSelector": f"metadata.name={NODE}"}),
        Informer("/apis/storage.k8s.io/v1/csidrivers"),
        Informer("/api/v1/services", {"fieldSelector": "spec.clusterIP!=None"}),
        Informer("/apis/node.k8s.io/v1/runtimeclasses"),
        Informer("/api/v1/pods", {"fieldSelector": f"spec.nodeName={NODE}"}),
        Informer(f"/api/v1/{IN}/configmaps", {"fieldSelector": "metadata.name=x"}),
        Informer(f"/api/v1/{IN}/secrets", {"fieldSelector": "metadata.name=x"}),
    ),
)
KUBE_PROXY = Component(
    "system:kube-proxy",
    "",
    (
        Informer("/api/v1/nodes", {"fieldSelector": f"metadata.name={NODE}"}),
        Informer(
            "/api/v1/services",
            {"fieldSelector": "spec.clusterIP!=None", "labelSelector": "!service.kubernetes.io/service-proxy-name"},
        ),
        Informer("/apis/discovery.k8s.io/v1/endpointslices", {"labelSelector": "!service.kubernetes.io/headless"}),
        Informer("/apis/networking.k8s.io/v1/servicecidrs"),
    ),
)
SCHEDULER = Component(
    "system:kube-scheduler",
    "",
    (
        Informer("/api/v1/pods", {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}),
        *_all("v1", "nodes", "namespaces", "services", "replicationcontrollers"),
        *_all("v1", "persistentvolumes", "persistentvolumeclaims"),
        *_all("apps/v1", "replicasets", "statefulsets"),
        *_all("policy/v1", "poddisruptionbudgets"),
        *_all("storage.k8s.io/v1", "storageclasses", "csinodes", "csidrivers", "csistoragecapacities"),
        *_all("storage.k8s.io/v1", "volumeattachments"),
        *_all("resource.k8s.io/v1", "resourceclaims", "resourceslices", "deviceclasses"),
    ),
)
CONTROLLER_MANAGER = Component(
    "system:kube-controller-manager",
    "",
    (
        *_all("v1", "limitranges", "persistentvolumes", "podtemplates", "services", "replicationcontrollers"),
        *_all("v1", "nodes", "secrets", "persistentvolumeclaims", "endpoints", "serviceaccounts", "configmaps"),
        *_all("v1", "resourcequotas", "pods", "namespaces"),
        *_all("apps/v1", "controllerrevisions", "daemonsets", "deployments", "replicasets", "statefulsets"),
        *_all("batch/v1", "jobs", "cronjobs"),
        *_all("certificates.k8s.io/v1", "certificatesigningrequests"),
        *_all("coordination.k8s.io/v1", "leases"),
        *_all("discovery.k8s.io/v1", "endpointslices"),
        *_all("networking.k8s.io/v1", "ipaddresses", "servicecidrs", "networkpolicies", "ingresses"),
        *_all("networking.k8s.io/v1", "ingressclasses"),
        *_all("policy/v1", "poddisruptionbudgets"),
        *_all("rbac.authorization.k8s.io/v1", "roles", "rolebindings", "clusterroles", "clusterrolebindings"),
        *_all("scheduling.k8s.io/v1", "priorityclasses"),
        *_all("node.k8s.io/v1", "runtimeclasses"),
        *_all("storage.k8s.io/v1", "storageclasses", "csinodes", "csidrivers", "csistoragecapacities"),
        *_all("storage.k8s.io/v1", "volumeattachments", "volumeattributesclasses"),
        *_all("resource.k8s.io/v1", "resourceclaims", "resourceclaimtemplates", "resourceslices", "deviceclasses"),
        *_all("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"),
        *_all("admissionregistration.k8s.io/v1", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings"),
        *_all("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", "validatingadmissionpolicybindings"),
        *_all("apiextensions.k8s.io/v1", "customresourcedefinitions"),
        *_all("apiregistration.k8s.io/v1", "apiservices"),
        *_all("flowcontrol.apiserver.k8s.io/v1", "flowschemas", "prioritylevelconfigurations"),
        *_all("autoscaling/v2", "horizontalpodautoscalers"),
    ),
)
COMPONENTS = {
    "kubelet": KUBELET,
    "kube-proxy": KUBE_PROXY,
    "kube-scheduler": SCHEDULER,
    "kube-controller-manager": CONTROLLER_MANAGER,
}

# --- a cluster in which each finds something --------------------------------------------------------------------------

LABELS = {"app": "x"}
POD = {"containers": [{"name": "c", "image": "i"}]}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": POD}
WORKLOAD = {"replicas": 0, "selector": {"matchLabels": LABELS}, "template": TEMPLATE}
JOB = {"template": {"spec": {**POD, "restartPolicy": "Never"}}, "suspend": True}
MOUNTS = [{"name": "a", "configMap": {"name": "x"}}, {"name": "b", "secret": {"secretName": "x"}}]
ROLE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
CORE, APPS, STORAGE = f"/api/v1/{IN}", f"/apis/apps/v1/{IN}", "/apis/storage.k8s.io/v1"
NETWORKING = "/apis/networking.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
RULE = {"operations": ["CREATE"], "apiGroups": ["example.org"], "apiVersions": ["v1"], "resources": ["others"]}
ADMISSION, FLOWCONTROL = "/apis/admissionregistration.k8s.io/v1", "/apis/flowcontrol.apiserver.k8s.io/v1"
SIZE = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}

WORLD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/api/v1/namespaces", {"metadata": {"name": "red"}}),
    (f"{CORE}/configmaps", {}),
    (f"{CORE}/secrets", {}),
    (f"{CORE}/limitranges", {"spec": {"limits": []}}),
    (f"{CORE}/resourcequotas", {"spec": {"hard": {"pods": "100"}}}),
    (f"{CORE}/podtemplates", {"template": TEMPLATE}),
    (f"{CORE}/services", {"spec": {"selector": LABELS, "ports": [{"port": 80}]}}),
    (f"{CORE}/replicationcontrollers", {"spec": {"replicas": 0, "selector": LABELS, "template": TEMPLATE}}),
    (f"{CORE}/persistentvolumeclaims", {"spec": SIZE}),
    ("/api/v1/persistentvolumes",
     {"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}}),
    (f"{CORE}/pods", {"spec": {**POD, "volumes": MOUNTS, "nodeName": NODE}}),
    (f"{CORE}/pods", {"metadata": {"name": "free"}, "spec": {**POD, "schedulerName": "real"}}),
    (f"{APPS}/deployments", {"spec": WORKLOAD}),
    (f"{APPS}/statefulsets", {"spec": WORKLOAD | {"serviceName": "x"}}),
    (f"{APPS}/daemonsets",
     {"spec": {"selector": {"matchLabels": LABELS},
               "template": TEMPLATE | {"spec": POD | {"nodeSelector": {"none": "such"}}}}}),
    (f"{APPS}/controllerrevisions", {"data": {}, "revision": 1}),
    (f"/apis/batch/v1/{IN}/jobs", {"spec": JOB}),
    (f"/apis/batch/v1/{IN}/cronjobs", {"spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": JOB}}}),
    (f"/apis/policy/v1/{IN}/poddisruptionbudgets",
     {"spec": {"maxUnavailable": 1, "selector": {"matchLabels": LABELS}}}),
    (f"/apis/coordination.k8s.io/v1/{IN}/leases", {"spec": {}}),
    (f"/apis/discovery.k8s.io/v1/{IN}/endpointslices", {"addressType": "IPv4", "endpoints": []}),
    (f"/apis/autoscaling/v2/{IN}/horizontalpodautoscalers",
     {"spec": {"maxReplicas": 2, "scaleTargetRef": {"kind": "Deployment", "name": "x", "apiVersion": "apps/v1"}}}),
    (f"{RBAC}/{IN}/roles", {"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]}),
    (f"{RBAC}/{IN}/rolebindings", {"roleRef": ROLE}),
    ("/apis/node.k8s.io/v1/runtimeclasses", {"handler": "crun"}),
    (f"{STORAGE}/storageclasses", {"provisioner": "example.org/x"}),
    (f"{STORAGE}/csidrivers", {"spec": {}}),
    (f"{STORAGE}/csinodes", {"metadata": {"name": "other"}, "spec": {"drivers": []}}),
    (f"{NETWORKING}/{IN}/networkpolicies", {"spec": {"podSelector": {}}}),
    (f"{NETWORKING}/{IN}/ingresses", {"spec": {"defaultBackend": {"service": {"name": "x", "port": {"number": 80}}}}}),
    (f"{NETWORKING}/ingressclasses", {"spec": {"controller": "example.org/x"}}),
    (f"{ADMISSION}/mutatingwebhookconfigurations", {}),
    (f"{ADMISSION}/validatingwebhookconfigurations", {}),
    (f"{ADMISSION}/validatingadmissionpolicies",
     {"spec": {"matchConstraints": {"resourceRules": [RULE]}, "validations": [{"expression": "true"}]}}),
    (f"{ADMISSION}/validatingadmissionpolicybindings", {"spec": {"policyName": "x", "validationActions": ["Audit"]}}),
    (f"{ADMISSION}/mutatingadmissionpolicies",
     {"spec": {"matchConstraints": {"resourceRules": [RULE]}, "reinvocationPolicy": "Never",
               "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": "[]"}}]}}),
    (f"{ADMISSION}/mutatingadmissionpolicybindings", {"spec": {"policyName": "x"}}),
    ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
     {"metadata": {"name": "things.example.org"},
      "spec": {"group": "example.org", "scope": "Cluster", "names": {"plural": "things", "kind": "Thing"},
               "versions": [{"name": "v1", "served": True, "storage": True,
                             "schema": {"openAPIV3Schema": {"type": "object"}}}]}}),
    (f"{FLOWCONTROL}/flowschemas", {"spec": {"priorityLevelConfiguration": {"name": "x"}}}),
    (f"{FLOWCONTROL}/prioritylevelconfigurations", {"spec": {"type": "Exempt"}}),
    ("/apis/certificates.k8s.io/v1/certificatesigningrequests",
     {"spec": {"signerName": "example.org/x", "usages": ["client auth"],
               "request": base64.b64encode(keys.create_request(keys.generate_key(), Subject("somebody"))).decode()}}),
)  # fmt: skip

NEVER_THERE = frozenset(
    (
        "csistoragecapacities",
        "deviceclasses",
        "resourceclaims",
        "resourceclaimtemplates",
        "resourceslices",
        "volumeattachments",
        "volumeattributesclasses",
    )
)
"""What can be watched, and of which there is none (docs/adr/0015-kinds-without-a-controller.md)."""
