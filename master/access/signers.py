"""What the signers of this cluster sign, who may approve and sign, and what is approved without anybody's word. Pure.

Source: the signers, approvers and admission plugins for certificates of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from api.core.certificates import (
    CLIENT,
    CLIENT_AUTH,
    CLIENT_USAGES,
    DIGITAL_SIGNATURE,
    KEY_ENCIPHERMENT,
    NODE_CLIENT,
    NODE_PREFIX,
    NODE_SERVING,
    NODES,
    SERVER_USAGES,
    CertificateSigningRequest,
)
from api.core.node import Node
from api.meta import names
from api.pki import keys
from api.pki.pem import Request
from master.access import serving
from master.access.authorize import MASTERS, Attributes, User
from master.access.serving import ADDRESS, Reserved
from master.kinds.certificate_signing_request import CERTIFICATE_SIGNING_REQUEST as KIND
from master.kinds.node import ready
from master.wire import answers

May = Callable[[User, Attributes], bool]

OURS = frozenset((CLIENT, NODE_CLIENT, NODE_SERVING))
OF_NODES = frozenset((NODE_CLIENT, NODE_SERVING))


def refusal(item: CertificateSigningRequest, asked: Request) -> str:
    """Why its signer, one of ours, does not sign it; empty if it does."""
    return next(_refusals(item, asked), "")


def _refusals(item: CertificateSigningRequest, asked: Request) -> Iterator[str]:
    subject, usages, signer = asked.subject, frozenset(item.spec.usages), item.spec.signer_name
    if signer == CLIENT:
        for usage in sorted(usages - {CLIENT_AUTH, DIGITAL_SIGNATURE, KEY_ENCIPHERMENT}):
            yield f"invalid usage for client certificate: {usage}"
        if CLIENT_AUTH not in usages:
            yield f"missing required usage for client certificate: {CLIENT_AUTH}"
        return
    if subject.groups != (NODES,):
        yield "subject organization is not system:nodes"
    if not subject.user.startswith(NODE_PREFIX):
        yield "subject common name does not begin with system:node:"
    wanted = frozenset(SERVER_USAGES if signer == NODE_SERVING else CLIENT_USAGES)
    if usages not in (wanted, wanted - {KEY_ENCIPHERMENT}):
        yield f"usages did not match {sorted(wanted)}"
    places = (*subject.names, *subject.addresses)
    unwanted = asked.more if signer == NODE_SERVING else (*places, *asked.more)
    if unwanted:
        yield f"subjectAltNames are not allowed: {', '.join(unwanted)}"
    if signer == NODE_SERVING and not places:
        yield "DNS or IP subjectAltName is required"


# --- who may ask, approve and sign ------------------------------------------------------------------------------------


def check_asked(item: CertificateSigningRequest, user: User) -> None:
    """Whether somebody may ask for that. Raises Failure."""
    signer, subject = item.spec.signer_name, keys.read_request(item.spec.request).subject
    if signer == CLIENT and MASTERS in subject.groups:
        why = f"use of {CLIENT} signer with {MASTERS} group is not allowed"
        raise answers.forbidden(KIND, item.metadata.name, why)
    if user.node and MASTERS not in user.groups and signer in OF_NODES and subject.user != user.name:
        raise answers.forbidden(KIND, item.metadata.name, f"can only create a node CSR with CN={user.name}")


def check_decided(
    new: CertificateSigningRequest, old: CertificateSigningRequest, part: str, user: User, may: May
) -> None:
    """Whether somebody may write that part of a request, `approval` or `status`. Raises Failure."""
    if part == "approval":
        verb = "approve"
    elif part == "status" and new.status != old.status:
        verb = "sign"
    else:
        return
    signer = old.spec.signer_name
    wild = f"{signer.partition('/')[0]}/*"
    rights = (Attributes(verb, KIND.group, "signers", name=name) for name in (signer, wild))
    if not any(may(user, right) for right in rights):
        why = f'user not permitted to {verb} requests with signerName "{signer}"'
        raise answers.forbidden(KIND, old.metadata.name, why)


# --- what is approved by itself ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a request is approved, and by what; or why it waits for somebody's word."""

    approved: bool
    words: str


LONGEST_WANTED = 300
"""Letters of what somebody asks for that are told to people."""


def verdict(item: CertificateSigningRequest, nodes: Collection[Node], reserved: Reserved, may: May) -> Verdict:
    """What becomes by itself of a request to a signer of nodes."""
    asked = keys.read_request(item.spec.request)
    if why := refusal(item, asked) or _unlike_a_node(asked):
        return Verdict(False, why)
    user = User(item.spec.username, frozenset(item.spec.groups), item.spec.uid, tuple(item.spec.extra.items()))
    if item.spec.signer_name == NODE_SERVING:
        return _for_server(asked, user, nodes, reserved)
    return _for_client(asked, user, nodes, may)


def wanted(item: CertificateSigningRequest) -> str:
    """Whom and what a certificate is to name, for people."""
    asked = keys.read_request(item.spec.request)
    text = ", ".join((asked.subject.user, *asked.subject.names, *asked.subject.addresses, *asked.more))
    return text if len(text) <= LONGEST_WANTED else f"{text[:LONGEST_WANTED]}..."


def _unlike_a_node(asked: Request) -> str:
    """Signers sign more than nodes ask for; whoever approves that has seen it."""
    if asked.others:
        return f"subject says more than common name and organization: {', '.join(asked.others)}"
    if wrong := names.dns_subdomain(asked.subject.user.removeprefix(NODE_PREFIX)):
        return f"subject common name does not name a node: {wrong}"
    return ""


def _for_server(asked: Request, user: User, nodes: Collection[Node], reserved: Reserved) -> Verdict:
    if not user.node or user.name != asked.subject.user:
        return Verdict(False, "it is not asked for by the node itself")
    came_from = next((values[0] for key, values in user.extra if key == ADDRESS and values), "")
    if why := serving.refusal(asked.subject, user.node, came_from, nodes, reserved):
        return Verdict(False, why)
    return Verdict(True, "Auto approving kubelet serving certificate: it names the node that asks, and where from.")


def _for_client(asked: Request, user: User, nodes: Collection[Node], may: May) -> Verdict:
    if user.name == asked.subject.user and may(user, _right("selfnodeclient")):
        return Verdict(True, "Auto approving self kubelet client certificate after SubjectAccessReview.")
    if not may(user, _right("nodeclient")):
        return Verdict(False, "who asks has no right to a node's certificate without approval")
    node = asked.subject.user.removeprefix(NODE_PREFIX)
    # A token is for new nodes, and for one whose certificate ended while it was off; not for taking a node's place.
    # Who may approve it has the last word anyway.
    heard = any(one.metadata.name == node and ready(one) != "Unknown" for one in nodes)
    if heard and not may(user, Attributes("approve", KIND.group, "signers", name=NODE_CLIENT)):
        return Verdict(False, f"the Node {node} is there already, and is heard of")
    return Verdict(True, "Auto approving kubelet client certificate after SubjectAccessReview.")


def _right(subresource: str) -> Attributes:
    return Attributes("create", KIND.group, KIND.plural, subresource)
