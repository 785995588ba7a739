"""EgressNetworkPolicy: what outside of the cluster the pods of a project may reach. Kept; nothing acts on it. Pure.

Source: facts/sdn.md 1.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from api.meta import names
from api.meta.schema import NOT_SUPPORTED, FieldError, quoted
from api.meta.types import Object, Value
from api.validation.registry import KindRules
from master.kinds.checks import exactly_one, most
from master.kinds.kind import AGE, NAME, Kind, age
from master.kinds.network_policy import check_network

MOST_RULES = 1000
TYPES = ("Allow", "Deny")
UNHEEDED = "nothing acts on this EgressNetworkPolicy: pods reach whatever their node reaches"


class EgressNetworkPolicyPeer(Value, frozen=True):
    """A network, or a name; exactly one of the two."""

    cidr_selector: str | None = None
    dns_name: str | None = None


class EgressNetworkPolicyRule(Value, frozen=True):
    """`type` is Allow or Deny."""

    type: str = ""
    to: EgressNetworkPolicyPeer = EgressNetworkPolicyPeer()


class EgressNetworkPolicySpec(Value, frozen=True, omit_defaults=False):
    """The first rule that is about an address holds."""

    egress: tuple[EgressNetworkPolicyRule, ...] = ()


class EgressNetworkPolicy(Object, frozen=True):
    """What outside of the cluster the pods of a project may reach."""

    API_VERSION = "network.openshift.io/v1"
    KIND = "EgressNetworkPolicy"

    spec: EgressNetworkPolicySpec = EgressNetworkPolicySpec()


def _check(item: EgressNetworkPolicy) -> Iterator[FieldError]:
    yield from most("spec.egress", item.spec.egress, MOST_RULES)
    for number, rule in enumerate(item.spec.egress):
        path, to = f"spec.egress[{number}]", rule.to
        if rule.type not in TYPES:
            accepted = f"{', '.join(TYPES)} are accepted"
            yield FieldError(f"{path}.type", quoted(rule.type), accepted, NOT_SUPPORTED)
        yield from exactly_one(f"{path}.to", {"cidrSelector": to.cidr_selector, "dnsName": to.dns_name})
        if to.cidr_selector is not None:
            yield from check_network(f"{path}.to.cidrSelector", to.cidr_selector)
        if to.dns_name is not None and names.dns_subdomain(to.dns_name):
            yield FieldError(f"{path}.to.dnsName", quoted(to.dns_name), names.dns_subdomain(to.dns_name))


def _cells(item: EgressNetworkPolicy, now: datetime.datetime) -> tuple[object, ...]:
    return item.metadata.name, age(item.metadata.creation_timestamp, now)


EGRESS_NETWORK_POLICY = Kind(
    type=EgressNetworkPolicy,
    plural="egressnetworkpolicies",
    singular="egressnetworkpolicy",
    namespaced=True,
    columns=(NAME, AGE),
    cells=_cells,
    own_rules=KindRules(check=_check, warnings=lambda item: iter((UNHEEDED,))),
)
