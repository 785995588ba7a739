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

WEBHOOKS = "this master calls no webhooks: one that is kept and never called would let through what it is to stop"
POLICIES = (
    "this master heeds no admission policies: one that is kept and not heeded would let through what it is to stop"
)
DEFINITIONS = "this master serves the kinds that it knows, and no others"
SERVERS = "this master passes no requests on to other servers"
FLOWS = "this master serves all requests alike"
ADDRESSES = "the addresses of services stand in the services themselves"


class MutatingWebhookConfiguration(Object, frozen=True):
    """Asks somebody else to change what is written. There is none."""

    API_VERSION = "admissionregistration.k8s.io/v1"
    KIND = "MutatingWebhookConfiguration"


class ValidatingWebhookConfiguration(Object, frozen=True):
    """Asks somebody else whether something may be written. There is none."""

    API_VERSION = "admissionregistration.k8s.io/v1"
    KIND = "ValidatingWebhookConfiguration"


class MutatingAdmissionPolicy(Object, frozen=True):
    """Changes what is written, by expressions. There is none."""

    API_VERSION = "admissionregistration.k8s.io/v1"
    KIND = "MutatingAdmissionPolicy"


class MutatingAdmissionPolicyBinding(Object, frozen=True):
    """Where such a policy holds. There is none."""

    API_VERSION = "admissionregistration.k8s.io/v1"
    KIND = "MutatingAdmissionPolicyBinding"


class ValidatingAdmissionPolicy(Object, frozen=True):
    """Says by expressions what may be written. There is none."""

    API_VERSION = "admissionregistration.k8s.io/v1"
    KIND = "ValidatingAdmissionPolicy"


class ValidatingAdmissionPolicyBinding(Object, frozen=True):
    """Where such a policy holds. There is none."""

    API_VERSION = "admissionregistration.k8s.io/v1"
    KIND = "ValidatingAdmissionPolicyBinding"


class CustomResourceDefinition(Object, frozen=True):
    """A kind that somebody else defines. There is none."""

    API_VERSION = "apiextensions.k8s.io/v1"
    KIND = "CustomResourceDefinition"


class APIService(Object, frozen=True):
    """A group that another server serves. There is none."""

    API_VERSION = "apiregistration.k8s.io/v1"
    KIND = "APIService"


class FlowSchema(Object, frozen=True):
    """Which requests go first. There is none."""

    API_VERSION = "flowcontrol.apiserver.k8s.io/v1"
    KIND = "FlowSchema"


class PriorityLevelConfiguration(Object, frozen=True):
    """How many requests of a sort there may be at a time. There is none."""

    API_VERSION = "flowcontrol.apiserver.k8s.io/v1"
    KIND = "PriorityLevelConfiguration"


class IPAddress(Object, frozen=True):
    """An address of a service that is taken. There is none: services carry theirs themselves."""

    API_VERSION = "networking.k8s.io/v1"
    KIND = "IPAddress"


def _unsupported(of: type[Object], plural: str, refusal: str, short: tuple[str, ...] = ()) -> Resource[Any]:
    return Resource(
        type=of,
        plural=plural,
        namespaced=False,
        short_names=short,
        columns=(NAME, AGE),
        rules=KindRules(),
        verbs=READ_VERBS,
        unsupported=refusal,
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
