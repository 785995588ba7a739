"""Kinds that clients may ask for and that nobody can make, as one that is kept without effect would deceive. Pure.

Their lists are empty, so that what real components watch at their start is in sync.
See docs/adr/0015-kinds-without-a-controller.md.
"""

from __future__ import annotations

import datetime
from typing import Any

from api.meta.types import Object
from api.validation.registry import KindRules
from master.kinds.kind import AGE, NAME, READ_VERBS, Kind, age

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


def _cells(item: Object, now: datetime.datetime) -> tuple[object, ...]:
    return item.metadata.name, age(item.metadata.creation_timestamp, now)


def _kind(of: type[Object], plural: str, refusal: str, short: tuple[str, ...] = ()) -> Kind[Any]:
    return Kind(
        type=of,
        plural=plural,
        singular=of.KIND.lower(),
        namespaced=False,
        short=short,
        columns=(NAME, AGE),
        cells=_cells,
        own_rules=KindRules(),
        verbs=READ_VERBS,
        refusal=refusal,
    )


REFUSED: tuple[Kind[Any], ...] = (
    _kind(MutatingWebhookConfiguration, "mutatingwebhookconfigurations", WEBHOOKS),
    _kind(ValidatingWebhookConfiguration, "validatingwebhookconfigurations", WEBHOOKS),
    _kind(MutatingAdmissionPolicy, "mutatingadmissionpolicies", POLICIES),
    _kind(MutatingAdmissionPolicyBinding, "mutatingadmissionpolicybindings", POLICIES),
    _kind(ValidatingAdmissionPolicy, "validatingadmissionpolicies", POLICIES),
    _kind(ValidatingAdmissionPolicyBinding, "validatingadmissionpolicybindings", POLICIES),
    _kind(CustomResourceDefinition, "customresourcedefinitions", DEFINITIONS, ("crd", "crds")),
    _kind(APIService, "apiservices", SERVERS),
    _kind(FlowSchema, "flowschemas", FLOWS),
    _kind(PriorityLevelConfiguration, "prioritylevelconfigurations", FLOWS),
    _kind(IPAddress, "ipaddresses", ADDRESSES, ("ip",)),
)
