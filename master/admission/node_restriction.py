"""NodeRestriction: which objects a kubelet may write, by their content. Pure.

Source: the admission plugin NodeRestriction of Kubernetes. A node that may write all labels would attract pods with
secrets; with owner references it could have its Node garbage collected (CVE-2025-5187) and register without its taints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from api.core.auth import TokenRequest
from api.core.events import Event
from api.core.node import NODE_LEASES, Lease, Node
from api.core.pod import Pod
from api.validation.static_pods import creation_denial
from master import errors
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.auth.attributes import SYSTEM_MASTERS, Attributes, User, denial_message
from master.request_info import RequestInfo
from master.resources.csi import CSINode
from master.resources.scheme import group_resource
from master.storage.interface import Key, Transaction

RESTRICTED = "node-restriction.kubernetes.io"
"""A node may not write labels with this prefix or a subdomain of it."""

KUBERNETES = ("kubernetes.io", "k8s.io")
"""Domains of Kubernetes' labels. A node may write labels with other prefixes."""

OWN_DOMAINS = ("kubelet.kubernetes.io", "node.kubernetes.io")
"""Kubernetes' label prefixes, with their subdomains, that a node may write."""

OWN_PREFIXES = frozenset(("topology.kubernetes.io", "failure-domain.beta.kubernetes.io"))
"""Kubernetes' label prefixes, without their subdomains, that a node may write."""

HOST_NAME_LABEL = "kubernetes.io/hostname"

OWN_LABELS = frozenset(
    (
        HOST_NAME_LABEL,
        "kubernetes.io/arch",
        "kubernetes.io/os",
        "beta.kubernetes.io/hostname",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/instance-type",
    )
)
"""Single labels that a node may write."""


class NodeRestriction(AdmissionPlugin):
    """Limits what a node writes to its own objects, beyond the rules for paths (auth/node_authorizer.py)."""

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        requester = request.requester
        if requester is None or not requester.user.node or SYSTEM_MASTERS in requester.user.groups:
            return
        if isinstance(obj, Node) and request.operation is not Operation.DELETE:
            denial = node_restriction_denial(obj, request.old) or _host_name_denial(obj, request.old, objects)
            if denial is not None:
                raise errors.forbidden(request.resource, obj.metadata.name, denial)
        denial = self._body_denial(requester.user.node, request, obj, objects)
        if denial is not None:
            resource, meta = request.resource, obj.metadata
            attributes = Attributes(
                request.operation.lower(), resource.group, resource.plural, namespace=meta.namespace
            )
            sentence = denial_message(requester.user, attributes)
            raise errors.forbidden(resource, meta.name, f"{sentence}: {denial}")

    def _body_denial(self, node: str, request: AdmissionRequest, obj: Any, objects: Transaction) -> str | None:
        """Return why the node may not create or delete this object; None if it may."""
        if request.operation is Operation.DELETE:
            keeps_running = isinstance(obj, Pod) and request.grace_period_seconds != 0
            denial = "a node deletes a pod with gracePeriodSeconds 0, after its containers have ended"
            return denial if keeps_running else None
        if request.operation is not Operation.CREATE:
            return None
        if isinstance(obj, Pod):
            own_node = objects.get(Key(group_resource(Node), "", node))
            return (
                f"node {node} has not registered"
                if own_node is None
                else creation_denial(obj, node, own_node.metadata.uid)
            )
        if isinstance(obj, Event) and not request.resource.group:
            return _event_denial(node, obj, objects)
        return _name_denial(node, obj)


def _event_denial(node: str, event: Event, objects: Transaction) -> str | None:
    """Return why the node may not create this event; None if it may. Object and source of an event do not change.

    It may be about a pod that is gone, because the last events of a pod come late. Services are of no node.
    """
    if event.source.host != node:
        return f"node {node} may only write events with itself as source.host"
    about = event.involved_object
    if about.kind != Pod.KIND:
        return None
    pod = objects.get(Key(group_resource(Pod), about.namespace, about.name))
    is_about_pod = pod is not None and about.uid in ("", pod.metadata.uid)
    if is_about_pod and pod.spec.node_name != node:
        return f"node {node} may only write events about pods that are bound to it"
    return None


def _name_denial(node: str, obj: Any) -> str | None:
    """Return why the node may not create an object that must have the name of its node; None if it may."""
    name = obj.metadata.name
    if name == node:
        return None
    if isinstance(obj, Node):
        return f"node {node} may not write the Node {name!r}"
    if isinstance(obj, Lease) and obj.metadata.namespace == NODE_LEASES:
        return f"node {node} may not read or renew the lease {name!r}"
    if isinstance(obj, CSINode):
        return f"node {node} may not read or write the CSINode {name!r}"
    return None


def check_token_request(user: User, info: RequestInfo, request: TokenRequest, bound: Any) -> None:
    """Require that a node requests a token for a pod on it that runs under the service account. Raises Forbidden.

    `bound` is the object that the token is to be bound to, None if there is none.
    """
    if not user.node or SYSTEM_MASTERS in user.groups:
        return
    if isinstance(bound, Pod):
        reference = request.spec.bound_object_ref
        is_same_pod = reference is not None and reference.uid == bound.metadata.uid
        # A mirror pod has no service account: the node makes it, in any namespace.
        if is_same_pod and bound.spec.service_account_name == info.name and bound.spec.node_name == user.node:
            return
    attributes = Attributes("create", "", "serviceaccounts", "token", info.namespace, info.name)
    denial = f"a node may only request a token bound to a pod on node {user.node} with this service account"
    raise errors.forbidden(info.resource, info.name, f"{denial_message(user, attributes)}: {denial}")


def node_restriction_denial(new: Node, old: Node | None) -> str | None:
    """Return why a node may not create (`old` is None) or update its Node like this; None if it may."""
    if old is None:
        listed = _forbidden_labels(new.metadata.labels)
        if listed:
            return f"is not allowed to set the following labels: {', '.join(listed)}"
        return "is not allowed to set ownerReferences" if new.metadata.owner_references else None
    if new.spec.taints != old.spec.taints:
        return "is not allowed to modify taints"
    listed = _forbidden_labels(_changed(new.metadata.labels, old.metadata.labels))
    if listed:
        return f"is not allowed to modify labels: {', '.join(listed)}"
    if new.metadata.owner_references != old.metadata.owner_references:
        return "is not allowed to modify ownerReferences"
    return None


def _host_name_denial(new: Node, old: Node | None, objects: Transaction) -> str | None:
    """Return why a node may not have this host name; None if it may.

    Volumes select their node by this label. With the host name of another node, a node would attract the pods that use
    the volumes of that node.
    """
    host_name = new.metadata.labels.get(HOST_NAME_LABEL, "")
    before = old.metadata.labels.get(HOST_NAME_LABEL) if old is not None else None
    if host_name in ("", new.metadata.name, before):
        return None
    other = objects.get(Key(group_resource(Node), "", host_name))
    return None if other is None else f"is not allowed to take the host name of node {host_name}"


def _changed(new: Mapping[str, str], old: Mapping[str, str]) -> Iterable[str]:
    """Return the labels that were added, removed or changed."""
    return (key for key in {**new, **old} if new.get(key) != old.get(key))


def _forbidden_labels(labels: Iterable[str]) -> list[str]:
    return sorted(label for label in labels if not _is_allowed_label(label))


def _is_allowed_label(label: str) -> bool:
    prefix = label.rpartition("/")[0]
    if _is_below(prefix, RESTRICTED):
        return False
    if not any(_is_below(prefix, domain) for domain in KUBERNETES):
        return True
    return label in OWN_LABELS or prefix in OWN_PREFIXES or any(_is_below(prefix, domain) for domain in OWN_DOMAINS)


def _is_below(prefix: str, domain: str) -> bool:
    return prefix == domain or prefix.endswith(f".{domain}")
