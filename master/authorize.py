"""Who may do what. Pure.

Three kinds of callers are known: members of `system:masters` may do everything; a node, by its certificate
`system:node:NAME` in `system:nodes`, may do what a node needs and no more; everybody else may ask how the server is.
"""

from __future__ import annotations

from dataclasses import dataclass

from api.leases import NODE_LEASES
from api.objects import Pod
from api.static_pods import creation_refusal

MASTERS = "system:masters"
NODES = "system:nodes"
NODE_PREFIX = "system:node:"

ANYBODY_READS = frozenset(("/healthz", "/livez", "/openid/v1/jwks", "/readyz", "/version"))

SHARED_WITH_NODES = frozenset(
    (
        ("", "nodes"),
        ("", "namespaces"),
        ("", "services"),
        ("network.openshift.io", "clusternetworks"),
        ("network.openshift.io", "hostsubnets"),
        ("network.openshift.io", "netnamespaces"),
    )
)
"""(group, plural) of what every node reads, whole."""

FOR_PODS = frozenset(("", name) for name in ("configmaps", "secrets", "persistentvolumes", "persistentvolumeclaims"))
"""(group, plural) of what a node reads one by one, while a pod that is bound to it refers to it."""

READS = frozenset(("get", "list", "watch"))


@dataclass(frozen=True, slots=True)
class User:
    """Who asks: the names in the client certificate; without one `system:anonymous`."""

    name: str = "system:anonymous"
    groups: frozenset[str] = frozenset(("system:unauthenticated",))

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


def may_read_path(user: User, path: str) -> bool:
    """Whether a path that names no resource may be read."""
    if path in ANYBODY_READS or MASTERS in user.groups:
        return True
    discovery = path in ("/api", "/apis", "/") or path.startswith(("/api/", "/apis/", "/openapi/"))
    return bool(user.node) and discovery


def refusal(user: User, asked: Attributes) -> str | None:
    """Why the user may not do that: a sentence, or None when it is allowed."""
    if MASTERS in user.groups:
        return None
    if user.node:
        reason = _node_refusal(user.node, asked)
        return None if reason is None else f"{_who_cannot(user, asked)}: {reason}"
    return _who_cannot(user, asked)


def _who_cannot(user: User, asked: Attributes) -> str:
    what = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
    where = f' in the namespace "{asked.namespace}"' if asked.namespace else " at the cluster scope"
    return f'User "{user.name}" cannot {asked.verb} resource "{what}" in API group "{asked.group}"{where}'


def _node_refusal(node: str, asked: Attributes) -> str | None:
    resource = (asked.group, asked.resource)
    if resource in SHARED_WITH_NODES and asked.verb in READS and asked.subresource in ("", "status"):
        return None
    if resource in FOR_PODS:
        return _referred_refusal(node, asked)
    rules = {
        ("", "nodes"): _own_node_refusal,
        ("", "serviceaccounts"): _token_refusal,
        ("", "pods"): _own_pod_refusal,
        ("podlane.io", "nodequeries"): _own_query_refusal,
        ("", "events"): _own_event_refusal,
        ("coordination.k8s.io", "leases"): _own_lease_refusal,
    }
    return rules[resource](node, asked) if resource in rules else "a node may not do this"


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
    return None if own else f"node {node} reads {asked.resource} with the field selector spec.nodeName={node}"


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
