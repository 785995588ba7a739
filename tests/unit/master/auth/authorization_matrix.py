"""The authorization matrix: what every default role, group and node may do with every resource.

`python -m tests.unit.master.auth.authorization_matrix` rewrites `authorization_matrix.txt`; review the difference.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from api.core.node import NODE_LEASES, Namespace
from api.meta.types import ObjectMeta
from master.auth import authorization, rbac, scopes
from master.auth.attributes import AUTHENTICATED, SYSTEM_NODES, Attributes, PathAttributes, User
from master.auth.bootstrap_policy import BINDINGS, CERTIFICATES, ROLES
from master.auth.bootstrap_sccs import BOOTSTRAP_SCCS
from master.auth.node_authorizer import NodeAccess
from master.auth.rbac import BindingMatch
from master.auth.scopes import SCOPES_EXTRA
from master.controllers.actions import Create
from master.controllers.cluster_roles import reconcile
from master.request_info import RequestInfo
from master.resources.oauth import USER_SCOPES
from master.resources.rbac import RBAC_GROUP, ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject
from master.resources.resource import AnyResource
from master.resources.scheme import SERVED
from master.resources.security_context_constraints import SCC_PLURAL, SECURITY_GROUP
from master.resources.virtual import VIRTUAL_RESOURCES
from master.server.discovery import PATHS
from reconcile.generated_file import write_or_check

TABLE = Path(__file__).with_name("authorization_matrix.txt")

PROJECT, OTHER_PROJECT = "red", "blue"
LETTERS = {
    "get": "g",
    "list": "l",
    "watch": "w",
    "create": "c",
    "update": "u",
    "patch": "p",
    "delete": "d",
    "deletecollection": "D",
}
NAMELESS_VERBS = ("list", "watch", "create", "deletecollection")

LEGEND = """\
What the default roles allow. Rewrite: python -m tests.unit.master.auth.authorization_matrix; then review every
changed row.

g get, l list, w watch, c create, u update, p patch, d delete, D deletecollection; * every verb that is served, . none.
The rows are all resources and subresources that discovery lists. Requests for objects in projects are for those in
red. The cells are the decisions of the authorizer about the default roles and bindings; nothing is stored, so filters
of lists and admission are not part of them. A column is derived so:

unauthenticated   no credentials: user system:anonymous, group system:unauthenticated, with the bindings of both.
authenticated     a user without a role, of the group system:authenticated, with its bindings: what a client certificate
                  or a service account has. Source: basic-user, self-access-reviewer, cluster-status,
                  system:oauth-token-deleter and system:scope-impersonation of OpenShift; system:discovery and
                  system:basic-user of Kubernetes.
oauth             the same user with a token of OAuth: also the group system:authenticated:oauth, with
                  self-provisioner (while the setting selfProvisioning is true) and its own tokens.
view, edit, admin the role alone, bound in the project red, without the groups of the user. Source: the aggregated roles
                  of Kubernetes, and of OpenShift for projects, roles and reviews. As there, none has
                  pods/ephemeralcontainers and pods/resize, edit has no roles, and view has no secrets.
cluster-reader, cluster-admin and the roles of the section Components: the role alone, bound in the whole cluster.
node-own          a node, of the groups system:nodes and system:authenticated, that asks for its own objects: itself,
                  its pods, and what they refer to. The node authorizer decides, and for what it does not know the
                  bindings. node-other asks for the objects of another node. Unlike in Kubernetes, a node may not read
                  endpoints and volume attachments and may not evict, because no node agent or kubelet needs it here.
user:*, role:*    a cluster administrator whose token has this scope, so a cell is what the scope leaves. Source: the
                  scope rules of OpenShift. Every scope has discovery. user:info has its own user, and the
                  SelfSubjectReview with which today's clients ask for it. user:check-access has the two reviews of
                  oneself. user:list-projects and user:list-scoped-projects list projects; the first also gets
                  namespaces, so that all are listed. user:full is no limit. role:NAME:PROJECT has the rules of the
                  ClusterRole NAME in one project, with `*` in all projects and the cluster; rules with `*` are dropped
                  whole, and resources that escalate are taken out: secrets, tokens, roles and bindings. Unlike
                  OpenShift, serviceaccounts/token, the roles of rbac.authorization.k8s.io and `impersonate` escalate,
                  too. A final `!` takes nothing out.\
"""


class Column(NamedTuple):
    """A user of the matrix. With a role, it has the rights of that alone, in the namespace if there is one.

    `user.extra` may have the scopes of a token.
    """

    title: str
    user: User = User("amy", frozenset((AUTHENTICATED,)))
    role: str = ""
    namespace: str = ""
    access: NodeAccess = NodeAccess()
    """For nodes: whether the objects are those of the node."""


class Row(NamedTuple):
    """A resource or a subresource, with the verbs that are served. `resource` is None for a virtual resource."""

    group: str
    plural: str
    subresource: str
    namespaced: bool
    verbs: tuple[str, ...]
    resource: AnyResource | None = None

    @property
    def label(self) -> str:
        """Return the name in the table."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


NODE = User("system:node:n1", frozenset((SYSTEM_NODES, AUTHENTICATED)))
USERS = (
    Column("unauthenticated", User()),
    Column("authenticated"),
    Column("oauth", User("amy", frozenset((AUTHENTICATED, "system:authenticated:oauth")))),
    *(Column(role, role=role, namespace=PROJECT) for role in ("view", "edit", "admin")),
    *(Column(role, role=role) for role in ("cluster-reader", "cluster-admin")),
)
COMPONENTS = (
    Column("node-own", NODE, access=NodeAccess("n1", "n1", is_referenced=True)),
    Column("node-other", NODE, access=NodeAccess("n2", "n2")),
    *(
        Column(title, role=role)
        for title, role in (
            ("bootstrapper", "system:node-bootstrapper"),
            ("scheduler", "system:kube-scheduler"),
            ("controllers", "system:kube-controller-manager"),
            ("proxier", "system:node-proxier"),
            ("kubelet-api", "system:kubelet-api-admin"),
            ("provisioner", "system:persistent-volume-provisioner"),
            ("router", "system:router"),
        )
    ),
)


def _scoped(scope: str) -> Column:
    """Return a cluster administrator whose token has one scope."""
    user = User("amy", frozenset((AUTHENTICATED, "system:authenticated:oauth")), extra=((SCOPES_EXTRA, (scope,)),))
    return Column(scope, user, role="cluster-admin")


SCOPES = tuple(
    map(_scoped, (*USER_SCOPES, "role:view:red", "role:edit:red", "role:admin:red", "role:admin:red:!", "role:edit:*"))
)
WHOLE_CLUSTER_SCOPES = tuple(
    map(_scoped, ("role:edit:*:!", "role:cluster-reader:*", "role:cluster-admin:*", "role:cluster-admin:*:!"))
)

# --- decisions --------------------------------------------------------------------------------------------------------


@cache
def rules_of_roles() -> Mapping[str, tuple[PolicyRule, ...]]:
    """Return the rules of every default role, with those of aggregated roles."""
    created = (action.object for action in reconcile((), ()) if isinstance(action, Create))
    return {role.metadata.name: role.rules for role in created if isinstance(role, ClusterRole)}


@cache
def default_matches(user: User) -> tuple[BindingMatch, ...]:
    """Return the default bindings of a user and its groups."""
    keys, rules = set(rbac.user_keys(user)), rules_of_roles()
    return tuple(
        BindingMatch(binding, subject, rules[binding.role_ref.name])
        for binding in BINDINGS
        for subject in binding.subjects
        if rbac.subject_key(subject, "") in keys
    )


def decide(column: Column, attributes: Attributes | PathAttributes) -> bool:
    """Return whether the user of a column may send a request."""
    if scopes.denial(column.user, attributes, rules_of_roles().get) is not None:
        return False
    requested = attributes.namespace if isinstance(attributes, Attributes) else ""
    matches = default_matches(column.user)
    if column.role:
        reference = RoleRef(kind=ClusterRole.KIND, name=column.role)
        binding = ClusterRoleBinding(metadata=ObjectMeta(name="role"), role_ref=reference)
        is_bound = column.namespace in ("", requested)
        matches = (BindingMatch(binding, Subject(), rules_of_roles()[column.role]),) if is_bound else ()
    return authorization.decide(
        column.user, attributes, column.access, lambda wanted: rbac.decide(wanted, matches)
    ).allowed


def attributes_of(column: Column, row: Row, verb: str, project: str = PROJECT, name: str = "") -> Attributes:
    """Return the request of a verb for an object of a row. For a node, it is its own object or another's."""
    own = column.access.selected_node or "x"
    is_namespace = row.resource is not None and row.resource.stored_kind == Namespace.KIND
    name = name or (project if is_namespace else own)
    if verb in NAMELESS_VERBS and not row.subresource:
        name = ""
    if column.access.selected_node and row.plural == "leases":
        project = NODE_LEASES
    namespace = project if row.namespaced else ""
    if row.resource is None:
        return Attributes(verb, row.group, row.plural, row.subresource, namespace, name)
    return authorization.request_attributes(verb, RequestInfo(row.resource, namespace, name, row.subresource), {})


def allowed_verbs(column: Column, row: Row, project: str = PROJECT) -> tuple[str, ...]:
    """Return the served verbs that a column may use on a row."""
    return tuple(verb for verb in row.verbs if decide(column, attributes_of(column, row, verb, project)))


PARTS = ("aggregate-to-", "aggregated-metrics-reader")
"""Marks of roles whose rules are in an aggregated role."""

OTHER_ROLES = tuple(
    Column(role.metadata.name, role=role.metadata.name)
    for role in sorted(ROLES, key=lambda role: role.metadata.name)
    if role.metadata.name not in {column.role for column in (*USERS, *COMPONENTS)}
    and not any(mark in role.metadata.name for mark in PARTS)
)

PATHS_TO_READ = tuple(sorted({*PATHS, "/", "/.well-known/oauth-authorization-server", "/apis/apps/v1", "/other"}))


# --- table ------------------------------------------------------------------------------------------------------------


def rows() -> tuple[Row, ...]:
    """Return every resource and subresource, by API group. Versions of a resource are one row."""
    found: dict[tuple[str, str, str], Row] = {}
    for group, virtual in VIRTUAL_RESOURCES.items():
        for each in virtual:
            found[group, each.plural, ""] = Row(group, each.plural, "", each.namespaced, each.verbs)
    for resource in SERVED:
        parts = [("", resource.verbs), *((part.name, part.verbs) for part in resource.all_subresources)]
        for subresource, verbs in parts:
            key = resource.group, resource.plural, subresource
            known = found[key].verbs if key in found else ()
            served = tuple(verb for verb in LETTERS if verb in (*known, *verbs))
            found[key] = Row(resource.group, resource.plural, subresource, resource.namespaced, served, resource)
    return tuple(found[key] for key in sorted(found))


def letters(row: Row, verbs: Sequence[str]) -> str:
    """Return the verbs of a row as a cell."""
    if not verbs:
        return "."
    return "*" if tuple(verbs) == row.verbs else "".join(LETTERS[verb] for verb in verbs)


def _table(title: str, columns: Sequence[Column]) -> Iterator[str]:
    lines = [(f"## {title}", "served", *(column.title for column in columns))]
    group = None
    for row in rows():
        if row.group != group:
            group = row.group
            lines.append((f"[{group or 'core'}]", *("" for _ in range(len(columns) + 1))))
        served = "".join(LETTERS[verb] for verb in row.verbs)
        lines.append((row.label, served, *(letters(row, allowed_verbs(column, row)) for column in columns)))
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _other_roles() -> Iterator[str]:
    """Yield what the roles without a column allow."""
    yield "## Other roles"
    for column in OTHER_ROLES:
        cells = [
            f"{letters(row, verbs)} {row.label}" + (f".{row.group}" if row.group else "")
            for row in rows()
            if (verbs := allowed_verbs(column, row))
        ]
        paths = [f"get {path}" for path in PATHS_TO_READ if decide(column, PathAttributes("get", path))]
        special = [text for text, request in _special_requests() if decide(column, request)]
        yield f"{column.title}: {'; '.join((*cells, *special, *paths)) or '.'}"


def _special_requests() -> Iterator[tuple[str, Attributes]]:
    """Yield the requests of verbs other than those of the table, and for objects that rules name."""
    yield from _impersonations()
    for plural in ("roles", "clusterroles"):
        for verb in ("bind", "escalate"):
            yield f"{verb} {plural}", Attributes(verb, RBAC_GROUP, plural, namespace=PROJECT, name="x")
    for scc in BOOTSTRAP_SCCS:
        name = scc.metadata.name
        yield f"use scc {name}", Attributes("use", SECURITY_GROUP, SCC_PLURAL, namespace=PROJECT, name=name)
    yield "use priorityclasses", Attributes("use", "scheduling.k8s.io", "priorityclasses", name="system-node-critical")
    for verb in ("approve", "sign"):
        yield f"{verb} signers", Attributes(verb, CERTIFICATES, "signers", name="example.org/x")
    yield from _named_requests()
    for part in ("configz", "healthz", "log", "metrics", "pods", "spec", "stats"):
        yield f"get nodes/{part}", Attributes("get", "", "nodes", part, name="n2")
    for part in ("nodeclient", "selfnodeclient"):
        plural = "certificatesigningrequests"
        yield f"create {plural}/{part}", Attributes("create", CERTIFICATES, plural, part, name="x")


def _impersonations() -> Iterator[tuple[str, Attributes]]:
    for subject in ("users", "groups"):
        yield f"impersonate {subject}", Attributes("impersonate", "", subject, name="x")
    yield (
        "impersonate serviceaccounts",
        Attributes("impersonate", "", "serviceaccounts", namespace=PROJECT, name="x"),
    )
    yield "impersonate user system:admin", Attributes("impersonate", "", "users", name="system:admin")
    yield "impersonate group system:masters", Attributes("impersonate", "", "groups", name="system:masters")
    scopes = Attributes("impersonate", "authentication.k8s.io", "userextras", "scopes.authorization.openshift.io")
    yield "impersonate scopes", scopes


def _named_requests() -> Iterator[tuple[str, Attributes]]:
    """Yield the requests for objects that rules name."""
    rules = (rule for role in ROLES for rule in role.rules if not {"use", "impersonate"} & {*rule.verbs})
    for rule in rules:
        for name, verb in itertools.product(rule.resource_names, rule.verbs):
            group, plural = rule.api_groups[0], rule.resources[0]
            namespace = "kube-system" if plural == "leases" else ""
            yield f"{verb} {plural} {name}", Attributes(verb, group, plural, "", namespace, name)


def _special() -> Iterator[str]:
    yield "## Other verbs, and objects by name"
    for text, request in _special_requests():
        yield f"{text}: {_titles(request)}"


def _path_table() -> Iterator[str]:
    yield "## Paths that are no resource (get)"
    for path in PATHS_TO_READ:
        yield f"{path}: {_titles(PathAttributes('get', path))}"


def _titles(request: Attributes | PathAttributes) -> str:
    """Return the columns that may send a request, scopes included. Roles without a column have a section."""
    columns = (
        column for column in (*USERS, *COMPONENTS, *SCOPES, *WHOLE_CLUSTER_SCOPES) if column.title != "node-other"
    )
    return ", ".join(column.title for column in columns if decide(column, request)) or "."


def document() -> str:
    """Return the whole table."""
    sections: Iterable[Iterable[str]] = (
        (LEGEND,),
        _table("Users", USERS),
        _table("Components", COMPONENTS),
        _table("Scopes", SCOPES),
        _table("Scopes of roles in the whole cluster", WHOLE_CLUSTER_SCOPES),
        _other_roles(),
        _special(),
        _path_table(),
    )
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(TABLE, document(), sys.argv[1:]))
