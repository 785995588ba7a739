"""Users, the attributes of a request, and decisions about it; well-known users and groups. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from api.core.pod import Pod

SYSTEM_MASTERS = "system:masters"

KUBELET_CLIENT_USER = "kube-apiserver-kubelet-client"
"""The user that the master is to the servers of nodes, and never at its own door."""
SYSTEM_NODES = "system:nodes"
AUTHENTICATED, UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"
ANONYMOUS = "system:anonymous"
NODE_PREFIX = "system:node:"

READ_VERBS = frozenset(("get", "list", "watch"))


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
        is_node = SYSTEM_NODES in self.groups and self.name.startswith(NODE_PREFIX)
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


def denial_message(user: User, asked: Attributes | PathAttributes) -> str:
    """The sentence of a refusal: who, what, where."""
    if isinstance(asked, PathAttributes):
        return f'User "{user.name}" cannot {asked.verb} path "{asked.path}"'
    what = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
    where = f' in the namespace "{asked.namespace}"' if asked.namespace else " at the cluster scope"
    return f'User "{user.name}" cannot {asked.verb} resource "{what}" in API group "{asked.group}"{where}'
