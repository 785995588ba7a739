"""The admission chain: the plugins in order. Pure.

Creates and updates of clients and creates of controllers pass all stages. Updates of a subresource such as `status`
pass `mutate` and `validate`. Deletes of clients, exec, attach and port-forward pass `validate` only. The subresources
scale, binding, eviction and token pass `validate` of the plugins that see actions, which are webhooks. Updates and
deletes of controllers do not pass the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from master.admission.cel_calls import Decide
from master.admission.certificate_requests import CertificateRequests
from master.admission.cluster_network import ClusterNetworkUniqueness
from master.admission.custom_resource_rules import CustomResourceRules
from master.admission.defaults import DefaultIngressClass, DefaultStorageClass, DefaultTolerationSeconds, Priority
from master.admission.limit_ranger import LimitRanger
from master.admission.mutating_policies import MutatingAdmissionPolicyPlugin
from master.admission.namespace_lifecycle import NamespaceLifecycle
from master.admission.node_restriction import NodeRestriction
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.admission.pod_node_constraints import PodNodeConstraints
from master.admission.pod_security.plugin import PodSecurity
from master.admission.rbac_escalation import RBACEscalation
from master.admission.resource_quota import ResourceQuotaPlugin
from master.admission.role_binding_restrictions import RoleBindingRestrictions
from master.admission.runtime_class import RuntimeClassPlugin
from master.admission.scc.plugin import NamespaceSecurityAllocation, SecurityContextConstraint
from master.admission.service_account import ServiceAccountPlugin
from master.admission.service_ips import ServiceIPs
from master.admission.validating_policies import ValidatingAdmissionPolicyPlugin
from master.admission.webhooks.plugins import MutatingAdmissionWebhook, ValidatingAdmissionWebhook
from master.auth.attributes import Authorize
from master.config import ServiceConfig
from master.errors import StatusError
from master.storage.interface import Transaction
from reconcile.exposition import Histogram, MetricFamily, format_labels, histogram


def admission_plugins(
    services: ServiceConfig, authorize: Authorize | None, decide: Decide | None = None
) -> tuple[AdmissionPlugin, ...]:
    """Return all plugins in the order in which each stage runs them.

    `authorize` decides who may use an SCC and a system priority class; None turns both off. `decide`
    answers what the expressions of policies ask the authorizer.

    NamespaceLifecycle is first, so that nothing else is checked for a namespace that does not exist. LimitRanger is
    before DefaultTolerationSeconds, because default requests change the QoS class. SecurityContextConstraint is after
    those that add volumes and before those that count. ResourceQuota is before ServiceIPs, so that a service beyond the
    quota gets no address. Mutating policies are applied and webhooks called after all others. Among plugins that only
    validate, the order decides which rejection is reported.
    """
    policies = MutatingAdmissionPolicyPlugin(decide)
    plugins: tuple[AdmissionPlugin, ...] = (
        NamespaceLifecycle(),
        ServiceAccountPlugin(),
        Priority(authorize),
        RuntimeClassPlugin(),
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
        CustomResourceRules(),
        policies,
        ValidatingAdmissionPolicyPlugin(decide),
    )
    mutating = tuple(plugin for plugin in plugins if _overrides(plugin, "mutate"))
    return (*plugins, MutatingAdmissionWebhook(mutating, decide, policies), ValidatingAdmissionWebhook(decide))


DURATION_BUCKETS = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5)

ADMIT, VALIDATE, RESERVE = "admit", "validate", "reserve"
"""The stages, as values of the label `type` of the metric. The first two are those of Kubernetes."""


class AdmissionChain:
    """Runs the stages of admission. Every stage raises `errors.StatusError` if a plugin rejects the write.

    `timer` returns seconds, for the metrics: those of each plugin that acts in a stage.
    """

    def __init__(self, plugins: tuple[AdmissionPlugin, ...], timer: Callable[[], float] = lambda: 0.0) -> None:
        self._mutating = tuple(plugin for plugin in plugins if _overrides(plugin, "mutate"))
        self._validating = tuple(plugin for plugin in plugins if _overrides(plugin, "validate"))
        self._reserving = tuple(plugin for plugin in plugins if _overrides(plugin, "reserve"))
        self._timer = timer
        self._seconds: dict[tuple[type[AdmissionPlugin], str, Operation, bool], Histogram] = {}

    def metrics(self) -> Iterator[MetricFamily]:
        """Yield the durations of plugins under kube-apiserver's name, with whether they rejected the write."""
        yield histogram(
            "apiserver_admission_controller_admission_duration_seconds",
            "Seconds that an admission plugin took in a stage.",
            {
                format_labels(
                    name=plugin.__name__.removesuffix("Plugin"),
                    type=stage,
                    operation=str(operation),
                    rejected=str(is_rejected).lower(),
                ): seconds
                for (plugin, stage, operation, is_rejected), seconds in self._seconds.items()
            },
        )

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        """Return the object as completed by the plugins."""
        start = self._timer()
        for plugin in self._mutating:
            try:
                obj = plugin.mutate(request, obj, objects)
            except StatusError:
                self._observe(plugin, ADMIT, request, start, is_rejected=True)
                raise
            start = self._observe(plugin, ADMIT, request, start)
        return obj

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        """Call `validate` of every plugin."""
        start = self._timer()
        for plugin in self._validating:
            try:
                plugin.validate(request, obj, objects)
            except StatusError:
                self._observe(plugin, VALIDATE, request, start, is_rejected=True)
                raise
            start = self._observe(plugin, VALIDATE, request, start)

    def validate_action(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        """Call `validate` of the plugins that see actions: scale, binding, eviction and token of an object."""
        for plugin in self._validating:
            if plugin.sees_actions:
                plugin.validate(request, obj, objects)

    def reserve(self, request: AdmissionRequest, obj: Any, transaction: Transaction) -> Any:
        """Return the object with what the plugins reserved for it."""
        start = self._timer()
        for plugin in self._reserving:
            try:
                obj = plugin.reserve(request, obj, transaction)
            except StatusError:
                self._observe(plugin, RESERVE, request, start, is_rejected=True)
                raise
            start = self._observe(plugin, RESERVE, request, start)
        return obj

    def _observe(
        self, plugin: AdmissionPlugin, stage: str, request: AdmissionRequest, start: float, *, is_rejected: bool = False
    ) -> float:
        """Record the duration of a plugin's stage that began at `start`, and return its end."""
        end, key = self._timer(), (type(plugin), stage, request.operation, is_rejected)
        seconds = self._seconds.get(key)
        if seconds is None:
            seconds = self._seconds[key] = Histogram(DURATION_BUCKETS)
        seconds.observe(end - start)
        return end


def _overrides(plugin: AdmissionPlugin, stage: str) -> bool:
    """Return whether a plugin acts in a stage."""
    return getattr(type(plugin), stage) is not getattr(AdmissionPlugin, stage)
