"""NetworkPolicy: who may talk to which pods of a project. Kept and served; nothing acts on it. Pure."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from ipaddress import ip_network

import msgspec
from msgspec.structs import replace

from api.meta import names
from api.meta.schema import FORBIDDEN, MISSING, NOT_SUPPORTED, FieldError, quoted, unsupported_values
from api.meta.selectors import LabelSelector, check_selector, shown_selector
from api.meta.types import Object, Value
from api.validation.registry import KindRules
from master.kinds.kind import AGE, NAME, Column, Kind, age

_LENGTH = re.compile(r"/[0-9]{1,3}$", re.ASCII)
PROTOCOLS, TYPES = ("TCP", "UDP", "SCTP"), ("Ingress", "Egress")


class NetworkPolicyPort(Value, frozen=True):
    """A port by its number or the name that pods give it, or all up to `endPort`; without one, every port."""

    protocol: str | None = None
    port: int | str | None = None
    end_port: int | None = None


class IPBlock(Value, frozen=True):
    """The addresses of a network, without those of others."""

    cidr: str = ""
    except_: tuple[str, ...] = msgspec.field(default=(), name="except")


class NetworkPolicyPeer(Value, frozen=True):
    """Pods, of this project or of projects that are selected; or addresses."""

    pod_selector: LabelSelector | None = None
    namespace_selector: LabelSelector | None = None
    ip_block: IPBlock | None = None


class NetworkPolicyIngressRule(Value, frozen=True):
    """From where to which ports; what is left out means all."""

    ports: tuple[NetworkPolicyPort, ...] = ()
    from_: tuple[NetworkPolicyPeer, ...] = msgspec.field(default=(), name="from")


class NetworkPolicyEgressRule(Value, frozen=True):
    """To where, to which ports; what is left out means all."""

    ports: tuple[NetworkPolicyPort, ...] = ()
    to: tuple[NetworkPolicyPeer, ...] = ()


class NetworkPolicySpec(Value, frozen=True):
    """`policyTypes` says which direction is limited to what its rules allow."""

    pod_selector: LabelSelector = LabelSelector()
    ingress: tuple[NetworkPolicyIngressRule, ...] = ()
    egress: tuple[NetworkPolicyEgressRule, ...] = ()
    policy_types: tuple[str, ...] = ()


class NetworkPolicy(Object, frozen=True):
    """Who may talk to the pods that it selects, and to whom they may."""

    API_VERSION = "networking.k8s.io/v1"
    KIND = "NetworkPolicy"

    spec: NetworkPolicySpec = NetworkPolicySpec()


UNHEEDED = "nothing acts on this NetworkPolicy: it keeps no packet out; the lanes of projects alone do (netnamespaces)"


def _default(item: NetworkPolicy) -> NetworkPolicy:
    spec = item.spec
    types = spec.policy_types or (TYPES if spec.egress else TYPES[:1])
    ingress = tuple(replace(rule, ports=_default_ports(rule.ports)) for rule in spec.ingress)
    egress = tuple(replace(rule, ports=_default_ports(rule.ports)) for rule in spec.egress)
    return replace(item, spec=replace(spec, ingress=ingress, egress=egress, policy_types=types))


def _default_ports(ports: tuple[NetworkPolicyPort, ...]) -> tuple[NetworkPolicyPort, ...]:
    return tuple(replace(port, protocol=port.protocol or "TCP") for port in ports)


def _check(item: NetworkPolicy) -> Iterator[FieldError]:
    spec = item.spec
    yield from check_selector("spec.podSelector", spec.pod_selector)
    for number, ingress in enumerate(spec.ingress):
        yield from _check_rule(f"spec.ingress[{number}]", "from", ingress.ports, ingress.from_)
    for number, egress in enumerate(spec.egress):
        yield from _check_rule(f"spec.egress[{number}]", "to", egress.ports, egress.to)
    if len(spec.policy_types) > len(TYPES):
        yield FieldError("spec.policyTypes", quoted(spec.policy_types), "may not specify more than two policyTypes")
    for number, name in enumerate(spec.policy_types):
        if name not in TYPES:
            accepted = f"{', '.join(TYPES)} are accepted"
            yield FieldError(f"spec.policyTypes[{number}]", quoted(name), accepted, NOT_SUPPORTED)


def _check_rule(
    path: str, peers_field: str, ports: tuple[NetworkPolicyPort, ...], peers: tuple[NetworkPolicyPeer, ...]
) -> Iterator[FieldError]:
    for number, port in enumerate(ports):
        yield from _check_port(f"{path}.ports[{number}]", port)
    for number, peer in enumerate(peers):
        yield from _check_peer(f"{path}.{peers_field}[{number}]", peer)


def _check_port(path: str, port: NetworkPolicyPort) -> Iterator[FieldError]:
    yield from unsupported_values((f"{path}.protocol", port.protocol or "", PROTOCOLS))
    if isinstance(port.port, int):
        if not 1 <= port.port <= 65535:
            yield FieldError(f"{path}.port", quoted(port.port), "must be between 1 and 65535, inclusive")
    elif port.port is not None and names.port_name(port.port):
        yield FieldError(f"{path}.port", quoted(port.port), names.port_name(port.port))
    if port.end_port is None:
        return
    if not isinstance(port.port, int):
        why = "may not be specified when `port` is not numeric"
        yield FieldError(f"{path}.endPort", quoted(port.end_port), why)
    elif not port.port <= port.end_port <= 65535:
        why = "must be greater than or equal to `port`, and at most 65535"
        yield FieldError(f"{path}.endPort", quoted(port.end_port), why)


def _check_peer(path: str, peer: NetworkPolicyPeer) -> Iterator[FieldError]:
    selectors = (("podSelector", peer.pod_selector), ("namespaceSelector", peer.namespace_selector))
    for field, wish in selectors:
        if wish is not None:
            yield from check_selector(f"{path}.{field}", wish)
    selects = any(wish is not None for _, wish in selectors)
    if peer.ip_block is None:
        if not selects:
            yield FieldError(path, "{}", "must specify a peer", MISSING)
        return
    if selects:
        yield FieldError(path, "given", "may not specify both ipBlock and another peer", FORBIDDEN)
    yield from _check_block(f"{path}.ipBlock", peer.ip_block)


def _check_block(path: str, block: IPBlock) -> Iterator[FieldError]:
    if not block.cidr:
        yield FieldError(f"{path}.cidr", '""', "a network is required", MISSING)
        return
    yield from check_network(f"{path}.cidr", block.cidr)
    for number, inner in enumerate(block.except_):
        place = f"{path}.except[{number}]"
        problems = [*check_network(place, inner), *check_network(place, block.cidr)]
        yield from problems[:1]
        if not problems and not _lies_in(inner, block.cidr):
            yield FieldError(place, quoted(inner), f"must be a strict subset of `cidr`, {block.cidr}")


def check_network(path: str, text: str) -> Iterator[FieldError]:
    """A network such as 10.0.0.0/8."""
    try:
        ip_network(text, strict=False)
        good = _LENGTH.search(text) is not None and "%" not in text
    except ValueError:
        good = False
    if not good:
        yield FieldError(path, quoted(text), "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")


def _lies_in(inner: str, outer: str) -> bool:
    small, large = ip_network(inner, strict=False), ip_network(outer, strict=False)
    if small.version != large.version or small.prefixlen <= large.prefixlen:
        return False
    return small.network_address in large


def _cells(item: NetworkPolicy, now: datetime.datetime) -> tuple[object, ...]:
    return item.metadata.name, shown_selector(item.spec.pod_selector), age(item.metadata.creation_timestamp, now)


NETWORK_POLICY = Kind(
    type=NetworkPolicy,
    plural="networkpolicies",
    singular="networkpolicy",
    namespaced=True,
    short=("netpol",),
    columns=(NAME, Column("Pod-Selector", "The pods that it is about."), AGE),
    cells=_cells,
    spec=lambda item: item.spec,
    own_rules=KindRules(_default, _check, warnings=lambda item: iter((UNHEEDED,))),
)
