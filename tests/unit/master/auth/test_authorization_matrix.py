"""What the default roles allow is what the table in the repository says, and what Kubernetes and OpenShift promise."""

from __future__ import annotations

import dataclasses
import difflib

import pytest

from api.core.pod import Pod
from master.auth.attributes import SYSTEM_MASTERS, Attributes, User
from master.resources.resource import READ_VERBS
from master.resources.scheme import SERVED
from master.resources.virtual import VIRTUAL_RESOURCES, VirtualResource
from master.server import discovery
from tests.unit.master.auth import authorization_matrix as matrix
from tests.unit.master.auth.authorization_matrix import OTHER_PROJECT, Column, Row, allowed_verbs, decide, rows

COLUMNS = {column.title: column for column in (*matrix.USERS, *matrix.COMPONENTS)}
ROWS = {(row.group, row.label): row for row in rows()}
RBAC, OPENSHIFT_RBAC = "rbac.authorization.k8s.io", "authorization.openshift.io"
ROLES_AND_BINDINGS = [(group, plural) for group in (RBAC, OPENSHIFT_RBAC) for plural in ("roles", "rolebindings")]


def verbs(title: str, group: str, label: str) -> set[str]:
    return set(allowed_verbs(COLUMNS[title], ROWS[group, label]))


def test_roles_allow_what_the_table_says() -> None:
    expected, actual = matrix.TABLE.read_text().splitlines(), matrix.document().splitlines()
    changed = "\n".join(difflib.unified_diff(expected, actual, "authorization_matrix.txt", "roles", n=0, lineterm=""))
    assert not changed, f"review, then run `python -m {matrix.__name__}`:\n{changed}"


def test_view_reads_no_secret_and_writes_nothing() -> None:
    assert verbs("view", "", "secrets") == set()
    assert verbs("view", "", "configmaps") == set(READ_VERBS)
    written = {row for row in rows() if not set(allowed_verbs(COLUMNS["view"], row)) <= set(READ_VERBS)}
    assert written == set()


@pytest.mark.parametrize(
    ("group", "label"),
    [
        *ROLES_AND_BINDINGS,
        ("", "resourcequotas"),
        ("", "limitranges"),
        ("", "namespaces"),
        ("", "namespaces/finalize"),
        ("", "pods/binding"),
        ("", "pods/ephemeralcontainers"),
        ("", "pods/resize"),
        ("", "pods/status"),
        ("", "securitycontextconstraints"),
        ("security.openshift.io", "securitycontextconstraints"),
        (OPENSHIFT_RBAC, "rolebindingrestrictions"),
        ("discovery.k8s.io", "endpointslices"),
        ("", "endpoints"),
        ("project.openshift.io", "projects"),
    ],
)
def test_editor_does_not_write_what_limits_it(group: str, label: str) -> None:
    assert verbs("edit", group, label) <= set(READ_VERBS)
    assert verbs("cluster-admin", group, label) == set(ROWS[group, label].verbs)


@pytest.mark.parametrize(("group", "plural"), ROLES_AND_BINDINGS)
def test_administrator_of_a_project_writes_its_roles(group: str, plural: str) -> None:
    assert verbs("admin", group, plural) == set(ROWS[group, plural].verbs)
    assert verbs("edit", group, plural) == set()


@pytest.mark.parametrize("role", ["view", "edit", "admin"])
def test_role_in_a_project_allows_nothing_elsewhere(role: str) -> None:
    column = COLUMNS[role]
    assert any(allowed_verbs(column, row) for row in rows())
    assert [row.label for row in rows() if allowed_verbs(column, row, OTHER_PROJECT)] == []


def test_admin_contains_edit_and_edit_contains_view() -> None:
    for row in rows():
        allowed = [set(allowed_verbs(COLUMNS[role], row)) for role in ("view", "edit", "admin", "cluster-admin")]
        assert allowed[0] <= allowed[1] <= allowed[2] <= allowed[3], row.label


NOT_READ_BY_CLUSTER_READERS = {
    "secrets",
    "nodes/proxy",
    "pods/attach",
    "pods/ephemeralcontainers",
    "pods/resize",
    "pods/exec",
    "pods/portforward",
    "pods/proxy",
    "services/proxy",
    "certificatesigningrequests/approval",
    "oauthaccesstokens",
    "oauthauthorizetokens",
    "oauthclients",
    "useridentitymappings",
    "useroauthaccesstokens",
}
"""Secrets, and requests that reach into a pod or a node."""


def test_cluster_reader_reads_everything_but_secrets_and_writes_nothing() -> None:
    reader = COLUMNS["cluster-reader"]
    for row in rows():
        readable, allowed = set(row.verbs) & set(READ_VERBS), set(allowed_verbs(reader, row))
        if row.label in NOT_READ_BY_CLUSTER_READERS:
            assert allowed == set(), row.label
        elif not is_virtual(row):
            assert allowed == readable, row.label


def is_virtual(row: Row) -> bool:
    return row.resource is None


def test_anonymous_clients_may_not_read_an_object() -> None:
    assert [row.label for row in rows() if allowed_verbs(COLUMNS["unauthenticated"], row)] == []


@pytest.mark.parametrize("group", ["system:authenticated", "system:unauthenticated"])
def test_anonymous_clients_need_another_right_for_the_proxy(group: str) -> None:
    """As in OpenShift: browsers without credentials would run scripts of pods in the origin of the API."""
    column = Column("reader", User("amy", frozenset((group,))), role="edit")
    requested = Attributes("get", "", "pods", "proxy", "red", "web")
    assert decide(column, requested) == (group == "system:authenticated")


def test_sudoer_becomes_the_administrator_and_nobody_else() -> None:
    sudoer = Column("sudoer", role="sudoer")
    allowed = {
        (kind, name)
        for kind, name in (("users", "system:admin"), ("groups", SYSTEM_MASTERS), ("users", "amy"), ("groups", "dev"))
        if decide(sudoer, Attributes("impersonate", "", kind, name=name))
    }
    assert allowed == {("users", "system:admin"), ("groups", SYSTEM_MASTERS)}
    administrator = Column("system:admin", User("system:admin", frozenset(("system:authenticated",))))
    assert decide(administrator, Attributes("delete", "", "nodes", name="n1"))
    assert not decide(COLUMNS["authenticated"], Attributes("delete", "", "nodes", name="n1"))


def test_node_reads_what_its_pods_need_and_no_more() -> None:
    for label in ("secrets", "configmaps", "persistentvolumes", "persistentvolumeclaims"):
        assert (verbs("node-own", "", label), verbs("node-other", "", label)) == (set(READ_VERBS), set())
    assert verbs("node-other", "", "pods") == {"create"}
    assert verbs("node-own", "", "pods/exec") == set()


SCOPES = {column.title: column for column in (*matrix.SCOPES, *matrix.WHOLE_CLUSTER_SCOPES)}
ESCALATING = {("", "secrets"), ("", "serviceaccounts/token"), *ROLES_AND_BINDINGS} | {
    (group, plural) for group in (RBAC, OPENSHIFT_RBAC) for plural in ("clusterroles", "clusterrolebindings")
}
"""(group, resource) that a scope of a role leaves out, unless it ends with `!`."""


def scoped(scope: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return what a scope allows: (group, label) → verbs."""
    return {key: found for key, row in ROWS.items() if (found := allowed_verbs(SCOPES[scope], row))}


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        ("user:info", {("authentication.k8s.io", "selfsubjectreviews"): ("create",)}),
        (
            "user:check-access",
            {
                ("authorization.k8s.io", "selfsubjectaccessreviews"): ("create",),
                (OPENSHIFT_RBAC, "selfsubjectrulesreviews"): ("create",),
            },
        ),
        ("user:list-scoped-projects", {("project.openshift.io", "projects"): ("list", "watch")}),
        (
            "user:list-projects",
            {
                ("project.openshift.io", "projects"): ("list", "watch"),
                ("", "namespaces"): ("get",),
            },
        ),
        ("role:cluster-admin:*", {}),
        ("user:full", {key: row.verbs for key, row in ROWS.items()}),
        ("role:cluster-admin:*:!", {key: row.verbs for key, row in ROWS.items()}),
    ],
)
def test_scope_allows_these_requests_of_an_administrator_and_no_others(
    scope: str, allowed: dict[tuple[str, str], tuple[str, ...]]
) -> None:
    assert scoped(scope) == allowed


@pytest.mark.parametrize("role", ["view", "edit", "admin"])
def test_scope_of_a_role_allows_what_the_role_allows_without_what_escalates(role: str) -> None:
    in_project = {key: found for key, row in ROWS.items() if (found := allowed_verbs(COLUMNS[role], row))}
    assert scoped(f"role:{role}:red") == {key: found for key, found in in_project.items() if key not in ESCALATING}
    for row in ROWS.values():
        assert allowed_verbs(SCOPES[f"role:{role}:red"], row, OTHER_PROJECT) == (), row.label


def test_scope_that_may_escalate_allows_the_whole_role() -> None:
    assert scoped("role:admin:red:!") == {
        key: found for key, row in ROWS.items() if (found := allowed_verbs(COLUMNS["admin"], row))
    }
    assert scoped("role:admin:red").keys() < scoped("role:admin:red:!").keys()
    assert scoped("role:edit:*").items() < scoped("role:edit:*:!").items()


class Gadget(Pod, frozen=True, kw_only=True):
    """A kind that the table does not have."""

    KIND = "Gadget"
    PLURAL = "gadgets"


def test_a_new_resource_or_subresource_is_missing_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table must be rewritten and reviewed for what is new."""
    pods = next(resource for resource in SERVED if (resource.group, resource.plural) == ("", "pods"))
    more = (*pods.subresources, dataclasses.replace(pods.subresources[0], name="resize"))
    served = (*SERVED, dataclasses.replace(pods, type=Gadget, subresources=more))
    virtual = {**VIRTUAL_RESOURCES, "gadgets.example": (VirtualResource("gadgetreviews", "GadgetReview"),)}
    monkeypatch.setattr(matrix, "SERVED", served)
    monkeypatch.setattr(matrix, "VIRTUAL_RESOURCES", virtual)
    new = {(row.group, row.label) for row in rows()} - ROWS.keys()
    assert {("", "gadgets"), ("", "gadgets/resize"), ("gadgets.example", "gadgetreviews")} <= new
    with pytest.raises(AssertionError, match="gadgets/resize"):
        test_roles_allow_what_the_table_says()


def test_the_table_has_all_that_discovery_lists() -> None:
    listed = set()
    for version in discovery.groups()["groups"]:
        for served in version["versions"]:
            document = discovery.resources(version["name"], served["version"])
            assert document is not None
            listed |= {(version["name"], resource["name"]) for resource in document["resources"]}
    core = discovery.resources("", "v1")
    assert core is not None
    listed |= {("", resource["name"]) for resource in core["resources"]}
    assert listed == ROWS.keys()
