"""Users, the attributes of a request, and decisions about it; well-known users and groups. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SYSTEM_MASTERS = "system:masters"

KUBELET_CLIENT_USER = "kube-apiserver-kubelet-client"
"""The user that the master is to the servers of nodes, and never at its own door."""
SYSTEM_NODES = "system:nodes"
AUTHENTICATED, UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"
ANONYMOUS = "system:anonymous"
NODE_PREFIX = "system:node:"

READ_VERBS = frozenset(("get", "list", "watch"))
VERBS = READ_VERBS | {"create", "update", "patch", "delete", "deletecollection"}
"""The verbs of requests for objects."""


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
    """A request for a resource, as authorization sees it.

    `verb` is one of get, list, watch, create, update, patch, delete, deletecollection, or a special verb.
    """

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


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
