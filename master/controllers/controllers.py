"""The list of controllers: what each watches, and the `sync_...` function of its module.

Such a function reads objects with the lister and passes them to a pure function of its module, mostly `reconcile`.
"""

from __future__ import annotations

from collections.abc import Iterator

from api.core.node import Namespace, Node
from api.network.types import ClusterNetwork, HostSubnet, NetNamespace
from master.admission import resource_quota
from master.controllers import api_services, bootstrap
from master.controllers.actions import Action
from master.controllers.admission_policies import sync_admission_policies
from master.controllers.api_services import sync_api_services
from master.controllers.autoscaling import horizontal
from master.controllers.autoscaling.horizontal import HorizontalPodAutoscalers, autoscalers_await_time
from master.controllers.certificates import sync_approvals, sync_signatures
from master.controllers.cluster_info import sync_cluster_info
from master.controllers.cluster_roles import sync_cluster_roles
from master.controllers.context import FREQUENTLY_WRITTEN_RESOURCES, Controller, ControllerContext, Lister, resources_of
from master.controllers.custom_resource_definitions import concerns_definitions, sync_definitions
from master.controllers.expiration import sync_expiration
from master.controllers.extension_authentication import sync_extension_authentication
from master.controllers.garbage_collector import COLLECTED_RESOURCES, concerns_garbage_collector, sync_owners
from master.controllers.local_volumes import sync_local_volumes
from master.controllers.namespace_security_allocation import sync_namespace_ranges
from master.controllers.namespaces import NAMESPACED_RESOURCES, sync_namespaces
from master.controllers.network import host_subnets, net_namespaces
from master.controllers.network.endpoint_slice_mirroring import sync_mirrored_endpoint_slices
from master.controllers.network.endpoints import ENDPOINT_KINDS, EndpointQueue
from master.controllers.network.ingress_ips import sync_ingress_ips
from master.controllers.network.ip_addresses import sync_ip_addresses
from master.controllers.network.kubernetes_service import sync_kubernetes_service
from master.controllers.nodes.lifecycle import NodeLifecycle
from master.controllers.nodes.taints import sync_pod_readiness, sync_taints
from master.controllers.nodes.versions import sync_versions
from master.controllers.oauth import sync_oauth_clients
from master.controllers.persistent_volumes import sync_claims
from master.controllers.pod_security_labels import OBSERVED_KINDS, PodSecurityLabels
from master.controllers.resource_quotas import sync_quotas
from master.controllers.scheduling.scheduler import sync_scheduler
from master.controllers.service_accounts import sync_default_objects, sync_token_secrets
from master.controllers.workloads.cron_jobs import cron_jobs_await_time, sync_cron_jobs
from master.controllers.workloads.daemon_sets import daemon_sets_await_time, sync_daemon_sets
from master.controllers.workloads.deployments import deployments_await_time, sync_deployments
from master.controllers.workloads.disruption_budgets import SCALABLE_RESOURCES, sync_disruption_budgets
from master.controllers.workloads.jobs import jobs_await_time, sync_jobs
from master.controllers.workloads.replica_sets import REPLICA_KINDS, replicas_await_time, sync_replicas
from master.controllers.workloads.stateful_sets import STATEFUL_SET_KINDS, stateful_sets_await_time, sync_stateful_sets
from master.registry import pod_security_labels

ROLLOUT_SECONDS = 5.0
"""Resync for what time alone changes: a pod that has been ready for minReadySeconds."""

JOB_SECONDS = 1.0
"""Resync for deadlines and retries of jobs, and for scheduled times of cron jobs."""

EXPIRY_SECONDS = 60.0
"""Resync for the deletion of expired objects."""


def sync_network(lister: Lister) -> Iterator[Action]:
    """Create and update the objects of every cluster, the HostSubnets of Nodes and the NetNamespaces of projects."""
    config, nodes, namespaces = lister.context.network, lister.list(Node), lister.list(Namespace)
    yield from bootstrap.bootstrap_objects(config, namespaces, lister.get(ClusterNetwork, "default"))
    yield from host_subnets.reconcile(config, nodes, lister.list(HostSubnet), lister.cursor("subnets"))
    yield from net_namespaces.reconcile(config, namespaces, lister.list(NetNamespace), lister.cursor("vnids"))


KUBERNETES_SERVICE = "kubernetes-service-controller"
OAUTH_CLIENTS = "oauth-clients-controller"
CLUSTER_INFO = "cluster-info-controller"
NAMESPACES = "namespace-controller"

STATELESS_CONTROLLERS = (
    Controller(
        "network-controller",
        resources_of("Namespace", "Node", "HostSubnet", "NetNamespace", "ClusterNetwork"),
        sync_network,
        required_for_startup=True,
    ),
    Controller(
        "service-cidr-controller",
        resources_of("ServiceCIDR"),
        bootstrap.sync_service_cidr,
    ),
    Controller(
        "priority-class-controller",
        resources_of("PriorityClass"),
        bootstrap.sync_priority_classes,
        required_for_startup=True,
    ),
    Controller(
        "security-context-constraints-controller",
        resources_of("SecurityContextConstraints"),
        bootstrap.sync_sccs,
        required_for_startup=True,
    ),
    Controller(
        "storage-class-controller",
        resources_of("StorageClass"),
        bootstrap.sync_storage_class,
        required_for_startup=True,
    ),
    Controller(
        CLUSTER_INFO,
        resources_of("ConfigMap", "Role", "RoleBinding", "Namespace"),
        sync_cluster_info,
        required_for_startup=True,
    ),
    Controller(
        "extension-apiserver-authentication-controller",
        resources_of("ConfigMap", "Role", "RoleBinding"),
        sync_extension_authentication,
        required_for_startup=True,
    ),
    Controller(OAUTH_CLIENTS, resources_of("OAuthClient"), sync_oauth_clients),
    Controller(
        "namespace-security-allocation-controller",
        resources_of("Namespace"),
        sync_namespace_ranges,
        required_for_startup=True,
    ),
    Controller(
        KUBERNETES_SERVICE,
        resources_of("Service", "Endpoints", "EndpointSlice", "ClusterNetwork"),
        sync_kubernetes_service,
        required_for_startup=True,
    ),
    Controller(
        "validatingadmissionpolicy-status-controller",
        resources_of("ValidatingAdmissionPolicy"),
        sync_admission_policies,
    ),
    Controller("serviceaccount-token-controller", resources_of("Secret", "ServiceAccount"), sync_token_secrets),
    Controller(
        "serviceaccount-controller",
        resources_of("Namespace", "ServiceAccount", "ConfigMap"),
        sync_default_objects,
    ),
    Controller(
        "clusterrole-aggregation-controller",
        resources_of("ClusterRole", "ClusterRoleBinding"),
        sync_cluster_roles,
        required_for_startup=True,
    ),
    Controller(
        "certificatesigningrequest-approving-controller",
        resources_of("CertificateSigningRequest", "Node"),
        sync_approvals,
    ),
    Controller(
        "certificatesigningrequest-signing-controller", resources_of("CertificateSigningRequest"), sync_signatures
    ),
    Controller(
        "scheduler",
        resources_of("Pod", "Node", "PersistentVolumeClaim", "PersistentVolume", "StorageClass", "LocalVolume"),
        sync_scheduler,
    ),
    Controller(
        "deployment-controller",
        resources_of("Deployment", "ReplicaSet", "Pod"),
        sync_deployments,
        ROLLOUT_SECONDS,
        awaits_time=deployments_await_time,
    ),
    Controller(
        "replicaset-controller",
        resources_of(*REPLICA_KINDS, "Pod"),
        sync_replicas,
        ROLLOUT_SECONDS,
        awaits_time=replicas_await_time,
    ),
    Controller(
        "disruption-controller",
        (*resources_of("PodDisruptionBudget", "Pod"), *SCALABLE_RESOURCES),
        sync_disruption_budgets,
    ),
    Controller(
        "daemonset-controller",
        resources_of("DaemonSet", "ControllerRevision", "Node", "Pod"),
        sync_daemon_sets,
        ROLLOUT_SECONDS,
        awaits_time=daemon_sets_await_time,
    ),
    Controller(
        "statefulset-controller",
        resources_of(*STATEFUL_SET_KINDS),
        sync_stateful_sets,
        ROLLOUT_SECONDS,
        awaits_time=stateful_sets_await_time,
    ),
    Controller(
        "cronjob-controller",
        resources_of("CronJob", "Job"),
        sync_cron_jobs,
        JOB_SECONDS,
        awaits_time=cron_jobs_await_time,
    ),
    Controller("job-controller", resources_of("Job", "Pod"), sync_jobs, JOB_SECONDS, awaits_time=jobs_await_time),
    Controller(
        "resourcequota-controller",
        tuple(
            resource.group_resource
            for resource in resource_quota.COUNTED_KINDS
            if resource.group_resource not in FREQUENTLY_WRITTEN_RESOURCES
        ),
        sync_quotas,
        watches_custom_kinds=True,
    ),
    Controller(
        "service-ingress-ip-controller",
        resources_of("Service"),
        sync_ingress_ips,
    ),
    Controller("ip-address-controller", resources_of("Service", "IPAddress"), sync_ip_addresses),
    Controller(
        "endpointslice-mirroring-controller",
        resources_of("Service", "Endpoints", "EndpointSlice"),
        sync_mirrored_endpoint_slices,
    ),
    Controller(
        "persistentvolume-binder-controller",
        resources_of("PersistentVolume", "PersistentVolumeClaim", "StorageClass", "LocalVolume", "Pod"),
        sync_claims,
    ),
    Controller(
        "local-volume-provisioner",
        resources_of("LocalVolume", "PersistentVolume", "PersistentVolumeClaim", "StorageClass"),
        sync_local_volumes,
    ),
    Controller(
        "garbage-collector-controller",
        COLLECTED_RESOURCES,
        sync_owners,
        event_filter=concerns_garbage_collector,
        watches_custom_kinds=True,
    ),
    Controller(
        "customresourcedefinition-controller",
        resources_of("CustomResourceDefinition"),
        sync_definitions,
        event_filter=concerns_definitions,
        watches_custom_kinds=True,
    ),
    Controller(
        api_services.CONTROLLER_NAME,
        resources_of("APIService", "CustomResourceDefinition"),
        sync_api_services,
    ),
    Controller(
        NAMESPACES,
        (*resources_of("Namespace"), *(r for r in NAMESPACED_RESOURCES if r not in FREQUENTLY_WRITTEN_RESOURCES)),
        sync_namespaces,
        watches_custom_kinds=True,
    ),
    Controller("node-taint-controller", resources_of("Node"), sync_taints),
    Controller("node-version-controller", resources_of("Node"), sync_versions),
    Controller("node-pod-readiness-controller", resources_of("Node"), sync_pod_readiness),
    Controller("expiration-controller", (), sync_expiration, EXPIRY_SECONDS),
)


def controllers(context: ControllerContext) -> tuple[Controller, ...]:
    """Return all controllers. Those that keep state between passes begin without any."""
    node_lifecycle, endpoint_queue = NodeLifecycle(context.node_grace_seconds), EndpointQueue()
    security_labels = PodSecurityLabels(uses_sccs=context.uses_sccs)
    autoscalers = HorizontalPodAutoscalers(context.autoscaling)
    return (
        *STATELESS_CONTROLLERS,
        Controller(
            "endpointslice-controller",
            resources_of(*ENDPOINT_KINDS),
            endpoint_queue.reconcile,
            observe=endpoint_queue.observe,
        ),
        Controller(
            pod_security_labels.CONTROLLER_NAME,
            resources_of(*OBSERVED_KINDS),
            security_labels.reconcile,
            observe=security_labels.observe,
            event_filter=lambda event: security_labels.has_pending(),
            has_pending=security_labels.has_pending,
        ),
        Controller("node-lifecycle-controller", resources_of("Node"), node_lifecycle.reconcile, node_lifecycle.resync),
        Controller(
            horizontal.CONTROLLER_NAME,
            resources_of("HorizontalPodAutoscaler"),
            autoscalers.reconcile,
            horizontal.CHECK_SECONDS,
            awaits_time=autoscalers_await_time,
            event_filter=lambda event: event.type == "ADDED",
            has_pending=autoscalers.has_pending,
            prepare=autoscalers.prepare,
        ),
    )
