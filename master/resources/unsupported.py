"""Resources that are listed empty and cannot be created, because a stored object would have no effect. Pure.

Empty lists let components of Kubernetes synchronize their watches at startup.
See docs/adr/0015-kinds-without-a-controller.md.
"""

from __future__ import annotations

from typing import Any

from api.meta.types import Object
from api.validation.registry import KindRules
from master.resources.printing import AGE, NAME
from master.resources.resource import READ_VERBS, Resource

WEBHOOKS = "admission webhooks are not supported: a stored webhook would never be called"
POLICIES = "admission policies are not supported: a stored policy would not be enforced"
DEFINITIONS = "custom resources are not supported"
SERVERS = "aggregated API servers are not supported"
FLOWS = "API priority and fairness is not supported: all requests have the same priority"
ADDRESSES = "IPAddress objects are not used: services carry their addresses themselves"


class MutatingWebhookConfiguration(Object, frozen=True):
    """Webhooks that change requests. Not supported: none can be created."""

    API_VERSION = "admissionregistration.k8s.io/v1"
    KIND = "MutatingWebhookConfiguration"


class ValidatingWebhookConfiguration(Object, frozen=True):
    """Webhooks that accept or reject requests. Not supported: none can be created."""

    API_VERSION = "admissionregistration.k8s.io/v1"
    KIND = "ValidatingWebhookConfiguration"


class MutatingAdmissionPolicy(Object, frozen=True):
    """Expressions that change requests. Not supported: none can be created."""

    API_VERSION = "admissionregistration.k8s.io/v1"
    KIND = "MutatingAdmissionPolicy"


class MutatingAdmissionPolicyBinding(Object, frozen=True):
    """The scope of a mutating admission policy. Not supported: none can be created."""

    API_VERSION = "admissionregistration.k8s.io/v1"
    KIND = "MutatingAdmissionPolicyBinding"


class ValidatingAdmissionPolicy(Object, frozen=True):
    """Expressions that accept or reject requests. Not supported: none can be created."""

    API_VERSION = "admissionregistration.k8s.io/v1"
    KIND = "ValidatingAdmissionPolicy"


class ValidatingAdmissionPolicyBinding(Object, frozen=True):
    """The scope of a validating admission policy. Not supported: none can be created."""

    API_VERSION = "admissionregistration.k8s.io/v1"
    KIND = "ValidatingAdmissionPolicyBinding"


class CustomResourceDefinition(Object, frozen=True):
    """The definition of a custom kind. Not supported: none can be created."""

    API_VERSION = "apiextensions.k8s.io/v1"
    KIND = "CustomResourceDefinition"


class APIService(Object, frozen=True):
    """A group that another server serves. Not supported: none can be created."""

    API_VERSION = "apiregistration.k8s.io/v1"
    KIND = "APIService"


class FlowSchema(Object, frozen=True):
    """The priority level of requests. Not supported: none can be created."""

    API_VERSION = "flowcontrol.apiserver.k8s.io/v1"
    KIND = "FlowSchema"


class PriorityLevelConfiguration(Object, frozen=True):
    """The concurrency limit of a priority level. Not supported: none can be created."""

    API_VERSION = "flowcontrol.apiserver.k8s.io/v1"
    KIND = "PriorityLevelConfiguration"


class IPAddress(Object, frozen=True):
    """An allocated address of a service. None exists: services carry their addresses themselves."""

    API_VERSION = "networking.k8s.io/v1"
    KIND = "IPAddress"


def _unsupported(of: type[Object], plural: str, reason: str, short: tuple[str, ...] = ()) -> Resource[Any]:
    return Resource(
        type=of,
        plural=plural,
        namespaced=False,
        short_names=short,
        columns=(NAME, AGE),
        rules=KindRules(),
        verbs=READ_VERBS,
        unsupported=reason,
    )


UNSUPPORTED: tuple[Resource[Any], ...] = (
    _unsupported(MutatingWebhookConfiguration, "mutatingwebhookconfigurations", WEBHOOKS),
    _unsupported(ValidatingWebhookConfiguration, "validatingwebhookconfigurations", WEBHOOKS),
    _unsupported(MutatingAdmissionPolicy, "mutatingadmissionpolicies", POLICIES),
    _unsupported(MutatingAdmissionPolicyBinding, "mutatingadmissionpolicybindings", POLICIES),
    _unsupported(ValidatingAdmissionPolicy, "validatingadmissionpolicies", POLICIES),
    _unsupported(ValidatingAdmissionPolicyBinding, "validatingadmissionpolicybindings", POLICIES),
    _unsupported(CustomResourceDefinition, "customresourcedefinitions", DEFINITIONS, ("crd", "crds")),
    _unsupported(APIService, "apiservices", SERVERS),
    _unsupported(FlowSchema, "flowschemas", FLOWS),
    _unsupported(PriorityLevelConfiguration, "prioritylevelconfigurations", FLOWS),
    _unsupported(IPAddress, "ipaddresses", ADDRESSES, ("ip",)),
)
