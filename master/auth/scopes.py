"""Scopes of OAuth tokens: what a token is good for, of all that its user may do. Pure.

A request must be allowed by a scope of its token, and then by the roles of the user. A user without scopes, such as one
with a client certificate, is not limited. Source: the scope authorizer of OpenShift.
"""

from __future__ import annotations

from collections.abc import Callable

from master.auth import rbac
from master.auth.attributes import Attributes, Decision, PathAttributes, User
from master.resources.legacy_rbac import AUTHORIZATION_GROUP
from master.resources.namespaces import PROJECT_GROUP
from master.resources.oauth import (
    ALL_NAMESPACES,
    OAUTH_GROUP,
    USER_CHECK_ACCESS,
    USER_FULL,
    USER_INFO,
    USER_LIST_PROJECTS,
    USER_LIST_SCOPED_PROJECTS,
    RoleScope,
    parse_role_scope,
)
from master.resources.rbac import RBAC_GROUP, PolicyRule
from master.resources.users import CURRENT_USER, USER_GROUP

SCOPES_EXTRA = "scopes.authorization.openshift.io"
"""The key of the scopes in the extra attributes of a user."""

ClusterRoleRules = Callable[[str], tuple[PolicyRule, ...] | None]
"""Return the rules of a ClusterRole by its name; None if it does not exist."""

_DISCOVERY_PATHS = (
    "/", "/version", "/version/*", "/api", "/api/*", "/apis", "/apis/*", "/oapi", "/oapi/*", "/openapi", "/openapi/*",
    "/swaggerapi", "/swaggerapi/*", "/swagger.json", "/.well-known", "/.well-known/*",
)  # fmt: skip
_DISCOVERY = PolicyRule(verbs=("get",), non_resource_urls=_DISCOVERY_PATHS)
"""What every scope allows."""


def _rule(verbs: str, group: str, resource: str, name: str = "") -> PolicyRule:
    return PolicyRule(
        verbs=tuple(verbs.split()),
        api_groups=(group,),
        resources=(resource,),
        resource_names=(name,) if name else (),
    )


_PROJECTS = _rule("list watch", PROJECT_GROUP, "projects")
_RULES: dict[str, tuple[PolicyRule, ...]] = {
    USER_INFO: (
        _rule("get", USER_GROUP, "users", CURRENT_USER),
        _rule("create", "authentication.k8s.io", "selfsubjectreviews"),
    ),
    USER_CHECK_ACCESS: (
        _rule("create", "authorization.k8s.io", "selfsubjectaccessreviews"),
        _rule("create", AUTHORIZATION_GROUP, "selfsubjectrulesreviews"),
    ),
    USER_LIST_SCOPED_PROJECTS: (_PROJECTS,),
    USER_LIST_PROJECTS: (_PROJECTS, _rule("get", "", "namespaces")),
    USER_FULL: rbac.ALL_RULES,
}

_ROLE_RESOURCES = frozenset(("roles", "rolebindings", "clusterroles", "clusterrolebindings"))
_ESCALATING_RESOURCES = frozenset(
    (
        ("", "secrets"),
        ("", "serviceaccounts/token"),
        *((group, name) for group in ("", OAUTH_GROUP) for name in ("oauthaccesstokens", "oauthauthorizetokens")),
        *((group, name) for group in ("", AUTHORIZATION_GROUP, RBAC_GROUP) for name in _ROLE_RESOURCES),
        *((group, "imagestreams/secrets") for group in ("", "image.openshift.io")),
        ("network.openshift.io", "service/externalips"),
    )
)
"""(group, resource) with which a client could get rights beyond its scopes.

OpenShift lists neither the roles of rbac.authorization.k8s.io nor the tokens of service accounts here. They give the
same rights.
"""


def scopes_of(user: User) -> tuple[str, ...] | None:
    """Return the scopes of a user's token; None if the user is not limited by scopes."""
    return next((values for key, values in user.extra if key == SCOPES_EXTRA), None)


def is_limited(user: User) -> bool:
    """Return whether the user may do less than its roles allow."""
    scopes = scopes_of(user)
    return scopes is not None and USER_FULL not in scopes


def denial(user: User, attributes: Attributes | PathAttributes, role_rules: ClusterRoleRules) -> Decision | None:
    """Return the denial of a request that no scope of the user's token allows; None if the roles decide."""
    scopes = scopes_of(user)
    if scopes is None or any(_allows(scope, attributes, role_rules) for scope in scopes):
        return None
    return Decision(False, f"scopes [{' '.join(scopes)}] prevent this action")


def _allows(scope: str, attributes: Attributes | PathAttributes, role_rules: ClusterRoleRules) -> bool:
    if rbac.allows(_DISCOVERY, attributes):
        return True
    if (role_scope := parse_role_scope(scope)) is None:
        return any(rbac.allows(rule, attributes) for rule in _RULES.get(scope, ()))
    namespace = attributes.namespace if isinstance(attributes, Attributes) else ""
    if role_scope.namespace not in (ALL_NAMESPACES, namespace):
        return False
    rules = role_rules(role_scope.role) or ()
    return any(_permits(rule, attributes, role_scope) for rule in rules)


def _permits(rule: PolicyRule, attributes: Attributes | PathAttributes, scope: RoleScope) -> bool:
    """Return whether a rule of the role of a scope allows a request.

    Unless the scope says so, rules with `*` and requests for escalating resources are left out. An impersonated user
    has no scopes, so the right to impersonate is escalating, too.
    """
    if not rbac.allows(rule, attributes):
        return False
    if scope.is_escalating:
        return True
    if {"*", "impersonate"} & {*rule.verbs, *rule.api_groups, *rule.resources}:
        return False
    if isinstance(attributes, PathAttributes):
        return True
    resource, subresource = attributes.resource, attributes.subresource
    name = f"{resource}/{subresource}" if subresource else resource
    return name in rule.resources and (attributes.group, name) not in _ESCALATING_RESOURCES
