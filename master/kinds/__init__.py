"""The kinds that the server keeps, one file for each. Pure."""

from __future__ import annotations

from master.kinds.certificate_signing_request import CERTIFICATE_SIGNING_REQUEST
from master.kinds.cluster_network import CLUSTER_NETWORK
from master.kinds.config_map import CONFIG_MAP
from master.kinds.controller_revision import CONTROLLER_REVISION
from master.kinds.cron_job import CRON_JOB
from master.kinds.cron_job_v1beta1 import CRON_JOB_V1BETA1
from master.kinds.csi import CSI_DRIVER, CSI_NODE, CSI_STORAGE_CAPACITY
from master.kinds.daemon_set import DAEMON_SET
from master.kinds.deployment import DEPLOYMENT
from master.kinds.egress_network_policy import EGRESS_NETWORK_POLICY
from master.kinds.endpoint_slice import ENDPOINT_SLICE
from master.kinds.endpoint_slice_v1beta1 import ENDPOINT_SLICE_V1BETA1
from master.kinds.endpoints import ENDPOINTS
from master.kinds.event import EVENT
from master.kinds.event_v1 import EVENT_V1
from master.kinds.horizontal_pod_autoscaler import HORIZONTAL_POD_AUTOSCALER
from master.kinds.horizontal_pod_autoscaler_v1 import HORIZONTAL_POD_AUTOSCALER_V1
from master.kinds.host_subnet import HOST_SUBNET
from master.kinds.ingress import INGRESS, INGRESS_CLASS
from master.kinds.job import JOB
from master.kinds.kind import AnyKind
from master.kinds.lease import LEASE
from master.kinds.limit_range import LIMIT_RANGE
from master.kinds.namespace import NAMESPACE
from master.kinds.net_namespace import NET_NAMESPACE
from master.kinds.network_policy import NETWORK_POLICY
from master.kinds.node import NODE
from master.kinds.node_query import NODE_QUERY
from master.kinds.persistent_volume import PERSISTENT_VOLUME
from master.kinds.persistent_volume_claim import PERSISTENT_VOLUME_CLAIM
from master.kinds.pod import POD
from master.kinds.pod_address import POD_ADDRESS
from master.kinds.pod_disruption_budget import POD_DISRUPTION_BUDGET
from master.kinds.pod_disruption_budget_v1beta1 import POD_DISRUPTION_BUDGET_V1BETA1
from master.kinds.pod_template import POD_TEMPLATE
from master.kinds.priority_class import PRIORITY_CLASS
from master.kinds.project import PROJECT
from master.kinds.rbac import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING
from master.kinds.refused import REFUSED
from master.kinds.replica_set import REPLICA_SET
from master.kinds.replication_controller import REPLICATION_CONTROLLER
from master.kinds.resource_claim import DEVICE_CLASS, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE
from master.kinds.resource_metrics import NODE_METRICS, POD_METRICS
from master.kinds.resource_quota import RESOURCE_QUOTA
from master.kinds.resource_slice import RESOURCE_SLICE
from master.kinds.runtime_class import RUNTIME_CLASS
from master.kinds.secret import SECRET
from master.kinds.service import SERVICE
from master.kinds.service_account import SERVICE_ACCOUNT
from master.kinds.service_cidr import SERVICE_CIDR
from master.kinds.stateful_set import STATEFUL_SET
from master.kinds.storage_class import STORAGE_CLASS, VOLUME_ATTRIBUTES_CLASS
from master.kinds.volume_attachment import VOLUME_ATTACHMENT

ALL: tuple[AnyKind, ...] = (
    NAMESPACE,
    NODE,
    POD,
    CLUSTER_NETWORK,
    HOST_SUBNET,
    NET_NAMESPACE,
    NODE_QUERY,
    POD_ADDRESS,
    PROJECT,
    EVENT,
    EVENT_V1,
    LEASE,
    CONFIG_MAP,
    SECRET,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    SERVICE_ACCOUNT,
    SERVICE,
    ENDPOINTS,
    ENDPOINT_SLICE,
    ENDPOINT_SLICE_V1BETA1,
    REPLICATION_CONTROLLER,
    REPLICA_SET,
    DEPLOYMENT,
    CONTROLLER_REVISION,
    DAEMON_SET,
    STATEFUL_SET,
    POD_DISRUPTION_BUDGET,
    POD_DISRUPTION_BUDGET_V1BETA1,
    JOB,
    CRON_JOB,
    CRON_JOB_V1BETA1,
    LIMIT_RANGE,
    RESOURCE_QUOTA,
    ROLE,
    CLUSTER_ROLE,
    ROLE_BINDING,
    CLUSTER_ROLE_BINDING,
    PRIORITY_CLASS,
    RUNTIME_CLASS,
    STORAGE_CLASS,
    VOLUME_ATTRIBUTES_CLASS,
    VOLUME_ATTACHMENT,
    CSI_DRIVER,
    CSI_NODE,
    CSI_STORAGE_CAPACITY,
    POD_TEMPLATE,
    NETWORK_POLICY,
    INGRESS,
    INGRESS_CLASS,
    SERVICE_CIDR,
    EGRESS_NETWORK_POLICY,
    HORIZONTAL_POD_AUTOSCALER,
    HORIZONTAL_POD_AUTOSCALER_V1,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_SLICE,
    DEVICE_CLASS,
    CERTIFICATE_SIGNING_REQUEST,
    *REFUSED,
)

STORED: tuple[AnyKind, ...] = tuple(kind for kind in ALL if kind.conversion is None)
"""Without those that are another form of one of these."""

MADE: tuple[AnyKind, ...] = (NODE_METRICS, POD_METRICS)
"""Never kept: made when somebody asks."""

SERVED = (*ALL, *MADE)
BY_RESOURCE = {(kind.group, kind.version, kind.plural): kind for kind in SERVED}
TYPES = tuple(kind.type for kind in STORED)
BY_NAME = {kind.name: kind for kind in STORED}
