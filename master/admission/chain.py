"""The admission chain: the plugins in order. Pure.

Creates and updates of clients and creates of controllers pass all stages. Updates of a subresource such as `status`
pass `mutate` and `validate`. Deletes of clients, exec and attach pass `validate` only. The subresources scale, binding
and eviction, and updates and deletes of controllers do not pass the chain.
"""

from __future__ import annotations

from typing import Any

from master.admission.certificate_requests import CertificateRequests
from master.admission.cluster_network import ClusterNetworkUniqueness
from master.admission.defaults import DefaultIngressClass, DefaultStorageClass, DefaultTolerationSeconds, Priority
from master.admission.limit_ranger import LimitRanger
from master.admission.namespace_lifecycle import NamespaceLifecycle
from master.admission.node_restriction import NodeRestriction
from master.admission.plugin import AdmissionPlugin, AdmissionRequest
from master.admission.pod_node_constraints import PodNodeConstraints
from master.admission.pod_security.plugin import PodSecurity
from master.admission.rbac_escalation import RBACEscalation
from master.admission.resource_quota import ResourceQuotaPlugin
from master.admission.role_binding_restrictions import RoleBindingRestrictions
from master.admission.scc.plugin import NamespaceSecurityAllocation, SecurityContextConstraint
from master.admission.service_account import ServiceAccountPlugin
from master.admission.service_ips import ServiceIPs
from master.auth.attributes import Authorize
from master.config import ServiceConfig
from master.storage.interface import Transaction


def admission_plugins(services: ServiceConfig, authorize: Authorize | None) -> tuple[AdmissionPlugin, ...]:
    """Return all plugins in the order in which each stage runs them.

    `authorize` decides who may use an SCC and a system priority class; None turns both off.

    NamespaceLifecycle is first, so that nothing else is checked for a namespace that does not exist. LimitRanger is
    before DefaultTolerationSeconds, because default requests change the QoS class. SecurityContextConstraint is after
    those that add volumes and before those that count. ResourceQuota is before ServiceIPs,
    so that a service beyond the quota gets no address. Among plugins that only validate, the order decides which
    rejection is reported.
    """
    return (
        NamespaceLifecycle(),
        ServiceAccountPlugin(),
        Priority(authorize),
        LimitRanger(),
        DefaultTolerationSeconds(),
        DefaultIngressClass(),
        DefaultStorageClass(),
        *((SecurityContextConstraint(authorize),) if authorize is not None else ()),
        CertificateRequests(),
        PodSecurity(),
        PodNodeConstraints(),
        NodeRestriction(),
        RBACEscalation(),
        RoleBindingRestrictions(),
        ClusterNetworkUniqueness(),
        ResourceQuotaPlugin(),
        ServiceIPs(services),
        NamespaceSecurityAllocation(),
    )


class AdmissionChain:
    """Runs the stages of admission. Every stage raises `errors.StatusError` if a plugin rejects the write."""

    def __init__(self, plugins: tuple[AdmissionPlugin, ...]) -> None:
        self._plugins = plugins

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        """Return the object as completed by the plugins."""
        for plugin in self._plugins:
            obj = plugin.mutate(request, obj, objects)
        return obj

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        """Call `validate` of every plugin."""
        for plugin in self._plugins:
            plugin.validate(request, obj, objects)

    def reserve(self, request: AdmissionRequest, obj: Any, transaction: Transaction) -> Any:
        """Return the object with what the plugins reserved for it."""
        for plugin in self._plugins:
            obj = plugin.reserve(request, obj, transaction)
        return obj
