"""Scopes: what a token with each of them may do, and that no scope adds to what the roles of its user allow."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from master.auth import rbac
from master.auth.attributes import AUTHENTICATED, SYSTEM_MASTERS, Attributes, PathAttributes, User
from master.auth.bootstrap_policy import ROLES
from master.auth.scopes import SCOPES_EXTRA, denial, is_limited, scopes_of
from master.controllers.cluster_roles import reconcile
from master.resources.rbac import ClusterRole, PolicyRule

ROLES_BY_NAME: dict[str, tuple[PolicyRule, ...]] = {role.metadata.name: role.rules for role in ROLES}


@cache
def rules_of(name: str) -> tuple[PolicyRule, ...] | None:
    """Return the rules of a role of a new cluster; those of `impersonator` and `mixed`; None without such a role."""
    extra = {
        "impersonator": (
            PolicyRule(verbs=("impersonate",), api_groups=("",), resources=("users", "groups")),
            PolicyRule(verbs=("get", "impersonate"), api_groups=("",), resources=("pods",)),
        ),
        "mixed": (
            PolicyRule(verbs=("get",), api_groups=("", "oauth.openshift.io"), resources=("pods", "secrets")),
            PolicyRule(verbs=("get",), api_groups=("",), resources=("*/status",)),
            PolicyRule(verbs=("get",), non_resource_urls=("/metrics",)),
        ),
    }
    return extra[name] if name in extra else _aggregated().get(name)


@cache
def _aggregated() -> dict[str, tuple[PolicyRule, ...]]:
    roles: dict[str, ClusterRole] = {}
    for _ in range(3):
        written = [write.object for write in reconcile(list(roles.values()), [])]
        roles.update({role.metadata.name: role for role in written if isinstance(role, ClusterRole)})
    return {name: role.rules for name, role in roles.items()}


def token_user(*scopes: str) -> User:
    return User("alice", frozenset((AUTHENTICATED,)), "1", ((SCOPES_EXTRA, scopes),))


def of_kind(text: str) -> Attributes | PathAttributes:
    """Return the attributes of `VERB PATH` or `VERB GROUP/RESOURCE[/SUBRESOURCE] [NAMESPACE] [NAME]`; `-` is none."""
    verb, target, *rest = text.split()
    if target.startswith("/"):
        return PathAttributes(verb, target)
    group, resource, *subresource = target.split("/")
    namespace, name = (*rest, "", "")[:2]
    return Attributes(verb, group.strip("-"), resource, "/".join(subresource), namespace.strip("-"), name)


REQUESTS = (
    "get /version",
    "get /apis/apps/v1",
    "get /metrics",
    "post /version",
    "get user.openshift.io/users - ~",
    "get user.openshift.io/users - bob",
    "create authentication.k8s.io/selfsubjectreviews",
    "create authorization.k8s.io/selfsubjectaccessreviews",
    "create authorization.openshift.io/selfsubjectrulesreviews",
    "list project.openshift.io/projects",
    "get -/namespaces red red",
    "get -/pods red web",
    "get -/pods blue web",
    "list -/pods",
    "create -/pods/exec red web",
    "delete -/pods red web",
    "get -/secrets red s",
    "create -/serviceaccounts/token red a",
    "create rbac.authorization.k8s.io/rolebindings red",
    "create authorization.openshift.io/rolebindings red",
    "list oauth.openshift.io/oauthaccesstokens",
    "delete oauth.openshift.io/useroauthaccesstokens - sha256~x",
    "impersonate -/users - system:admin",
)

TABLE = {
    "user:info": "yy..y.y................",
    "user:check-access": "yy.....yy..............",
    "user:list-scoped-projects": "yy.......y.............",
    "user:list-projects": "yy.......yy............",
    "user:full": "yyyyyyyyyyyyyyyyyyyyyyy",
    "role:view:red": "yy........yy...........",
    "role:view:*": "yy........yyyy.........",
    "role:edit:red": "yy........yy..yy.......",
    "role:edit:red:!": "yy........yy..yyyy.....",
    "role:admin:red": "yy........yy..yy.......",
    "role:admin:red:!": "yy........yy..yyyyyy...",
    "role:cluster-admin:red": "yy.....................",
    "role:cluster-admin:red:!": "yy........yy..yyyyyy...",
    "role:cluster-admin:*": "yy.....................",
    "role:cluster-admin:*:!": "yyyyyyyyyyyyyyyyyyyyyyy",
    "role:impersonator:*": "yy.....................",
    "role:impersonator:*:!": "yy.........yy.........y",
    "role:mixed:red": "yy.........y...........",
    "role:mixed:red:!": "yy.........y....y......",
    "role:mixed:*": "yyy........yy..........",
    "role:none:red": "yy.....................",
    "role:none:*:!": "yy.....................",
    "unknown": "yy.....................",
}


@pytest.mark.parametrize("scope", TABLE)
def test_scope_allows_its_requests_and_no_other(scope: str) -> None:
    """A column of the table is a request."""
    decisions = [denial(token_user(scope), of_kind(request), rules_of) for request in REQUESTS]
    actual = "".join("y" if decision is None else "." for decision in decisions)
    assert actual == TABLE[scope], [
        request for request, a, b in zip(REQUESTS, actual, TABLE[scope], strict=True) if a != b
    ]
    for decision in decisions:
        if decision is not None:
            assert not decision.allowed
            assert decision.reason == f"scopes [{scope}] prevent this action"


def test_denial_names_all_scopes() -> None:
    decision = denial(token_user("user:info", "role:view:red"), of_kind("get -/secrets red s"), rules_of)
    assert decision is not None
    assert decision.reason == "scopes [user:info role:view:red] prevent this action"


def test_user_without_scopes_is_not_limited() -> None:
    for user in (User("system:admin", frozenset((SYSTEM_MASTERS,))), User("alice", extra=(("other", ("user:info",)),))):
        assert scopes_of(user) is None
        assert not is_limited(user)
        assert all(denial(user, of_kind(request), rules_of) is None for request in REQUESTS)


def test_token_without_a_scope_is_good_for_discovery_only() -> None:
    assert is_limited(token_user())
    allowed = [request for request in REQUESTS if denial(token_user(), of_kind(request), rules_of) is None]
    assert allowed == []


@pytest.mark.parametrize(
    ("scopes", "expected"),
    [(("user:full",), False), (("user:info", "user:full"), False), (("user:info",), True), (("USER:FULL",), True)],
)
def test_token_is_limited_unless_it_has_full_access(scopes: tuple[str, ...], expected: bool) -> None:
    assert is_limited(token_user(*scopes)) == expected


# --- properties -------------------------------------------------------------------------------------------------------

SCOPES = st.one_of(
    st.sampled_from(sorted(TABLE)),
    st.builds(
        lambda role, namespace, end: f"role:{role}:{namespace}{end}",
        st.sampled_from(["view", "edit", "admin", "cluster-admin", "impersonator", "mixed", "none"]),
        st.sampled_from(["red", "blue", "*"]),
        st.sampled_from(["", ":!"]),
    ),
)
ATTRIBUTES = st.one_of(
    st.sampled_from(REQUESTS).map(of_kind),
    st.builds(
        Attributes,
        st.sampled_from(
            ["get", "list", "watch", "create", "patch", "delete", "deletecollection", "impersonate", "bind"]
        ),
        st.sampled_from(["", "apps", "oauth.openshift.io", "rbac.authorization.k8s.io", "user.openshift.io"]),
        st.sampled_from(["pods", "secrets", "deployments", "oauthaccesstokens", "clusterroles", "users", "groups"]),
        st.sampled_from(["", "exec", "token", "status"]),
        st.sampled_from(["", "red", "blue"]),
        st.sampled_from(["", "x", "~"]),
    ),
)


def allows(scopes: tuple[str, ...], request: Attributes | PathAttributes) -> bool:
    return denial(token_user(*scopes), request, rules_of) is None


@settings(max_examples=100)
@given(st.lists(SCOPES, max_size=3), st.lists(SCOPES, max_size=3), ATTRIBUTES)
def test_more_scopes_allow_at_least_as_much(
    few: list[str], more: list[str], request: Attributes | PathAttributes
) -> None:
    both = (*few, *more)
    assert allows(tuple(few), request) <= allows(both, request) <= allows((*both, "user:full"), request)
    assert allows(both, request) == any(allows((scope,), request) for scope in both)


@settings(max_examples=100)
@given(st.sampled_from(["view", "edit", "admin", "cluster-admin", "impersonator", "mixed"]), ATTRIBUTES)
def test_role_scope_allows_no_more_than_its_role(role: str, request: Attributes | PathAttributes) -> None:
    discovery = allows((), request) or allows(("role:none:*",), request)
    by_role = discovery or any(rbac.allows(rule, request) for rule in rules_of(role) or ())
    one, everywhere = allows((f"role:{role}:red",), request), allows((f"role:{role}:*",), request)
    assert one <= everywhere <= allows((f"role:{role}:*:!",), request) == by_role
    assert one <= allows((f"role:{role}:red:!",), request)
    if isinstance(request, Attributes) and request.namespace != "red":
        assert not allows((f"role:{role}:red:!",), request)
