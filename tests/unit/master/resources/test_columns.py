"""Table columns equal those of kube-apiserver 1.36: names, order, types, formats and priority.

The columns were recorded from kube-apiserver. Those of kinds that it does not serve are the ones that kubectl prints.
A column that Kubernetes lacks is added by hand.
"""

from __future__ import annotations

import pytest

from master.resources import BUILTIN
from master.resources.resource import Column
from master.serialization import tables

KINDS = {f"{resource.plural}.{resource.group}".rstrip("."): resource for resource in BUILTIN}

TYPES = {"": "string", "#": "integer", "?": "boolean", "@": "date"}
"""A sign behind a name → the type of the cells; `*` says that the column is wide, `!` that it is the name."""

RECORDED = {
    "configmaps": "Name!|Data|Age",
    "cronjobs.batch": "Name!|Schedule|Timezone|Suspend?|Active#|Last Schedule|Age|Containers*|Images*|Selector*",
    "daemonsets.apps":
        "Name!|Desired#|Current#|Ready#|Up-to-date#|Available#|Node Selector|Age|Containers*|Images*|Selector*",
    "deployments.apps": "Name!|Ready|Up-to-date|Available|Age|Containers*|Images*|Selector*",
    "endpoints": "Name!|Endpoints|Age",
    "endpointslices.discovery.k8s.io": "Name!|AddressType|Ports|Endpoints|Age",
    "events": "Last Seen|Type|Reason|Object|Subobject*|Source*|Message|First Seen*|Count*|Name!*",
    "horizontalpodautoscalers.autoscaling": "Name!|Reference|Targets|MinPods|MaxPods|Replicas|Age",
    "ingresses.networking.k8s.io": "Name!|Class|Hosts|Address|Ports|Age",
    "jobs.batch": "Name!|Status|Completions|Duration|Age|Containers*|Images*|Selector*",
    "leases.coordination.k8s.io": "Name!|Holder|Age",
    "limitranges": "Name!|Created At@",
    "namespaces": "Name!|Status|Age",
    "networkpolicies.networking.k8s.io": "Name!|Pod-Selector|Age",
    "nodes":
        "Name!|Status|Roles|Age|Version|Internal-IP*|External-IP*|OS-Image*|Kernel-Version*|Container-Runtime*",
    "persistentvolumeclaims":
        "Name!|Status|Volume|Capacity|Access Modes|StorageClass|VolumeAttributesClass|Age|VolumeMode*",
    "persistentvolumes":
        "Name!|Capacity|Access Modes|Reclaim Policy|Status|Claim|StorageClass|VolumeAttributesClass|Reason|Age|"
        "VolumeMode*",
    "poddisruptionbudgets.policy": "Name!|Min Available|Max Unavailable|Allowed Disruptions#|Age",
    "pods": "Name!|Ready|Status|Restarts|Age|IP*|Node*|Nominated Node*|Readiness Gates*",
    "replicasets.apps": "Name!|Desired#|Current#|Ready#|Age|Containers*|Images*|Selector*",
    "replicationcontrollers": "Name!|Desired#|Current#|Ready#|Age|Containers*|Images*|Selector*",
    "resourcequotas": "Name!|Request|Limit|Age",
    "roles.rbac.authorization.k8s.io": "Name!|Created At@",
    "secrets": "Name!|Type|Data|Age",
    "serviceaccounts": "Name!|Age",
    "services": "Name!|Type|Cluster-IP|External-IP|Port(s)|Age|Selector*",
    "statefulsets.apps": "Name!|Ready|Age|Containers*|Images*",
    "storageclasses.storage.k8s.io":
        "Name!|Provisioner|ReclaimPolicy|VolumeBindingMode|AllowVolumeExpansion|Age",
}  # fmt: skip
SHOWN = {
    "certificatesigningrequests.certificates.k8s.io": "Name!|Age|SignerName|Requestor|RequestedDuration|Condition",
    "clusterroles.rbac.authorization.k8s.io": "Name!|Created At@",
    "clusterrolebindings.rbac.authorization.k8s.io": "Name!|Role|Age|Users*|Groups*|ServiceAccounts*",
    "rolebindings.rbac.authorization.k8s.io": "Name!|Role|Age|Users*|Groups*|ServiceAccounts*",
    "controllerrevisions.apps": "Name!|Controller|Revision|Age",
    "csidrivers.storage.k8s.io":
        "Name!|AttachRequired?|PodInfoOnMount?|StorageCapacity?|TokenRequests|RequiresRepublish?|Modes|Age",
    "csinodes.storage.k8s.io": "Name!|Drivers#|Age",
    "events.events.k8s.io": "Last Seen|Type|Reason|Object|Subobject*|Source*|Message|First Seen*|Count*|Name!*",
    "flowschemas.flowcontrol.apiserver.k8s.io":
        "Name!|PriorityLevel|MatchingPrecedence|DistinguisherMethod|Age|MissingPL",
    "ingressclasses.networking.k8s.io": "Name!|Controller|Parameters|Age",
    "ipaddresses.networking.k8s.io": "Name!|ParentRef|Age",
    "podtemplates": "Name!|Containers|Images|Pod Labels",
    "priorityclasses.scheduling.k8s.io": "Name!|Value#|Global-Default?|Age|PreemptionPolicy",
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io":
        "Name!|Type|NominalConcurrencyShares|Queues|HandSize|QueueLengthLimit|Age",
    "runtimeclasses.node.k8s.io": "Name!|Handler|Age",
    "servicecidrs.networking.k8s.io": "Name!|CIDRs|Age",
}  # fmt: skip


def written(column: Column) -> str:
    sign = next(sign for sign, name in TYPES.items() if name == column.type)
    return f"{column.name}{sign}{'!' if column.format == 'name' else ''}{'*' if column.wide else ''}"


@pytest.mark.parametrize(("name", "columns"), [*RECORDED.items(), *SHOWN.items()])
def test_table_columns_equal_the_reference(name: str, columns: str) -> None:
    assert "|".join(written(column) for column in KINDS[name].columns) == columns


@pytest.mark.parametrize("name", KINDS)
def test_column_definition_is_complete(name: str) -> None:
    resource = KINDS[name]
    for column, definition in zip(resource.columns, tables.columns(resource), strict=True):
        assert definition == {
            "name": column.name,
            "type": column.type,
            "format": "name" if column.format else "",
            "description": column.description,
            "priority": 1 if column.wide else 0,
        }
        assert column.description.endswith(".")
