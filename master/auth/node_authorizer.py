"""The node authorizer: what a kubelet may read and write, by path and field selector. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from api.core import cluster_info
from api.core.node import NODE_LEASES
from master.auth.attributes import Attributes
from master.resources.resource import READ_VERBS

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
"""(group, plural) of resources of which every node may read all objects."""

READABLE_IF_REFERENCED = frozenset(
    ("", name) for name in ("configmaps", "secrets", "persistentvolumes", "persistentvolumeclaims")
)
"""(group, plural) of resources of which a node may read an object while a pod bound to the node refers to it."""


READ_CLUSTER_INFO = ("", "configmaps", cluster_info.NAMESPACE, cluster_info.NAME, "get")
"""(group, plural, namespace, name, verb) of what everybody may do."""


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """Facts about a request that the rules for nodes need besides its attributes.

    `selected_node` is the node that the field selector requires of pods, queries and local volumes. `bound_node` is the
    node that the requested object belongs to: empty if it has none, None if there is no such object. `is_referenced` is
    True if a pod on the node refers to the requested object.
    """

    selected_node: str = ""
    bound_node: str | None = None
    is_referenced: bool = False


NodeRule = Callable[[str, Attributes, NodeAccess], str | None]
"""A rule for one resource. It returns why a node may not send the request; None if it may."""


def node_denial(node: str, attributes: Attributes, access: NodeAccess) -> str | None:
    """Return why a node may not send this request; None if it may.

    Rules about the body of a request are in the admission plugin NodeRestriction.
    """
    resource = (attributes.group, attributes.resource)
    is_read = attributes.verb in READ_VERBS
    if resource in READABLE_BY_NODES and is_read and attributes.subresource in ("", "status"):
        return None
    if (*resource, attributes.namespace, attributes.name, attributes.verb) == READ_CLUSTER_INFO:
        return None if not attributes.subresource else "a node may only read configmaps"
    if resource in READABLE_IF_REFERENCED:
        return _referenced_denial(node, attributes, access)
    rule = _NODE_RULES.get(resource)
    return rule(node, attributes, access) if rule is not None else "a node may not do this"


def _own_node_denial(node: str, attributes: Attributes, access: NodeAccess) -> str | None:
    del access
    if attributes.verb == "create" and not attributes.subresource:
        return None
    if attributes.verb in ("update", "patch") and attributes.subresource in ("", "status"):
        return None if attributes.name == node else f"node {node} may not write the Node {attributes.name!r}"
    return "a node may only register itself and report its own status"


def _list_denial(node: str, attributes: Attributes, access: NodeAccess) -> str | None:
    """Return a denial unless the field selector selects the objects of this node only."""
    if access.selected_node == node:
        return None
    return f"node {node} may list and watch {attributes.resource} only with the field selector spec.nodeName={node}"


def _referenced_denial(node: str, attributes: Attributes, access: NodeAccess) -> str | None:
    if attributes.verb not in READ_VERBS or attributes.subresource:
        return f"a node may only read {attributes.resource}"
    if access.is_referenced:
        return None
    return f"no pod on node {node} refers to this object; a list needs the field selector metadata.name=NAME"


def _own_query_denial(node: str, attributes: Attributes, access: NodeAccess) -> str | None:
    if attributes.verb in ("list", "watch"):
        return _list_denial(node, attributes, access)
    reads = attributes.verb == "get" and attributes.subresource in ("", "status")
    answers = attributes.verb in ("update", "patch") and attributes.subresource == "status"
    if not (reads or answers):
        return "a node may only read queries to it and write their status"
    return None if access.bound_node in (None, node) else f"the query is not to node {node}"


def _own_local_volume_denial(node: str, attributes: Attributes, access: NodeAccess) -> str | None:
    if attributes.verb in ("list", "watch"):
        return _list_denial(node, attributes, access)
    reads = attributes.verb == "get" and attributes.subresource in ("", "status")
    reports = attributes.verb == "update" and attributes.subresource == "status"
    if not (reads or reports):
        return "a node may only read its own local volumes and write their status"
    return None if access.bound_node in (None, node) else f"the local volume is not on node {node}"


def _own_event_denial(node: str, attributes: Attributes, access: NodeAccess) -> str | None:
    if attributes.verb == "create" and not attributes.subresource:
        return None
    if attributes.verb in ("update", "patch") and not attributes.subresource:
        is_own = access.bound_node in (None, node)
        return None if is_own else f"node {node} may only write events with itself as source.host"
    return "a node may only create and update events"


def _token_denial(node: str, attributes: Attributes, access: NodeAccess) -> str | None:
    del node, access
    is_request = (attributes.verb, attributes.subresource) == ("create", "token")
    return None if is_request else "a node may only request tokens of service accounts"


def _own_lease_denial(node: str, attributes: Attributes, access: NodeAccess) -> str | None:
    del access
    is_accepted = attributes.verb in ("get", "create", "update", "patch") and not attributes.subresource
    if attributes.namespace != NODE_LEASES or not is_accepted:
        return f"a node may only read and renew its own lease in {NODE_LEASES}"
    if attributes.verb == "create" or attributes.name == node:
        return None
    return f"node {node} may not read or renew the lease {attributes.name!r}"


def _own_csi_node_denial(node: str, attributes: Attributes, access: NodeAccess) -> str | None:
    del access
    if attributes.verb not in ("get", "create", "update", "patch", "delete") or attributes.subresource:
        return "a node may only read and write its own CSINode"
    if attributes.verb == "create" or attributes.name == node:
        return None
    return f"node {node} may not read or write the CSINode {attributes.name!r}"


def _own_slice_denial(node: str, attributes: Attributes, access: NodeAccess) -> str | None:
    """Let a kubelet list and delete the ResourceSlices of its node, as it does at startup. There are none."""
    if attributes.verb in ("list", "watch", "deletecollection"):
        return _list_denial(node, attributes, access)
    return "a node may only list and delete the ResourceSlices of its own drivers"


def _own_pod_denial(node: str, attributes: Attributes, access: NodeAccess) -> str | None:
    if attributes.verb in ("list", "watch"):
        return _list_denial(node, attributes, access)
    if attributes.verb == "create" and not attributes.subresource:
        return None
    reads = attributes.verb == "get" and attributes.subresource in ("", "status")
    reports = attributes.verb in ("update", "patch") and attributes.subresource == "status"
    finishes = attributes.verb == "delete" and not attributes.subresource
    if not (reads or reports or finishes):
        return "a node may only read its own pods, write their status, create mirror pods and delete terminated pods"
    # A request for a pod that does not exist is allowed, so that the response is 404 and the node deletes the pod.
    return None if access.bound_node in (None, node) else f"the pod is not bound to node {node}"


def _review_denial(node: str, attributes: Attributes, access: NodeAccess) -> str | None:
    """Return a denial of all verbs but create. A kubelet authenticates and authorizes its clients with reviews."""
    del node, access
    return None if attributes.verb == "create" else "a node may only create reviews"


_NODE_RULES: Mapping[tuple[str, str], NodeRule] = {
    ("", "nodes"): _own_node_denial,
    ("", "serviceaccounts"): _token_denial,
    ("", "pods"): _own_pod_denial,
    ("podlane.io", "nodequeries"): _own_query_denial,
    ("podlane.io", "localvolumes"): _own_local_volume_denial,
    ("", "events"): _own_event_denial,
    ("coordination.k8s.io", "leases"): _own_lease_denial,
    ("storage.k8s.io", "csinodes"): _own_csi_node_denial,
    ("resource.k8s.io", "resourceslices"): _own_slice_denial,
    ("authentication.k8s.io", "tokenreviews"): _review_denial,
    ("authorization.k8s.io", "subjectaccessreviews"): _review_denial,
    ("authorization.k8s.io", "localsubjectaccessreviews"): _review_denial,
}

NODE_RESOURCES = frozenset((*_NODE_RULES, *READABLE_BY_NODES, *READABLE_IF_REFERENCED))
"""(group, plural) of resources with rules for nodes. Roles do not allow a node more of these."""
