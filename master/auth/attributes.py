"""Users, the attributes of a request, and decisions about it; well-known users and groups. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from master.resources.rbac import SERVICE_ACCOUNT_PREFIX

SYSTEM_MASTERS = "system:masters"
SYSTEM_CLUSTER_ADMINS = "system:cluster-admins"
"""The group that the default bindings give the role cluster-admin."""

KUBELET_CLIENT_USER = "kube-apiserver-kubelet-client"
"""The user that the master is for kubelets. The API server rejects a client with this certificate."""
FRONT_PROXY_USER = "front-proxy-client"
"""The common name of the certificate that the master shows to aggregated API servers. The API server does not accept
it from a client.
"""
SYSTEM_NODES = "system:nodes"
AUTHENTICATED, UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"
ANONYMOUS = "system:anonymous"
NODE_PREFIX = "system:node:"
SERVICE_ACCOUNT_USER_PREFIX = SERVICE_ACCOUNT_PREFIX


def service_account_groups(namespace: str) -> tuple[str, str]:
    """Return the groups of the service accounts of a namespace, besides that of all authenticated users."""
    return "system:serviceaccounts", f"system:serviceaccounts:{namespace}"


@dataclass(frozen=True, slots=True)
class User:
    """The user of a request, as its client certificate or token names it; `system:anonymous` without one.

    `extra` are further attributes: (key, values).
    """

    name: str = ANONYMOUS
    groups: frozenset[str] = frozenset((UNAUTHENTICATED,))
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def node(self) -> str:
        """Return the name of the node if the user is a kubelet, else an empty string."""
        is_node = SYSTEM_NODES in self.groups and self.name.startswith(NODE_PREFIX)
        return self.name.removeprefix(NODE_PREFIX) if is_node else ""


def connection_owner(user: User, address: str) -> str:
    """Return for whom the connections of a user are counted.

    Service accounts count as their namespace: who may create a pod in a project has the tokens of all its service
    accounts, and may create more of them. Those of kube-system count by the address of the client, because they run on
    every node.
    """
    if not user.name.startswith(SERVICE_ACCOUNT_USER_PREFIX):
        return user.name
    namespace = user.name.rpartition(":")[0]
    return f"{namespace}@{address}" if namespace == f"{SERVICE_ACCOUNT_USER_PREFIX}kube-system" else namespace


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes of a resource request that authorization decides on.

    `verb` is one of get, list, watch, create, update, patch, delete, deletecollection, or a special verb.
    """

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


Authorize = Callable[[User, Attributes], bool]
"""Return whether a user may send a request."""


@dataclass(frozen=True, slots=True)
class PathAttributes:
    """The attributes of a non-resource request. The verb is the method in lower case."""

    verb: str
    path: str


@dataclass(frozen=True, slots=True)
class Decision:
    """An authorization decision. `reason` names the rule that allows the request, or why it is denied if there is more
    to say than user, verb and resource.
    """

    allowed: bool
    reason: str = ""


ALLOWED = Decision(True)


def denial_message(user: User, attributes: Attributes | PathAttributes) -> str:
    """Return the message of a denied request: user, verb, resource and scope."""
    if isinstance(attributes, PathAttributes):
        return f'User "{user.name}" cannot {attributes.verb} path "{attributes.path}"'
    resource = f"{attributes.resource}/{attributes.subresource}" if attributes.subresource else attributes.resource
    scope = f' in the namespace "{attributes.namespace}"' if attributes.namespace else " at the cluster scope"
    return f'User "{user.name}" cannot {attributes.verb} resource "{resource}" in API group "{attributes.group}"{scope}'
