"""NetworkPolicy and EgressNetworkPolicy. Stored and served; nothing acts on them yet. Pure.

EgressNetworkPolicy follows network.openshift.io of OpenShift.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_network

import msgspec
from msgspec.structs import replace

from api.meta import names
from api.meta.schema import FORBIDDEN, MISSING, NOT_SUPPORTED, TOO_MANY, FieldError, quoted, unsupported_values
from api.meta.selectors import LabelSelector, check_selector, format_selector
from api.meta.types import Object, Value
from api.meta.values import Int32, IntOrString
from api.validation.registry import KindRules
from master.resources.printing import AGE, NAME
from master.resources.resource import Column, Resource
from master.resources.validation import exactly_one, max_items

_PREFIX_LENGTH = re.compile(r"/[0-9]{1,3}$", re.ASCII)
PROTOCOLS, POLICY_TYPES = ("TCP", "UDP", "SCTP"), ("Ingress", "Egress")


class NetworkPolicyPort(Value, frozen=True):
    """A port by its number or the name that pods give it, or all ports up to `endPort`. Without a port, every port."""

    protocol: str | None = None
    port: IntOrString | None = None
    end_port: Int32 | None = None


class IPBlock(Value, frozen=True):
    """The addresses of a network, except those of other networks in it."""

    cidr: str = ""
    except_: tuple[str, ...] = msgspec.field(default=(), name="except")


class NetworkPolicyPeer(Value, frozen=True):
    """Pods of this project, pods of selected projects, or addresses."""

    pod_selector: LabelSelector | None = None
    namespace_selector: LabelSelector | None = None
    ip_block: IPBlock | None = None


class NetworkPolicyIngressRule(Value, frozen=True):
    """The sources and ports that are allowed; an empty list allows all."""

    ports: tuple[NetworkPolicyPort, ...] = ()
    from_: tuple[NetworkPolicyPeer, ...] = msgspec.field(default=(), name="from")


class NetworkPolicyEgressRule(Value, frozen=True):
    """The destinations and ports that are allowed; an empty list allows all."""

    ports: tuple[NetworkPolicyPort, ...] = ()
    to: tuple[NetworkPolicyPeer, ...] = ()


class NetworkPolicySpec(Value, frozen=True):
    """The selected pods and their rules.

    `policyTypes` names the directions in which only traffic that a rule allows is allowed.
    """

    pod_selector: LabelSelector = LabelSelector()
    ingress: tuple[NetworkPolicyIngressRule, ...] = ()
    egress: tuple[NetworkPolicyEgressRule, ...] = ()
    policy_types: tuple[str, ...] = ()


class NetworkPolicy(Object, frozen=True):
    """Limits the traffic from and to the selected pods."""

    API_VERSION = "networking.k8s.io/v1"
    KIND = "NetworkPolicy"
    PLURAL = "networkpolicies"
    NAMESPACED = True

    spec: NetworkPolicySpec = NetworkPolicySpec()


NETWORK_POLICY_WARNING = (
    "nothing acts on this NetworkPolicy: it keeps no packet out; only the VNIDs of projects do (netnamespaces)"
)


MAX_POLICY_RULES, MAX_PEERS, MAX_POLICY_PORTS = 1000, 2000, 5000
"""Rules of a NetworkPolicy, and peers with the exceptions of their networks, and ports, of all rules together."""


def _check_policy_numbers(policy: NetworkPolicy) -> Iterator[FieldError]:
    spec = policy.spec
    ports = [*(rule.ports for rule in spec.ingress), *(rule.ports for rule in spec.egress)]
    peers = [peer for rule in spec.ingress for peer in rule.from_] + [peer for rule in spec.egress for peer in rule.to]
    exceptions = sum(len(peer.ip_block.except_) for peer in peers if peer.ip_block is not None)
    for name, number, limit in (
        ("rules", len(ports), MAX_POLICY_RULES),
        ("peers and exceptions", len(peers) + exceptions, MAX_PEERS),
        ("ports", sum(map(len, ports)), MAX_POLICY_PORTS),
    ):
        if number > limit:
            yield FieldError("spec", str(number), f"must have at most {limit} {name}", TOO_MANY)


def _default_network_policy(policy: NetworkPolicy) -> NetworkPolicy:
    spec = policy.spec
    types = spec.policy_types or (POLICY_TYPES if spec.egress else POLICY_TYPES[:1])
    ingress = tuple(replace(rule, ports=_default_ports(rule.ports)) for rule in spec.ingress)
    egress = tuple(replace(rule, ports=_default_ports(rule.ports)) for rule in spec.egress)
    return replace(policy, spec=replace(spec, ingress=ingress, egress=egress, policy_types=types))


def _default_ports(ports: tuple[NetworkPolicyPort, ...]) -> tuple[NetworkPolicyPort, ...]:
    return tuple(replace(port, protocol=port.protocol or "TCP") for port in ports)


def _validate_network_policy(policy: NetworkPolicy) -> Iterator[FieldError]:
    spec = policy.spec
    yield from check_selector("spec.podSelector", spec.pod_selector)
    for number, ingress in enumerate(spec.ingress):
        yield from _validate_rule(f"spec.ingress[{number}]", "from", ingress.ports, ingress.from_)
    for number, egress in enumerate(spec.egress):
        yield from _validate_rule(f"spec.egress[{number}]", "to", egress.ports, egress.to)
    if len(spec.policy_types) > len(POLICY_TYPES):
        yield FieldError("spec.policyTypes", quoted(spec.policy_types), "may not specify more than two policyTypes")
    for number, name in enumerate(spec.policy_types):
        if name not in POLICY_TYPES:
            accepted = f"{', '.join(POLICY_TYPES)} are accepted"
            yield FieldError(f"spec.policyTypes[{number}]", quoted(name), accepted, NOT_SUPPORTED)


def _validate_rule(
    path: str, peers_field: str, ports: tuple[NetworkPolicyPort, ...], peers: tuple[NetworkPolicyPeer, ...]
) -> Iterator[FieldError]:
    for number, port in enumerate(ports):
        yield from _validate_port(f"{path}.ports[{number}]", port)
    for number, peer in enumerate(peers):
        yield from _validate_peer(f"{path}.{peers_field}[{number}]", peer)


def _validate_port(path: str, port: NetworkPolicyPort) -> Iterator[FieldError]:
    yield from unsupported_values((f"{path}.protocol", port.protocol or "", PROTOCOLS))
    if isinstance(port.port, int):
        if not 1 <= port.port <= 65535:
            yield FieldError(f"{path}.port", quoted(port.port), "must be between 1 and 65535, inclusive")
    elif port.port is not None and names.port_name_error(port.port):
        yield FieldError(f"{path}.port", quoted(port.port), names.port_name_error(port.port))
    if port.end_port is None:
        return
    if not isinstance(port.port, int):
        reason = "may not be specified when `port` is not numeric"
        yield FieldError(f"{path}.endPort", quoted(port.end_port), reason)
    elif not port.port <= port.end_port <= 65535:
        reason = "must be greater than or equal to `port`, and at most 65535"
        yield FieldError(f"{path}.endPort", quoted(port.end_port), reason)


def _validate_peer(path: str, peer: NetworkPolicyPeer) -> Iterator[FieldError]:
    selectors = (("podSelector", peer.pod_selector), ("namespaceSelector", peer.namespace_selector))
    for field, selector in selectors:
        if selector is not None:
            yield from check_selector(f"{path}.{field}", selector)
    selects = any(selector is not None for _, selector in selectors)
    if peer.ip_block is None:
        if not selects:
            yield FieldError(path, "{}", "must specify a peer", MISSING)
        return
    if selects:
        yield FieldError(path, "given", "may not specify both ipBlock and another peer", FORBIDDEN)
    yield from _validate_ip_block(f"{path}.ipBlock", peer.ip_block)


def _validate_ip_block(path: str, block: IPBlock) -> Iterator[FieldError]:
    if not block.cidr:
        yield FieldError(f"{path}.cidr", '""', "a network is required", MISSING)
        return
    yield from validate_network(f"{path}.cidr", block.cidr)
    for number, inner in enumerate(block.except_):
        field_path = f"{path}.except[{number}]"
        problems = [*validate_network(field_path, inner), *validate_network(field_path, block.cidr)]
        yield from problems[:1]
        if not problems and not _is_subnet_of(inner, block.cidr):
            yield FieldError(field_path, quoted(inner), f"must be a strict subset of `cidr`, {block.cidr}")


def validate_network(path: str, text: str) -> Iterator[FieldError]:
    """Yield an error if the text is not a network such as 10.0.0.0/8."""
    try:
        ip_network(text, strict=False)
        good = _PREFIX_LENGTH.search(text) is not None and "%" not in text
    except ValueError:
        good = False
    if not good:
        yield FieldError(path, quoted(text), "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")


def _is_subnet_of(inner: str, outer: str) -> bool:
    small, large = ip_network(inner, strict=False), ip_network(outer, strict=False)
    if small.version != large.version or small.prefixlen <= large.prefixlen:
        return False
    return small.network_address in large


NETWORK_POLICIES = Resource(
    type=NetworkPolicy,
    short_names=("netpol",),
    columns=(
        NAME,
        Column("Pod-Selector", "Selector of the pods.", lambda policy, _: format_selector(policy.spec.pod_selector)),
        AGE,
    ),
    spec=lambda policy: policy.spec,
    rules=KindRules(
        _default_network_policy,
        _validate_network_policy,
        warnings=lambda policy: iter((NETWORK_POLICY_WARNING,)),
        check_numbers=_check_policy_numbers,
    ),
)

MAX_EGRESS_RULES = 1000
EGRESS_RULE_TYPES = ("Allow", "Deny")
EGRESS_NETWORK_POLICY_WARNING = "nothing acts on this EgressNetworkPolicy: pods reach whatever their node reaches"


class EgressNetworkPolicyPeer(Value, frozen=True):
    """A network or a DNS name; exactly one of the two."""

    cidr_selector: str | None = None
    dns_name: str | None = None


class EgressNetworkPolicyRule(Value, frozen=True):
    """A rule for a destination. `type` is Allow or Deny."""

    type: str = ""
    to: EgressNetworkPolicyPeer = EgressNetworkPolicyPeer()


class EgressNetworkPolicySpec(Value, frozen=True, omit_defaults=False):
    """The rules, of which the first that matches a destination counts."""

    egress: tuple[EgressNetworkPolicyRule, ...] = ()


class EgressNetworkPolicy(Object, frozen=True):
    """Limits the traffic of a project's pods to addresses outside of the cluster."""

    API_VERSION = "network.openshift.io/v1"
    KIND = "EgressNetworkPolicy"
    PLURAL = "egressnetworkpolicies"
    NAMESPACED = True

    spec: EgressNetworkPolicySpec = EgressNetworkPolicySpec()


def _validate_egress_network_policy(policy: EgressNetworkPolicy) -> Iterator[FieldError]:
    yield from max_items("spec.egress", policy.spec.egress, MAX_EGRESS_RULES)
    for number, rule in enumerate(policy.spec.egress):
        path, to = f"spec.egress[{number}]", rule.to
        if rule.type not in EGRESS_RULE_TYPES:
            accepted = f"{', '.join(EGRESS_RULE_TYPES)} are accepted"
            yield FieldError(f"{path}.type", quoted(rule.type), accepted, NOT_SUPPORTED)
        yield from exactly_one(f"{path}.to", {"cidrSelector": to.cidr_selector, "dnsName": to.dns_name})
        if to.cidr_selector is not None:
            yield from validate_network(f"{path}.to.cidrSelector", to.cidr_selector)
        if to.dns_name is not None and names.dns_subdomain_error(to.dns_name):
            yield FieldError(f"{path}.to.dnsName", quoted(to.dns_name), names.dns_subdomain_error(to.dns_name))


EGRESS_NETWORK_POLICIES = Resource(
    type=EgressNetworkPolicy,
    columns=(NAME, AGE),
    rules=KindRules(
        validate=_validate_egress_network_policy, warnings=lambda policy: iter((EGRESS_NETWORK_POLICY_WARNING,))
    ),
)
