"""The signers of this cluster: what they sign, and which requests are approved automatically. Pure.

Source: the signers and approvers of certificates in Kubernetes. A node writes the addresses of its Node itself; so
they count for a serving certificate only if the request came over a connection from that address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address

from api.core.certificates import (
    CLIENT_AUTH,
    CLIENT_SIGNER,
    CLIENT_USAGES,
    DIGITAL_SIGNATURE,
    KEY_ENCIPHERMENT,
    KUBELET_CLIENT_SIGNER,
    KUBELET_SERVING_SIGNER,
    NODE_USER_PREFIX,
    NODES_GROUP,
    SERVER_USAGES,
    CertificateSigningRequest,
)
from api.core.node import Node
from api.meta import names
from api.meta.schema import quoted
from api.pki import keys
from api.pki.pem import CertificateRequest, Subject
from master.auth.attributes import Attributes, User
from master.resources.certificate_requests import CERTIFICATE_SIGNING_REQUESTS as KIND
from master.resources.nodes import ready_status

ADDRESS_EXTRA = "authentication.podlane.io/address"
"""Under this key `spec.extra` of a request has the address from which it came; only the server writes it."""


@dataclass(frozen=True, slots=True)
class ReservedNames:
    """What is no node's: the networks of pods and services; and the master's, where the node is not the master's host.

    `address` and `names` are the master's own.
    """

    networks: tuple[IPv4Network, ...] = ()
    address: str = ""
    names: frozenset[str] = frozenset()


def normalize_address(address: str) -> str:
    """The address of a connection as requests have it; empty if it is none."""
    found = _parse_ip(address)
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found or "")


def serving_denial(
    subject: Subject, node: str, came_from: str, nodes: Collection[Node], reserved: ReservedNames
) -> str:
    """Why the server of `node` does not get these places by itself; empty if it does."""
    return next(_serving_denials(subject, node, came_from, nodes, reserved), "")


def _serving_denials(
    subject: Subject, node: str, came_from: str, nodes: Collection[Node], reserved: ReservedNames
) -> Iterator[str]:
    own = next((one for one in nodes if one.metadata.name == node), None)
    if own is None:
        yield f"there is no Node {node}"
        return
    if len(subject.dns_names) > 1 or len(subject.ip_addresses) > 1:
        yield "it is for more than one name and one address"
    for name in subject.dns_names:
        if name != node:
            yield f"{quoted(name)} is not the name of the node"
        if _is_reserved_name(name, reserved, came_from):
            yield f"{quoted(name)} is a name of the master or of the cluster"
    others = [one for one in nodes if one.metadata.name != node]
    for text in subject.ip_addresses:
        yield from _address_denials(text, came_from, own, others, reserved)


def _is_reserved_name(name: str, reserved: ReservedNames, came_from: str) -> bool:
    if name in reserved.names and not (came_from and came_from == reserved.address):
        return True
    first, last = name.partition(".")[0], name.rpartition(".")[2]
    special = first in ("kubernetes", "localhost") or last == "localhost"
    return special or "*" in name or ".svc" in name or _parse_ip(name) is not None


def _address_denials(
    text: str, came_from: str, own: Node, others: Iterable[Node], reserved: ReservedNames
) -> Iterator[str]:
    address = _parse_ip(text)
    if address is None or address != _parse_ip(came_from):
        # The address of the master itself is among these, unless the node is on the master's host.
        where = came_from or "an address that is not known"
        yield f"{text} is not the address of the connection on which it was asked for, which came from {where}"
        return
    special = address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
    if special or (isinstance(address, IPv6Address) and address.ipv4_mapped):
        yield f"{text} is no address of one host alone"
    for network in reserved.networks:
        if address in network:
            yield f"{text} is in {network}, which is for pods or services"
    if address not in {_parse_ip(row.address) for row in own.status.addresses if row.type == "InternalIP"}:
        yield f"{text} is no InternalIP of the Node"
    for one in others:
        if address in {_parse_ip(row.address) for row in one.status.addresses}:
            yield f"the Node {one.metadata.name} says that it has {text}, too"


def _parse_ip(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


Authorize = Callable[[User, Attributes], bool]

BUILTIN_SIGNERS = frozenset((CLIENT_SIGNER, KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER))
NODE_SIGNERS = frozenset((KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER))


def signing_denial(item: CertificateSigningRequest, asked: CertificateRequest) -> str:
    """Why its signer, one of ours, does not sign it; empty if it does."""
    return next(_signing_denials(item, asked), "")


def _signing_denials(item: CertificateSigningRequest, asked: CertificateRequest) -> Iterator[str]:
    subject, usages, signer = asked.subject, frozenset(item.spec.usages), item.spec.signer_name
    if signer == CLIENT_SIGNER:
        for usage in sorted(usages - {CLIENT_AUTH, DIGITAL_SIGNATURE, KEY_ENCIPHERMENT}):
            yield f"invalid usage for client certificate: {usage}"
        if CLIENT_AUTH not in usages:
            yield f"missing required usage for client certificate: {CLIENT_AUTH}"
        return
    if subject.groups != (NODES_GROUP,):
        yield "subject organization is not system:nodes"
    if not subject.user.startswith(NODE_USER_PREFIX):
        yield "subject common name does not begin with system:node:"
    wanted = frozenset(SERVER_USAGES if signer == KUBELET_SERVING_SIGNER else CLIENT_USAGES)
    if usages not in (wanted, wanted - {KEY_ENCIPHERMENT}):
        yield f"usages did not match {sorted(wanted)}"
    places = (*subject.dns_names, *subject.ip_addresses)
    unwanted = asked.other_names if signer == KUBELET_SERVING_SIGNER else (*places, *asked.other_names)
    if unwanted:
        yield f"subjectAltNames are not allowed: {', '.join(unwanted)}"
    if signer == KUBELET_SERVING_SIGNER and not places:
        yield "DNS or IP subjectAltName is required"


# --- what is approved by itself ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Approval:
    """Whether a request is approved, and by what; or why it waits for somebody's word."""

    approved: bool
    words: str


MAX_DESCRIPTION_LENGTH = 300
"""Letters of what somebody asks for that are told to people."""


def approve(
    item: CertificateSigningRequest, nodes: Collection[Node], reserved: ReservedNames, may: Authorize
) -> Approval:
    """What becomes by itself of a request to a signer of nodes."""
    asked = keys.parse_request(item.spec.request)
    if why := signing_denial(item, asked) or _not_a_node_csr(asked):
        return Approval(False, why)
    user = User(item.spec.username, frozenset(item.spec.groups), item.spec.uid, tuple(item.spec.extra.items()))
    if item.spec.signer_name == KUBELET_SERVING_SIGNER:
        return _approve_serving(asked, user, nodes, reserved)
    return _approve_client(asked, user, nodes, may)


def describe_csr(item: CertificateSigningRequest) -> str:
    """Whom and what a certificate is to name, for people."""
    asked = keys.parse_request(item.spec.request)
    text = ", ".join((asked.subject.user, *asked.subject.dns_names, *asked.subject.ip_addresses, *asked.other_names))
    return text if len(text) <= MAX_DESCRIPTION_LENGTH else f"{text[:MAX_DESCRIPTION_LENGTH]}..."


def _not_a_node_csr(asked: CertificateRequest) -> str:
    """Signers sign more than nodes ask for; whoever approves that has seen it."""
    if asked.other_attributes:
        return f"subject says more than common name and organization: {', '.join(asked.other_attributes)}"
    if wrong := names.dns_subdomain_error(asked.subject.user.removeprefix(NODE_USER_PREFIX)):
        return f"subject common name does not name a node: {wrong}"
    return ""


def _approve_serving(
    asked: CertificateRequest, user: User, nodes: Collection[Node], reserved: ReservedNames
) -> Approval:
    if not user.node or user.name != asked.subject.user:
        return Approval(False, "it is not asked for by the node itself")
    came_from = next((values[0] for key, values in user.extra if key == ADDRESS_EXTRA and values), "")
    if why := serving_denial(asked.subject, user.node, came_from, nodes, reserved):
        return Approval(False, why)
    return Approval(True, "Auto approving kubelet serving certificate: it names the node that asks, and where from.")


def _approve_client(asked: CertificateRequest, user: User, nodes: Collection[Node], may: Authorize) -> Approval:
    if user.name == asked.subject.user and may(user, _csr_attributes("selfnodeclient")):
        return Approval(True, "Auto approving self kubelet client certificate after SubjectAccessReview.")
    if not may(user, _csr_attributes("nodeclient")):
        return Approval(False, "who asks has no right to a node's certificate without approval")
    node = asked.subject.user.removeprefix(NODE_USER_PREFIX)
    # A token is for new nodes, and for one whose certificate ended while it was off; not for taking a node's place.
    # Who may approve it has the last word anyway.
    heard = any(one.metadata.name == node and ready_status(one) != "Unknown" for one in nodes)
    if heard and not may(user, Attributes("approve", KIND.group, "signers", name=KUBELET_CLIENT_SIGNER)):
        return Approval(False, f"the Node {node} is there already, and is heard of")
    return Approval(True, "Auto approving kubelet client certificate after SubjectAccessReview.")


def _csr_attributes(subresource: str) -> Attributes:
    return Attributes("create", KIND.group, KIND.plural, subresource)
