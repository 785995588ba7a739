"""The migration of a log from format 1, which names objects by kind, to the table of format 2, by group and resource.
Driver.

`RESOURCES` is what format 1 could hold. It is part of that format, so it does not follow the resources of today.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from reconcile.errors import Refused

RESOURCES = {
    "APIService": ("apiregistration.k8s.io", "apiservices"),
    "CSIDriver": ("storage.k8s.io", "csidrivers"),
    "CSINode": ("storage.k8s.io", "csinodes"),
    "CSIStorageCapacity": ("storage.k8s.io", "csistoragecapacities"),
    "CertificateSigningRequest": ("certificates.k8s.io", "certificatesigningrequests"),
    "ClusterNetwork": ("network.openshift.io", "clusternetworks"),
    "ClusterRole": ("rbac.authorization.k8s.io", "clusterroles"),
    "ClusterRoleBinding": ("rbac.authorization.k8s.io", "clusterrolebindings"),
    "ConfigMap": ("", "configmaps"),
    "ControllerRevision": ("apps", "controllerrevisions"),
    "CronJob": ("batch", "cronjobs"),
    "Cursor": ("internal", "cursors"),
    "CustomResourceDefinition": ("apiextensions.k8s.io", "customresourcedefinitions"),
    "DaemonSet": ("apps", "daemonsets"),
    "Deployment": ("apps", "deployments"),
    "DeviceClass": ("resource.k8s.io", "deviceclasses"),
    "EgressNetworkPolicy": ("network.openshift.io", "egressnetworkpolicies"),
    "EndpointSlice": ("discovery.k8s.io", "endpointslices"),
    "Endpoints": ("", "endpoints"),
    "Event": ("", "events"),
    "FlowSchema": ("flowcontrol.apiserver.k8s.io", "flowschemas"),
    "HorizontalPodAutoscaler": ("autoscaling", "horizontalpodautoscalers"),
    "HostSubnet": ("network.openshift.io", "hostsubnets"),
    "IPAddress": ("networking.k8s.io", "ipaddresses"),
    "Ingress": ("networking.k8s.io", "ingresses"),
    "IngressClass": ("networking.k8s.io", "ingressclasses"),
    "Job": ("batch", "jobs"),
    "Lease": ("coordination.k8s.io", "leases"),
    "LimitRange": ("", "limitranges"),
    "MutatingAdmissionPolicy": ("admissionregistration.k8s.io", "mutatingadmissionpolicies"),
    "MutatingAdmissionPolicyBinding": ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings"),
    "MutatingWebhookConfiguration": ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    "Namespace": ("", "namespaces"),
    "NetNamespace": ("network.openshift.io", "netnamespaces"),
    "NetworkPolicy": ("networking.k8s.io", "networkpolicies"),
    "Node": ("", "nodes"),
    "NodeQuery": ("podlane.io", "nodequeries"),
    "PersistentVolume": ("", "persistentvolumes"),
    "PersistentVolumeClaim": ("", "persistentvolumeclaims"),
    "Pod": ("", "pods"),
    "PodDisruptionBudget": ("policy", "poddisruptionbudgets"),
    "PodTemplate": ("", "podtemplates"),
    "PriorityClass": ("scheduling.k8s.io", "priorityclasses"),
    "PriorityLevelConfiguration": ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"),
    "ReplicaSet": ("apps", "replicasets"),
    "ReplicationController": ("", "replicationcontrollers"),
    "ResourceClaim": ("resource.k8s.io", "resourceclaims"),
    "ResourceClaimTemplate": ("resource.k8s.io", "resourceclaimtemplates"),
    "ResourceQuota": ("", "resourcequotas"),
    "ResourceSlice": ("resource.k8s.io", "resourceslices"),
    "Role": ("rbac.authorization.k8s.io", "roles"),
    "RoleBinding": ("rbac.authorization.k8s.io", "rolebindings"),
    "RuntimeClass": ("node.k8s.io", "runtimeclasses"),
    "Secret": ("", "secrets"),
    "Service": ("", "services"),
    "ServiceAccount": ("", "serviceaccounts"),
    "ServiceCIDR": ("networking.k8s.io", "servicecidrs"),
    "StatefulSet": ("apps", "statefulsets"),
    "StorageClass": ("storage.k8s.io", "storageclasses"),
    "ValidatingAdmissionPolicy": ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    "ValidatingAdmissionPolicyBinding": ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
    "ValidatingWebhookConfiguration": ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    "VolumeAttachment": ("storage.k8s.io", "volumeattachments"),
    "VolumeAttributesClass": ("storage.k8s.io", "volumeattributesclasses"),
}
"""Kind → (API group, plural name)."""


def migrate(db: sqlite3.Connection, schema: Iterable[str]) -> int:
    """Replace the table of format 1 by the tables that `schema` creates. Return the number of revisions.

    It is part of the caller's transaction. Raises Refused for a kind that is not in RESOURCES.
    """
    kinds = {kind for (kind,) in db.execute("SELECT DISTINCT kind FROM log")}
    if unknown := sorted(kinds - RESOURCES.keys()):
        raise Refused(f"has format 1 with objects of unknown kinds: {', '.join(unknown)}; left unchanged")
    db.create_function("api_group_of", 1, lambda kind: RESOURCES[kind][0], deterministic=True)
    db.create_function("resource_of", 1, lambda kind: RESOURCES[kind][1], deterministic=True)
    db.execute("DROP INDEX IF EXISTS log_by_object")
    db.execute("ALTER TABLE log RENAME TO log_format_1")
    for statement in schema:
        db.execute(statement)
    copied = db.execute(
        "INSERT INTO log SELECT revision, api_group_of(kind), resource_of(kind), namespace, name, removed, data "
        "FROM log_format_1 ORDER BY revision"
    )
    db.execute("DROP TABLE log_format_1")
    return copied.rowcount
