"""Certificate signers: which requests they sign, and which are approved automatically. Pure.

Source: the signers and approvers of certificates in Kubernetes. A node writes the addresses of its Node itself, so an
address in a serving certificate must also be the source address of the connection of the request.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping
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
from master.auth.attributes import Attributes, Authorize, User
from master.resources.certificate_requests import CERTIFICATE_SIGNING_REQUESTS as KIND
from master.resources.nodes import ready_status

ADDRESS_EXTRA = "authentication.podlane.io/address"
"""Key in `spec.extra` of a CertificateSigningRequest: the client address of the request. Only the server writes it."""


@dataclass(frozen=True, slots=True)
class ReservedNames:
    """The addresses and names that a serving certificate of a node must not have.

    `networks` are those of pods and services. `address` and `names` are those of the master; `names` are accepted for a
    node on the master's host.
    """

    networks: tuple[IPv4Network, ...] = ()
    address: str = ""
    names: frozenset[str] = frozenset()


def normalize_address(address: str) -> str:
    """Return the address of a connection in the form that certificate requests use; empty if it is invalid."""
    ip = _parse_ip(address)
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return str(mapped or ip or "")


def serving_denial(
    subject: Subject, node: str, client_address: str, nodes: Collection[Node], reserved: ReservedNames
) -> str:
    """Return why a serving certificate of `node` with this subject is not approved; empty if it is."""
    return next(_serving_denials(subject, node, client_address, nodes, reserved), "")


def _serving_denials(
    subject: Subject, node: str, client_address: str, nodes: Collection[Node], reserved: ReservedNames
) -> Iterator[str]:
    own_node = next((known_node for known_node in nodes if known_node.metadata.name == node), None)
    if own_node is None:
        yield f"there is no Node {node}"
        return
    if len(subject.dns_names) > 1 or len(subject.ip_addresses) > 1:
        yield "it has more than one name or more than one address"
    for name in subject.dns_names:
        if name != node:
            yield f"{quoted(name)} is not the name of the node"
        if _is_reserved_name(name, reserved, client_address):
            yield f"{quoted(name)} is a name of the master or of the cluster"
    others = [known_node for known_node in nodes if known_node.metadata.name != node]
    for text in subject.ip_addresses:
        yield from _address_denials(text, client_address, own_node, others, reserved)


def _is_reserved_name(name: str, reserved: ReservedNames, client_address: str) -> bool:
    if name in reserved.names and not (client_address and client_address == reserved.address):
        return True
    first, last = name.partition(".")[0], name.rpartition(".")[2]
    is_special = first in ("kubernetes", "localhost") or last == "localhost"
    return is_special or "*" in name or ".svc" in name or _parse_ip(name) is not None


def _address_denials(
    text: str, client_address: str, own_node: Node, others: Iterable[Node], reserved: ReservedNames
) -> Iterator[str]:
    address = _parse_ip(text)
    if address is None or address != _parse_ip(client_address):
        # The address of the master is rejected here, too, unless the node is on the master's host.
        source = client_address or "an unknown address"
        yield f"{text} is not the client address of the request, which is {source}"
        return
    is_special = address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
    if is_special or (isinstance(address, IPv6Address) and address.ipv4_mapped):
        yield f"{text} is not a unicast address of one host"
    for network in reserved.networks:
        if address in network:
            yield f"{text} is in {network}, which is for pods or services"
    if address not in {
        _parse_ip(node_address.address)
        for node_address in own_node.status.addresses
        if node_address.type == "InternalIP"
    }:
        yield f"{text} is not an InternalIP of the Node"
    for other in others:
        if address in {_parse_ip(node_address.address) for node_address in other.status.addresses}:
            yield f"{text} is also an address of the Node {other.metadata.name}"


def _parse_ip(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


BUILTIN_SIGNERS = frozenset((CLIENT_SIGNER, KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER))
NODE_SIGNERS = frozenset((KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER))


def signing_denial(csr: CertificateSigningRequest, request: CertificateRequest) -> str:
    """Return why a built-in signer does not sign the request; empty if it does."""
    return next(_signing_denials(csr, request), "")


def _signing_denials(csr: CertificateSigningRequest, request: CertificateRequest) -> Iterator[str]:
    subject, usages, signer = request.subject, frozenset(csr.spec.usages), csr.spec.signer_name
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
    required = frozenset(SERVER_USAGES if signer == KUBELET_SERVING_SIGNER else CLIENT_USAGES)
    if usages not in (required, required - {KEY_ENCIPHERMENT}):
        yield f"usages did not match {sorted(required)}"
    names_and_addresses = (*subject.dns_names, *subject.ip_addresses)
    unaccepted = (
        request.other_names if signer == KUBELET_SERVING_SIGNER else (*names_and_addresses, *request.other_names)
    )
    if unaccepted:
        yield f"subjectAltNames are not allowed: {', '.join(unaccepted)}"
    if signer == KUBELET_SERVING_SIGNER and not names_and_addresses:
        yield "DNS or IP subjectAltName is required"


# --- automatic approval -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Approval:
    """The result of automatic approval: the message of the approval, or why the request waits for manual approval."""

    approved: bool
    message: str


MAX_DESCRIPTION_LENGTH = 300
"""Maximum length of a request's description in characters."""


def approve(
    csr: CertificateSigningRequest,
    nodes: Collection[Node],
    reserved: ReservedNames,
    may: Authorize,
    claims: Mapping[str, Collection[str]],
) -> Approval:
    """Return whether a request to one of NODE_SIGNERS is approved automatically.

    `claims` are the addresses from which client certificates were requested and got, by the user in them.
    """
    request = keys.parse_request(csr.spec.request)
    if denial := signing_denial(csr, request) or _not_a_node_csr(request):
        return Approval(False, denial)
    user = User(csr.spec.username, frozenset(csr.spec.groups), csr.spec.uid, tuple(csr.spec.extra.items()))
    if csr.spec.signer_name == KUBELET_SERVING_SIGNER:
        return _approve_serving(request, user, nodes, reserved)
    return _approve_client(request, user, nodes, may, claims)


def describe_csr(csr: CertificateSigningRequest) -> str:
    """Return the names and addresses of the requested certificate, for messages."""
    request = keys.parse_request(csr.spec.request)
    text = ", ".join(
        (request.subject.user, *request.subject.dns_names, *request.subject.ip_addresses, *request.other_names)
    )
    return text if len(text) <= MAX_DESCRIPTION_LENGTH else f"{text[:MAX_DESCRIPTION_LENGTH]}..."


def _not_a_node_csr(request: CertificateRequest) -> str:
    """Return what a kubelet would not request, so that it needs manual approval; empty if there is nothing."""
    if request.other_attributes:
        return f"subject has more than common name and organization: {', '.join(request.other_attributes)}"
    if problem := names.dns_subdomain_error(request.subject.user.removeprefix(NODE_USER_PREFIX)):
        return f"subject common name is not that of a node: {problem}"
    return ""


def _approve_serving(
    request: CertificateRequest, user: User, nodes: Collection[Node], reserved: ReservedNames
) -> Approval:
    if not user.node or user.name != request.subject.user:
        return Approval(False, "the requester is not the node itself")
    if denial := serving_denial(request.subject, user.node, client_address(user), nodes, reserved):
        return Approval(False, denial)
    return Approval(
        True, "Auto approving kubelet serving certificate: it has the name and the client address of the node."
    )


def _approve_client(
    request: CertificateRequest,
    user: User,
    nodes: Collection[Node],
    may: Authorize,
    claims: Mapping[str, Collection[str]],
) -> Approval:
    if user.name == request.subject.user and may(user, _csr_attributes("selfnodeclient")):
        return Approval(True, "Auto approving self kubelet client certificate after SubjectAccessReview.")
    if not may(user, _csr_attributes("nodeclient")):
        return Approval(False, "the requester may not get a node's certificate without manual approval")
    # A user who may approve requests could approve this one as well.
    if not may(user, Attributes("approve", KIND.group, "signers", name=KUBELET_CLIENT_SIGNER)):
        denial = _takeover_denial(request.subject.user, client_address(user), nodes, claims)
        if denial:
            return Approval(False, denial)
    return Approval(True, "Auto approving kubelet client certificate after SubjectAccessReview.")


def _takeover_denial(subject: str, address: str, nodes: Collection[Node], claims: Mapping[str, Collection[str]]) -> str:
    """Return why a bootstrap token may not request a certificate of this node; empty if it may.

    A token is for new nodes, and for a node whose certificate expired while it was off. With it nobody may take over a
    running node, a node that is off, or the name of a machine that joins at the same time.
    """
    name = subject.removeprefix(NODE_USER_PREFIX)
    node = next((known_node for known_node in nodes if known_node.metadata.name == name), None)
    if node is not None and ready_status(node) != "Unknown":
        return f"the Node {name} exists already and sends heartbeats"
    addresses = {each.address for each in node.status.addresses if each.type == "InternalIP"} if node else set()
    if addresses and address not in addresses:
        found = address or "an unknown address"
        return f"the Node {name} exists already with the address {min(addresses)}; the request came from {found}"
    others = sorted(set(claims.get(subject, ())) - {address})
    return f"a certificate of {name} was issued to {others[0] or 'an unknown address'} just now" if others else ""


def client_address(user: User) -> str:
    """Return the address of the connection of a request, empty if it is unknown."""
    return next((values[0] for key, values in user.extra if key == ADDRESS_EXTRA and values), "")


def node_claim(csr: CertificateSigningRequest) -> tuple[str, str] | None:
    """Return the user and the client address of a request for a node's client certificate by somebody else."""
    if csr.spec.signer_name != KUBELET_CLIENT_SIGNER:
        return None
    subject = keys.parse_request(csr.spec.request).subject.user
    address = next(iter(csr.spec.extra.get(ADDRESS_EXTRA, ())), "")
    return None if subject == csr.spec.username else (subject, address)


def _csr_attributes(subresource: str) -> Attributes:
    return Attributes("create", KIND.group, KIND.plural, subresource)
