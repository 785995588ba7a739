"""Declarations of the resources that the server knows, one file per family of kinds. Pure."""

from __future__ import annotations

from master.resources.admission_policies import (
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
)
from master.resources.api_services import API_SERVICES
from master.resources.autoscaling import HORIZONTAL_POD_AUTOSCALERS, HORIZONTAL_POD_AUTOSCALERS_V1
from master.resources.certificate_requests import CERTIFICATE_SIGNING_REQUESTS
from master.resources.cluster_network import CLUSTER_NETWORKS, HOST_SUBNETS, NET_NAMESPACES
from master.resources.configuration import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS
from master.resources.cron_jobs import CRON_JOBS, CRON_JOBS_V1BETA1
from master.resources.csi import CSI_DRIVERS, CSI_NODES
from master.resources.custom_resource_definitions import CUSTOM_RESOURCE_DEFINITIONS
from master.resources.daemon_sets import DAEMON_SETS
from master.resources.deployments import DEPLOYMENTS, REPLICA_SETS, REPLICATION_CONTROLLERS
from master.resources.disruption_budgets import POD_DISRUPTION_BUDGETS, POD_DISRUPTION_BUDGETS_V1BETA1
from master.resources.events import EVENTS, EVENTS_V1
from master.resources.flow_control import FLOW_SCHEMAS, PRIORITY_LEVEL_CONFIGURATIONS
from master.resources.ingresses import INGRESS_CLASSES, INGRESSES
from master.resources.jobs import JOBS
from master.resources.legacy_rbac import (
    LEGACY_CLUSTER_ROLE_BINDINGS,
    LEGACY_CLUSTER_ROLES,
    LEGACY_ROLE_BINDINGS,
    LEGACY_ROLES,
    ROLE_BINDING_RESTRICTIONS,
)
from master.resources.mutating_policies import MUTATING_ADMISSION_POLICIES, MUTATING_ADMISSION_POLICY_BINDINGS
from master.resources.namespaces import NAMESPACES, PROJECTS
from master.resources.network_policies import EGRESS_NETWORK_POLICIES, NETWORK_POLICIES
from master.resources.nodes import LEASES, NODE_QUERIES, NODES, RUNTIME_CLASSES
from master.resources.oauth import (
    OAUTH_ACCESS_TOKENS,
    OAUTH_AUTHORIZE_TOKENS,
    OAUTH_CLIENT_AUTHORIZATIONS,
    OAUTH_CLIENTS,
    USER_OAUTH_ACCESS_TOKENS,
)
from master.resources.pod_template import POD_TEMPLATES
from master.resources.pods import POD_ADDRESSES, PODS
from master.resources.priority_classes import PRIORITY_CLASSES
from master.resources.quotas import LIMIT_RANGES, RESOURCE_QUOTAS
from master.resources.rbac import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES
from master.resources.resource import AnyResource
from master.resources.security_context_constraints import (
    LEGACY_SECURITY_CONTEXT_CONSTRAINTS,
    SECURITY_CONTEXT_CONSTRAINTS,
)
from master.resources.services import (
    ENDPOINT_SLICES,
    ENDPOINT_SLICES_V1BETA1,
    ENDPOINTS,
    IP_ADDRESSES,
    SERVICE_CIDRS,
    SERVICES,
)
from master.resources.stateful_sets import CONTROLLER_REVISIONS, STATEFUL_SETS
from master.resources.unsupported import UNSUPPORTED
from master.resources.users import GROUPS, IDENTITIES, USERS
from master.resources.volumes import (
    LOCAL_VOLUMES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
)
from master.resources.webhook_configurations import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)

BUILTIN: tuple[AnyResource, ...] = (
    NAMESPACES,
    NODES,
    PODS,
    CLUSTER_NETWORKS,
    HOST_SUBNETS,
    NET_NAMESPACES,
    NODE_QUERIES,
    LOCAL_VOLUMES,
    POD_ADDRESSES,
    PROJECTS,
    EVENTS,
    EVENTS_V1,
    LEASES,
    CONFIG_MAPS,
    SECRETS,
    PERSISTENT_VOLUMES,
    PERSISTENT_VOLUME_CLAIMS,
    SERVICE_ACCOUNTS,
    SERVICES,
    ENDPOINTS,
    ENDPOINT_SLICES,
    ENDPOINT_SLICES_V1BETA1,
    REPLICATION_CONTROLLERS,
    REPLICA_SETS,
    DEPLOYMENTS,
    CONTROLLER_REVISIONS,
    DAEMON_SETS,
    STATEFUL_SETS,
    POD_DISRUPTION_BUDGETS,
    POD_DISRUPTION_BUDGETS_V1BETA1,
    JOBS,
    CRON_JOBS,
    CRON_JOBS_V1BETA1,
    LIMIT_RANGES,
    RESOURCE_QUOTAS,
    ROLES,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    CLUSTER_ROLE_BINDINGS,
    LEGACY_ROLES,
    LEGACY_CLUSTER_ROLES,
    LEGACY_ROLE_BINDINGS,
    LEGACY_CLUSTER_ROLE_BINDINGS,
    ROLE_BINDING_RESTRICTIONS,
    SECURITY_CONTEXT_CONSTRAINTS,
    LEGACY_SECURITY_CONTEXT_CONSTRAINTS,
    USERS,
    IDENTITIES,
    GROUPS,
    OAUTH_CLIENTS,
    OAUTH_ACCESS_TOKENS,
    USER_OAUTH_ACCESS_TOKENS,
    OAUTH_AUTHORIZE_TOKENS,
    OAUTH_CLIENT_AUTHORIZATIONS,
    PRIORITY_CLASSES,
    RUNTIME_CLASSES,
    STORAGE_CLASSES,
    CSI_DRIVERS,
    CSI_NODES,
    POD_TEMPLATES,
    NETWORK_POLICIES,
    INGRESSES,
    INGRESS_CLASSES,
    SERVICE_CIDRS,
    IP_ADDRESSES,
    FLOW_SCHEMAS,
    PRIORITY_LEVEL_CONFIGURATIONS,
    EGRESS_NETWORK_POLICIES,
    HORIZONTAL_POD_AUTOSCALERS,
    HORIZONTAL_POD_AUTOSCALERS_V1,
    CERTIFICATE_SIGNING_REQUESTS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    MUTATING_ADMISSION_POLICIES,
    MUTATING_ADMISSION_POLICY_BINDINGS,
    CUSTOM_RESOURCE_DEFINITIONS,
    API_SERVICES,
    *UNSUPPORTED,
)
