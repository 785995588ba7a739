"""What the signers of this cluster sign, who may approve and sign, and what is approved without anybody's word. Pure.

Source: the signers, approvers and admission plugins for certificates of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from api import keys
from api.objects import Node
from api.pem import Request
from api.signing_requests import (
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
from master.access.authorize import MASTERS, Attributes, User
from master.kinds.certificate_signing_request import CERTIFICATE_SIGNING_REQUEST as KIND
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


def approval(item: CertificateSigningRequest, nodes: Collection[Node], may: May) -> str:
    """By what a request is approved without anybody's word; empty if it waits for somebody's."""
    asked = keys.read_request(item.spec.request)
    if item.spec.signer_name not in OF_NODES or refusal(item, asked):
        return ""
    user = User(item.spec.username, frozenset(item.spec.groups), item.spec.uid, tuple(item.spec.extra.items()))
    own = user.name == asked.subject.user
    if item.spec.signer_name == NODE_SERVING:
        good = own and bool(user.node) and _is_where(asked, user.node, nodes)
        return (
            "Auto approving kubelet serving certificate: it names the node that asks, where its Node is."
            if good
            else ""
        )
    if own and may(user, _right("selfnodeclient")):
        return "Auto approving self kubelet client certificate after SubjectAccessReview."
    if may(user, _right("nodeclient")):
        return "Auto approving kubelet client certificate after SubjectAccessReview."
    return ""


def wanted(item: CertificateSigningRequest) -> str:
    """Whom and what a certificate is to name, for people."""
    asked = keys.read_request(item.spec.request)
    return ", ".join((asked.subject.user, *asked.subject.names, *asked.subject.addresses, *asked.more))


def _right(subresource: str) -> Attributes:
    return Attributes("create", KIND.group, KIND.plural, subresource)


def _is_where(asked: Request, name: str, nodes: Iterable[Node]) -> bool:
    """Whether all places are those of the node, and of no other: a node writes down its addresses itself."""
    places = frozenset((*asked.subject.names, *asked.subject.addresses))
    known: dict[str, frozenset[str]] = {
        node.metadata.name: frozenset((node.metadata.name, *(row.address for row in node.status.addresses)))
        for node in nodes
    }
    own = known.pop(name, frozenset())
    return places <= own and not any(places & others for others in known.values())
