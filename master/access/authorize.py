"""Who asks for what, and what a node may do. Pure.

Members of `system:masters` may do everything; a node, by its certificate `system:node:NAME` in `system:nodes`, may do
what a node needs; everybody may do what roles allow (`master.access.rbac`), a node only beside the resources it has
rules for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from api.core.node import NODE_LEASES
from api.core.pod import Pod
from api.validation.static_pods import creation_refusal

MASTERS = "system:masters"

TO_NODES = "kube-apiserver-kubelet-client"
"""The user that the master is to the servers of nodes, and never at its own door."""
NODES = "system:nodes"
AUTHENTICATED, UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"
ANONYMOUS = "system:anonymous"
NODE_PREFIX = "system:node:"

SHARED_WITH_NODES = frozenset(
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

FOR_PODS = frozenset(("", name) for name in ("configmaps", "secrets", "persistentvolumes", "persistentvolumeclaims"))
"""(group, plural) of what a node reads one by one, while a pod that is bound to it refers to it."""

READS = frozenset(("get", "list", "watch"))


@dataclass(frozen=True, slots=True)
class User:
    """Who asks: the names in the client certificate or the token; without one `system:anonymous`.

    `extra` is what else is known: (key, values).
    """

    name: str = ANONYMOUS
    groups: frozenset[str] = frozenset((UNAUTHENTICATED,))
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def node(self) -> str:
        """The name of the node that this is, or nothing."""
        is_node = NODES in self.groups and self.name.startswith(NODE_PREFIX)
        return self.name.removeprefix(NODE_PREFIX) if is_node else ""


@dataclass(frozen=True, slots=True)
class Attributes:
    """What is asked for. `verb` is that of Kubernetes (get list watch create update patch delete deletecollection).

    `asked_node` is the node that the field selector demands of pods or queries; `bound_to` is the node of the one that
    is asked for, nothing if it has none, None if there is no such object; of an Event it is the one that tells it.
    `body_name` is the name in the body of a create, `body_host` the node that tells the Event in it; `grace` is a
    delete's, in seconds. `needed`: one object is asked for, by its name or with a field selector for it, and a pod on
    the asking node refers to it. When a node creates a pod, `pod` is the body, None if it is no Pod, and
    `node_uid` that of the node's object, empty if there is none.
    """

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    asked_node: str = ""
    bound_to: str | None = None
    body_name: str = ""
    body_host: str = ""
    grace: int | None = None
    needed: bool = False
    pod: Pod | None = None
    node_uid: str = ""


@dataclass(frozen=True, slots=True)
class PathAttributes:
    """A path that names no object; the verb is the method in small letters."""

    verb: str
    path: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether something is allowed; `reason` says by what, or why not where there is more to say than who and what."""

    allowed: bool
    reason: str = ""


ALLOWED = Decision(True)


def decision(
    user: User, asked: Attributes | PathAttributes, by_roles: Callable[[Attributes | PathAttributes], Decision]
) -> Decision:
    """Whether the user may do that. `by_roles` says what roles allow."""
    if MASTERS in user.groups:
        return ALLOWED
    if user.node and isinstance(asked, Attributes) and (asked.group, asked.resource) in OF_NODES:
        reason = _node_refusal(user.node, asked)
        return ALLOWED if reason is None else Decision(False, reason)
    return by_roles(asked)


def who_cannot(user: User, asked: Attributes | PathAttributes) -> str:
    """The sentence of a refusal: who, what, where."""
    if isinstance(asked, PathAttributes):
        return f'User "{user.name}" cannot {asked.verb} path "{asked.path}"'
    what = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
    where = f' in the namespace "{asked.namespace}"' if asked.namespace else " at the cluster scope"
    return f'User "{user.name}" cannot {asked.verb} resource "{what}" in API group "{asked.group}"{where}'


def _node_refusal(node: str, asked: Attributes) -> str | None:
    resource = (asked.group, asked.resource)
    if resource in SHARED_WITH_NODES and asked.verb in READS and asked.subresource in ("", "status"):
        return None
    if resource in FOR_PODS:
        return _referred_refusal(node, asked)
    return _NODE_RULES[resource](node, asked) if resource in _NODE_RULES else "a node may not do this"


def _own_node_refusal(node: str, asked: Attributes) -> str | None:
    if asked.verb == "create" and not asked.subresource:
        named = asked.body_name
    elif asked.verb in ("update", "patch") and asked.subresource in ("", "status"):
        named = asked.name
    else:
        return "a node may only register itself and report its own status"
    return None if named == node else f"node {node} may not write the Node {named!r}"


def _listing_refusal(node: str, asked: Attributes) -> str | None:
    """Of what is bound to nodes, a node is shown its own only."""
    own = asked.asked_node == node
    return None if own else f"node {node} asks for {asked.resource} with the field selector spec.nodeName={node}"


def _referred_refusal(node: str, asked: Attributes) -> str | None:
    if asked.verb not in READS or asked.subresource:
        return f"a node may only read {asked.resource}"
    return None if asked.needed else f"no pod on node {node} refers to such an object: name one with metadata.name"


def _own_query_refusal(node: str, asked: Attributes) -> str | None:
    if asked.verb in ("list", "watch"):
        return _listing_refusal(node, asked)
    reads = asked.verb == "get" and asked.subresource in ("", "status")
    answers = asked.verb in ("update", "patch") and asked.subresource == "status"
    if not (reads or answers):
        return "a node may only read and answer queries to it"
    return None if asked.bound_to in (None, node) else f"the query is not to node {node}"


def _own_event_refusal(node: str, asked: Attributes) -> str | None:
    if asked.verb == "create" and not asked.subresource:
        told_by: str | None = asked.body_host
    elif asked.verb in ("update", "patch") and not asked.subresource:
        told_by = asked.bound_to
    else:
        return "a node may only tell events"
    return None if told_by in (None, node) else f"node {node} tells events with itself as source.host"


def _token_refusal(node: str, asked: Attributes) -> str | None:
    if (asked.verb, asked.subresource) != ("create", "token"):
        return "a node may only ask for tokens of service accounts"
    return None if asked.needed else f"the token is to be bound to a pod on node {node} that has this account"


def _own_lease_refusal(node: str, asked: Attributes) -> str | None:
    if asked.namespace != NODE_LEASES or asked.verb not in ("get", "create", "update", "patch") or asked.subresource:
        return f"a node may only read and renew its own lease in {NODE_LEASES}"
    named = asked.body_name if asked.verb == "create" else asked.name
    return None if named == node else f"node {node} may not renew the lease {named!r}"


def _own_drivers_refusal(node: str, asked: Attributes) -> str | None:
    if asked.verb not in ("get", "create", "update", "patch", "delete") or asked.subresource:
        return "a node may only read and write its own CSINode"
    named = asked.body_name if asked.verb == "create" else asked.name
    return None if named == node else f"node {node} may not read or write the CSINode {named!r}"


def _own_slices_refusal(node: str, asked: Attributes) -> str | None:
    if asked.verb in ("list", "watch", "deletecollection"):
        return _listing_refusal(node, asked)
    if asked.verb not in ("get", "delete"):
        return "a node may only read and delete the ResourceSlices that are about it; their driver makes them"
    return None if asked.bound_to in (None, node) else f"the ResourceSlice is not about node {node}"


def _own_pod_refusal(node: str, asked: Attributes) -> str | None:
    if asked.verb in ("list", "watch"):
        return _listing_refusal(node, asked)
    if asked.verb == "create" and not asked.subresource:
        return _mirror_refusal(node, asked)
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


def _mirror_refusal(node: str, asked: Attributes) -> str | None:
    if not asked.node_uid:
        return f"node {node} has not registered"
    return "the body is no Pod" if asked.pod is None else creation_refusal(asked.pod, node, asked.node_uid)


def _review_refusal(node: str, asked: Attributes) -> str | None:
    """A node asks who its callers are, and what they may do."""
    del node
    return None if asked.verb == "create" else "a node may only ask for reviews"


_NODE_RULES: Mapping[tuple[str, str], Callable[[str, Attributes], str | None]] = {
    ("", "nodes"): _own_node_refusal,
    ("", "serviceaccounts"): _token_refusal,
    ("", "pods"): _own_pod_refusal,
    ("podlane.io", "nodequeries"): _own_query_refusal,
    ("", "events"): _own_event_refusal,
    ("coordination.k8s.io", "leases"): _own_lease_refusal,
    ("storage.k8s.io", "csinodes"): _own_drivers_refusal,
    ("resource.k8s.io", "resourceslices"): _own_slices_refusal,
    ("authentication.k8s.io", "tokenreviews"): _review_refusal,
    ("authorization.k8s.io", "subjectaccessreviews"): _review_refusal,
    ("authorization.k8s.io", "localsubjectaccessreviews"): _review_refusal,
}

OF_NODES = frozenset((*_NODE_RULES, *SHARED_WITH_NODES, *FOR_PODS))
"""(group, plural) of what a node has rules of its own for; of these, roles give it nothing more."""
