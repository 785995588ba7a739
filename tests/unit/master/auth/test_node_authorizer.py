"""Authorization of nodes."""

from __future__ import annotations

import pytest

from master.auth.attributes import Attributes, Decision, PathAttributes, User, denial_message
from master.auth.authorization import decide
from master.auth.node_authorizer import NodeAccess

ADMIN = User("system:admin", frozenset(("system:masters",)))
NODE = User("system:node:n1", frozenset(("system:nodes",)))
NOBODY = User()
KNOWN = User("bob", frozenset(("developers",)))
PRETENDER = User("system:node:n1", frozenset(("developers",)))

NETWORK = "network.openshift.io"


NO_ACCESS = NodeAccess()


def may(
    user: User,
    requested: Attributes | PathAttributes,
    access: NodeAccess = NO_ACCESS,
    *,
    roles: bool = False,
) -> bool:
    return decide(user, requested, access, lambda _: Decision(roles)).allowed


def ask(
    verb: str,
    group: str = "",
    resource: str = "",
    *,
    subresource: str = "",
    namespace: str = "",
    name: str = "",
    selected_node: str = "",
    bound_node: str | None = None,
    is_referenced: bool = False,
) -> tuple[Attributes, NodeAccess]:
    return (
        Attributes(verb, group, resource, subresource, namespace, name),
        NodeAccess(selected_node, bound_node, is_referenced),
    )


@pytest.mark.parametrize("user", [NOBODY, KNOWN, PRETENDER])
@pytest.mark.parametrize("attributes", [Attributes("get", resource="pods", name="x"), PathAttributes("get", "/")])
def test_other_users_are_authorized_by_rbac(user: User, attributes: Attributes | PathAttributes) -> None:
    assert not may(user, attributes)
    assert may(user, attributes, roles=True)


def test_rbac_grants_nodes_nothing_under_node_rules() -> None:
    assert not may(NODE, Attributes("delete", resource="nodes", name="n2"), roles=True)
    assert not may(NODE, Attributes("list", resource="secrets"), roles=True)
    assert may(NODE, Attributes("list", "discovery.k8s.io", "endpointslices"), roles=True)
    assert may(NODE, PathAttributes("get", "/apis"), roles=True)
    assert not may(NODE, PathAttributes("get", "/apis"))


def test_denial_names_user_resource_and_namespace() -> None:
    assert denial_message(KNOWN, Attributes("list", resource="pods", namespace="pr")) == (
        'User "bob" cannot list resource "pods" in API group "" in the namespace "pr"'
    )
    assert denial_message(NOBODY, Attributes("delete", "network.openshift.io", "hostsubnets", name="a")) == (
        'User "system:anonymous" cannot delete resource "hostsubnets" in API group "network.openshift.io" '
        "at the cluster scope"
    )
    assert denial_message(KNOWN, PathAttributes("get", "/metrics")) == 'User "bob" cannot get path "/metrics"'


def test_system_masters_may_do_everything() -> None:
    assert may(ADMIN, Attributes("deletecollection", resource="nodes"))
    assert may(ADMIN, PathAttributes("get", "/metrics"))


QUERY = ("podlane.io", "nodequeries")
LEASE = ("coordination.k8s.io", "leases")
DRIVERS = ("storage.k8s.io", "csinodes")
SLICES = ("resource.k8s.io", "resourceslices")

ALLOWED_TO_NODES = [
    ask("watch", "storage.k8s.io", "csidrivers"),
    ask("list", "node.k8s.io", "runtimeclasses"),
    ask("get", *DRIVERS, name="n1"),
    ask("create", *DRIVERS),
    ask("patch", *DRIVERS, name="n1"),
    ask("deletecollection", *SLICES, selected_node="n1"),
    ask("watch", *SLICES, selected_node="n1"),
    ask("watch", *QUERY, selected_node="n1"),
    ask("update", *QUERY, subresource="status", name="q", bound_node="n1"),
    ask("list", resource="nodes"),
    ask("watch", resource="namespaces"),
    ask("get", NETWORK, "clusternetworks", name="default"),
    ask("list", NETWORK, "hostsubnets"),
    ask("watch", NETWORK, "netnamespaces"),
    ask("watch", "discovery.k8s.io", "endpointslices"),
    ask("list", "podlane.io", "podaddresses"),
    ask("create", resource="nodes"),
    ask("update", resource="nodes", name="n1"),
    ask("patch", resource="nodes", name="n1", subresource="status"),
    ask("list", resource="pods", selected_node="n1"),
    ask("watch", resource="pods", selected_node="n1", namespace="red"),
    ask("get", resource="pods", namespace="red", name="p", bound_node="n1"),
    ask("get", resource="pods", namespace="red", name="gone", bound_node=None),
    ask("patch", resource="pods", namespace="red", name="p", subresource="status", bound_node="n1"),
    ask("update", resource="pods", namespace="red", name="p", subresource="status", bound_node="n1"),
    ask("delete", resource="pods", namespace="red", name="p", bound_node="n1"),
    ask("get", *LEASE, namespace="kube-node-lease", name="n1"),
    ask("create", *LEASE, namespace="kube-node-lease"),
    ask("update", *LEASE, namespace="kube-node-lease", name="n1"),
    ask("patch", resource="events", namespace="red", name="p.1", bound_node="n1"),
    ask("patch", resource="events", namespace="red", name="gone", bound_node=None),
    ask("get", resource="configmaps", namespace="red", name="c", is_referenced=True),
    ask("list", resource="configmaps", namespace="red", is_referenced=True),
    ask("watch", resource="secrets", namespace="red", is_referenced=True),
    ask("get", resource="persistentvolumes", name="disk", is_referenced=True),
    ask("watch", resource="persistentvolumeclaims", namespace="red", is_referenced=True),
]

REFUSED_TO_NODES = [
    ask("update", "discovery.k8s.io", "endpointslices", namespace="red", name="s"),
    ask("delete", "storage.k8s.io", "csidrivers", name="d"),
    ask("create", "node.k8s.io", "runtimeclasses"),
    ask("get", *DRIVERS, name="n2"),
    ask("list", *DRIVERS),
    ask("deletecollection", *SLICES),
    ask("deletecollection", *SLICES, selected_node="n2"),
    ask("list", *SLICES),
    ask("delete", *SLICES, name="s", bound_node="n2"),
    ask("create", *SLICES),
    ask("list", *QUERY),
    ask("watch", *QUERY, selected_node="n2"),
    ask("get", *QUERY, name="q", bound_node="n2"),
    ask("update", *QUERY, subresource="status", name="q", bound_node="n2"),
    ask("update", *QUERY, name="q", bound_node="n1"),
    ask("create", *QUERY),
    ask("delete", *QUERY, name="q", bound_node="n1"),
    ask("update", resource="nodes", name="n2"),
    ask("patch", resource="nodes", name="n2", subresource="status"),
    ask("delete", resource="nodes", name="n1"),
    ask("deletecollection", resource="nodes"),
    ask("list", resource="pods"),
    ask("list", resource="pods", selected_node="n2"),
    ask("get", resource="pods", namespace="red", name="p", bound_node="n2"),
    ask("get", resource="pods", namespace="red", name="p", bound_node=""),
    ask("create", resource="pods", namespace="red", name="p", subresource="status"),
    ask("create", resource="pods", namespace="red", name="p", subresource="binding", bound_node="n1"),
    ask("update", resource="pods", namespace="red", name="p", bound_node="n1"),
    ask("patch", resource="pods", namespace="red", name="p", bound_node="n1"),
    ask("patch", resource="pods", namespace="red", name="p", subresource="status", bound_node="n2"),
    ask("delete", resource="pods", namespace="red", name="p", bound_node="n2"),
    ask("deletecollection", resource="pods", namespace="red", selected_node="n1"),
    ask("create", resource="namespaces"),
    ask("update", NETWORK, "hostsubnets", name="n1"),
    ask("patch", NETWORK, "netnamespaces", name="red"),
    ask("create", NETWORK, "hostsubnets"),
    ask("list", resource="secrets"),
    ask("update", *LEASE, namespace="kube-node-lease", name="n2"),
    ask("update", *LEASE, namespace="red", name="n1"),
    ask("list", *LEASE, namespace="kube-node-lease"),
    ask("delete", *LEASE, namespace="kube-node-lease", name="n1"),
    ask("patch", resource="events", namespace="red", name="p.1", bound_node="n2"),
    ask("patch", resource="events", namespace="red", name="p.1", bound_node=""),
    ask("list", resource="events"),
    ask("delete", resource="events", namespace="red", name="p.1", bound_node="n1"),
    ask("get", resource="secrets", namespace="red", name="s"),
    ask("list", resource="persistentvolumes"),
    ask(
        "patch", resource="persistentvolumeclaims", namespace="red", name="c", subresource="status", is_referenced=True
    ),
    ask("watch", resource="configmaps", namespace="red"),
    ask("update", resource="configmaps", namespace="red", name="c", is_referenced=True),
    ask("create", resource="secrets", namespace="red", is_referenced=True),
    ask("deletecollection", resource="secrets", namespace="red", is_referenced=True),
]


@pytest.mark.parametrize(("attributes", "access"), ALLOWED_TO_NODES, ids=str)
def test_node_is_authorized_for_what_it_needs(attributes: Attributes, access: NodeAccess) -> None:
    assert may(NODE, attributes, access)


@pytest.mark.parametrize(("attributes", "access"), REFUSED_TO_NODES, ids=str)
def test_node_is_denied_everything_else(attributes: Attributes, access: NodeAccess) -> None:
    assert not may(NODE, attributes, access)
