"""What the default roles allow is what the table in the repository says, and what Kubernetes and OpenShift promise."""

from __future__ import annotations

import difflib

import pytest

from master.auth.attributes import SYSTEM_MASTERS, Attributes, User
from master.resources.resource import READ_VERBS
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
