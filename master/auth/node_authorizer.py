"""The rules for nodes: what a kubelet may read and write, by path and field selector. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from api.core.node import NODE_LEASES
from api.validation.static_pods import creation_refusal
from master.auth.attributes import READ_VERBS, Attributes

READABLE_BY_NODES = frozenset(
    (
        ("", "nodes"),
        ("", "namespaces"),
        ("", "services"),
        ("discovery.k8s.io", "endpointslices"),
        ("podlane.io", "podaddresses"),
        ("network.openshift.io", "clusternetworks"),
        ("network.openshift.io", "hostsubnets"),
        ("network.openshift.io", "netnamespaces"),
        ("node.k8s.io", "runtimeclasses"),
        ("storage.k8s.io", "csidrivers"),
    )
)
"""(group, plural) of what every node reads, whole."""

READABLE_IF_REFERENCED = frozenset(
    ("", name) for name in ("configmaps", "secrets", "persistentvolumes", "persistentvolumeclaims")
)
"""(group, plural) of what a node reads one by one, while a pod that is bound to it refers to it."""


def node_denial(node: str, asked: Attributes) -> str | None:
    """Return why a node may not do this; None if it may."""
    resource = (asked.group, asked.resource)
    if resource in READABLE_BY_NODES and asked.verb in READ_VERBS and asked.subresource in ("", "status"):
        return None
    if resource in READABLE_IF_REFERENCED:
        return _referenced_denial(node, asked)
    return _NODE_RULES[resource](node, asked) if resource in _NODE_RULES else "a node may not do this"


def _own_node_denial(node: str, asked: Attributes) -> str | None:
    if asked.verb == "create" and not asked.subresource:
        named = asked.body_name
    elif asked.verb in ("update", "patch") and asked.subresource in ("", "status"):
        named = asked.name
    else:
        return "a node may only register itself and report its own status"
    return None if named == node else f"node {node} may not write the Node {named!r}"


def _list_denial(node: str, asked: Attributes) -> str | None:
    """Of what is bound to nodes, a node is shown its own only."""
    own = asked.asked_node == node
    return None if own else f"node {node} asks for {asked.resource} with the field selector spec.nodeName={node}"


def _referenced_denial(node: str, asked: Attributes) -> str | None:
    if asked.verb not in READ_VERBS or asked.subresource:
        return f"a node may only read {asked.resource}"
    return None if asked.needed else f"no pod on node {node} refers to such an object: name one with metadata.name"


def _own_query_denial(node: str, asked: Attributes) -> str | None:
    if asked.verb in ("list", "watch"):
        return _list_denial(node, asked)
    reads = asked.verb == "get" and asked.subresource in ("", "status")
    answers = asked.verb in ("update", "patch") and asked.subresource == "status"
    if not (reads or answers):
        return "a node may only read and answer queries to it"
    return None if asked.bound_to in (None, node) else f"the query is not to node {node}"


def _own_event_denial(node: str, asked: Attributes) -> str | None:
    if asked.verb == "create" and not asked.subresource:
        told_by: str | None = asked.body_host
    elif asked.verb in ("update", "patch") and not asked.subresource:
        told_by = asked.bound_to
    else:
        return "a node may only tell events"
    return None if told_by in (None, node) else f"node {node} tells events with itself as source.host"


def _token_denial(node: str, asked: Attributes) -> str | None:
    if (asked.verb, asked.subresource) != ("create", "token"):
        return "a node may only ask for tokens of service accounts"
    return None if asked.needed else f"the token is to be bound to a pod on node {node} that has this account"


def _own_lease_denial(node: str, asked: Attributes) -> str | None:
    if asked.namespace != NODE_LEASES or asked.verb not in ("get", "create", "update", "patch") or asked.subresource:
        return f"a node may only read and renew its own lease in {NODE_LEASES}"
    named = asked.body_name if asked.verb == "create" else asked.name
    return None if named == node else f"node {node} may not renew the lease {named!r}"


def _own_csi_node_denial(node: str, asked: Attributes) -> str | None:
    if asked.verb not in ("get", "create", "update", "patch", "delete") or asked.subresource:
        return "a node may only read and write its own CSINode"
    named = asked.body_name if asked.verb == "create" else asked.name
    return None if named == node else f"node {node} may not read or write the CSINode {named!r}"


def _own_slice_denial(node: str, asked: Attributes) -> str | None:
    if asked.verb in ("list", "watch", "deletecollection"):
        return _list_denial(node, asked)
    if asked.verb not in ("get", "delete"):
        return "a node may only read and delete the ResourceSlices that are about it; their driver makes them"
    return None if asked.bound_to in (None, node) else f"the ResourceSlice is not about node {node}"


def _own_pod_denial(node: str, asked: Attributes) -> str | None:
    if asked.verb in ("list", "watch"):
        return _list_denial(node, asked)
    if asked.verb == "create" and not asked.subresource:
        return _mirror_pod_denial(node, asked)
    reads = asked.verb == "get" and asked.subresource in ("", "status")
    reports = asked.verb in ("update", "patch") and asked.subresource == "status"
    finishes = asked.verb == "delete" and not asked.subresource
    if not (reads or reports or finishes):
        return "a node may only read its own pods, report their status, mirror static ones, and delete what has ended"
    # A pod that does not exist passes, so that the answer is 404: a node must learn that its pod is gone.
    if asked.bound_to not in (None, node):
        return f"the pod is not bound to node {node}"
    if finishes and asked.grace != 0:
        return "a node deletes a pod with gracePeriodSeconds 0, after its containers have ended"
    return None


def _mirror_pod_denial(node: str, asked: Attributes) -> str | None:
    if not asked.node_uid:
        return f"node {node} has not registered"
    return "the body is no Pod" if asked.pod is None else creation_refusal(asked.pod, node, asked.node_uid)


def _review_denial(node: str, asked: Attributes) -> str | None:
    """A node asks who its callers are, and what they may do."""
    del node
    return None if asked.verb == "create" else "a node may only ask for reviews"


_NODE_RULES: Mapping[tuple[str, str], Callable[[str, Attributes], str | None]] = {
    ("", "nodes"): _own_node_denial,
    ("", "serviceaccounts"): _token_denial,
    ("", "pods"): _own_pod_denial,
    ("podlane.io", "nodequeries"): _own_query_denial,
    ("", "events"): _own_event_denial,
    ("coordination.k8s.io", "leases"): _own_lease_denial,
    ("storage.k8s.io", "csinodes"): _own_csi_node_denial,
    ("resource.k8s.io", "resourceslices"): _own_slice_denial,
    ("authentication.k8s.io", "tokenreviews"): _review_denial,
    ("authorization.k8s.io", "subjectaccessreviews"): _review_denial,
    ("authorization.k8s.io", "localsubjectaccessreviews"): _review_denial,
}

NODE_RESOURCES = frozenset((*_NODE_RULES, *READABLE_BY_NODES, *READABLE_IF_REFERENCED))
"""(group, plural) of what a node has rules of its own for; of these, roles give it nothing more."""
