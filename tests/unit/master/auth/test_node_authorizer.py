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


def node_request(
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
LOCAL = ("podlane.io", "localvolumes")
LEASE = ("coordination.k8s.io", "leases")
DRIVERS = ("storage.k8s.io", "csinodes")
SLICES = ("resource.k8s.io", "resourceslices")

ALLOWED_TO_NODES = [
    node_request("watch", "storage.k8s.io", "csidrivers"),
    node_request("list", "node.k8s.io", "runtimeclasses"),
    node_request("get", *DRIVERS, name="n1"),
    node_request("create", *DRIVERS),
    node_request("patch", *DRIVERS, name="n1"),
    node_request("deletecollection", *SLICES, selected_node="n1"),
    node_request("watch", *SLICES, selected_node="n1"),
    node_request("watch", *QUERY, selected_node="n1"),
    node_request("watch", *LOCAL, selected_node="n1"),
    node_request("get", *LOCAL, name="pvc-1", bound_node="n1"),
    node_request("update", *LOCAL, subresource="status", name="pvc-1", bound_node="n1"),
    node_request("update", *QUERY, subresource="status", name="q", bound_node="n1"),
    node_request("list", resource="nodes"),
    node_request("watch", resource="namespaces"),
    node_request("get", NETWORK, "clusternetworks", name="default"),
    node_request("list", NETWORK, "hostsubnets"),
    node_request("watch", NETWORK, "netnamespaces"),
    node_request("watch", "discovery.k8s.io", "endpointslices"),
    node_request("list", "podlane.io", "podaddresses"),
    node_request("create", resource="nodes"),
    node_request("update", resource="nodes", name="n1"),
    node_request("patch", resource="nodes", name="n1", subresource="status"),
    node_request("list", resource="pods", selected_node="n1"),
    node_request("watch", resource="pods", selected_node="n1", namespace="red"),
    node_request("get", resource="pods", namespace="red", name="p", bound_node="n1"),
    node_request("get", resource="pods", namespace="red", name="gone", bound_node=None),
    node_request("patch", resource="pods", namespace="red", name="p", subresource="status", bound_node="n1"),
    node_request("update", resource="pods", namespace="red", name="p", subresource="status", bound_node="n1"),
    node_request("delete", resource="pods", namespace="red", name="p", bound_node="n1"),
    node_request("get", *LEASE, namespace="kube-node-lease", name="n1"),
    node_request("create", *LEASE, namespace="kube-node-lease"),
    node_request("update", *LEASE, namespace="kube-node-lease", name="n1"),
    node_request("patch", resource="events", namespace="red", name="p.1", bound_node="n1"),
    node_request("patch", resource="events", namespace="red", name="gone", bound_node=None),
    node_request("get", resource="configmaps", namespace="red", name="c", is_referenced=True),
    node_request("list", resource="configmaps", namespace="red", is_referenced=True),
    node_request("watch", resource="secrets", namespace="red", is_referenced=True),
    node_request("get", resource="persistentvolumes", name="disk", is_referenced=True),
    node_request("watch", resource="persistentvolumeclaims", namespace="red", is_referenced=True),
]

REFUSED_TO_NODES = [
    node_request("update", "discovery.k8s.io", "endpointslices", namespace="red", name="s"),
    node_request("delete", "storage.k8s.io", "csidrivers", name="d"),
    node_request("create", "node.k8s.io", "runtimeclasses"),
    node_request("get", *DRIVERS, name="n2"),
    node_request("list", *DRIVERS),
    node_request("deletecollection", *SLICES),
    node_request("deletecollection", *SLICES, selected_node="n2"),
    node_request("list", *SLICES),
    node_request("delete", *SLICES, name="s", bound_node="n2"),
    node_request("create", *SLICES),
    node_request("list", *LOCAL),
    node_request("watch", *LOCAL, selected_node="n2"),
    node_request("get", *LOCAL, name="pvc-1", bound_node="n2"),
    node_request("update", *LOCAL, subresource="status", name="pvc-1", bound_node="n2"),
    node_request("update", *LOCAL, name="pvc-1", bound_node="n1"),
    node_request("patch", *LOCAL, subresource="status", name="pvc-1", bound_node="n1"),
    node_request("create", *LOCAL),
    node_request("delete", *LOCAL, name="pvc-1", bound_node="n1"),
    node_request("list", *QUERY),
    node_request("watch", *QUERY, selected_node="n2"),
    node_request("get", *QUERY, name="q", bound_node="n2"),
    node_request("update", *QUERY, subresource="status", name="q", bound_node="n2"),
    node_request("update", *QUERY, name="q", bound_node="n1"),
    node_request("create", *QUERY),
    node_request("delete", *QUERY, name="q", bound_node="n1"),
    node_request("update", resource="nodes", name="n2"),
    node_request("patch", resource="nodes", name="n2", subresource="status"),
    node_request("delete", resource="nodes", name="n1"),
    node_request("deletecollection", resource="nodes"),
    node_request("list", resource="pods"),
    node_request("list", resource="pods", selected_node="n2"),
    node_request("get", resource="pods", namespace="red", name="p", bound_node="n2"),
    node_request("get", resource="pods", namespace="red", name="p", bound_node=""),
    node_request("create", resource="pods", namespace="red", name="p", subresource="status"),
    node_request("create", resource="pods", namespace="red", name="p", subresource="binding", bound_node="n1"),
    node_request("update", resource="pods", namespace="red", name="p", bound_node="n1"),
    node_request("patch", resource="pods", namespace="red", name="p", bound_node="n1"),
    node_request("patch", resource="pods", namespace="red", name="p", subresource="status", bound_node="n2"),
    node_request("delete", resource="pods", namespace="red", name="p", bound_node="n2"),
    node_request("deletecollection", resource="pods", namespace="red", selected_node="n1"),
    node_request("create", resource="namespaces"),
    node_request("update", NETWORK, "hostsubnets", name="n1"),
    node_request("patch", NETWORK, "netnamespaces", name="red"),
    node_request("create", NETWORK, "hostsubnets"),
    node_request("list", resource="secrets"),
    node_request("update", *LEASE, namespace="kube-node-lease", name="n2"),
    node_request("update", *LEASE, namespace="red", name="n1"),
    node_request("list", *LEASE, namespace="kube-node-lease"),
    node_request("delete", *LEASE, namespace="kube-node-lease", name="n1"),
    node_request("patch", resource="events", namespace="red", name="p.1", bound_node="n2"),
    node_request("patch", resource="events", namespace="red", name="p.1", bound_node=""),
    node_request("list", resource="events"),
    node_request("delete", resource="events", namespace="red", name="p.1", bound_node="n1"),
    node_request("get", resource="secrets", namespace="red", name="s"),
    node_request("list", resource="persistentvolumes"),
    node_request(
        "patch", resource="persistentvolumeclaims", namespace="red", name="c", subresource="status", is_referenced=True
    ),
    node_request("watch", resource="configmaps", namespace="red"),
    node_request("update", resource="configmaps", namespace="red", name="c", is_referenced=True),
    node_request("create", resource="secrets", namespace="red", is_referenced=True),
    node_request("deletecollection", resource="secrets", namespace="red", is_referenced=True),
]


@pytest.mark.parametrize(("attributes", "access"), ALLOWED_TO_NODES, ids=str)
def test_node_is_authorized_for_what_it_needs(attributes: Attributes, access: NodeAccess) -> None:
    assert may(NODE, attributes, access)


@pytest.mark.parametrize(("attributes", "access"), REFUSED_TO_NODES, ids=str)
def test_node_is_denied_everything_else(attributes: Attributes, access: NodeAccess) -> None:
    assert not may(NODE, attributes, access)
