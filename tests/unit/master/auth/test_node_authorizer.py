from __future__ import annotations

import pytest

from api.core.pod import Pod, PodSpec
from api.meta.types import ObjectMeta, OwnerReference
from master.auth.attributes import Attributes, Decision, PathAttributes, User, denial_message
from master.auth.authorization import decide

ADMIN = User("system:admin", frozenset(("system:masters",)))
NODE = User("system:node:n1", frozenset(("system:nodes",)))
NOBODY = User()
KNOWN = User("bob", frozenset(("developers",)))
PRETENDER = User("system:node:n1", frozenset(("developers",)))

NETWORK = "network.openshift.io"


def may(user: User, asked: Attributes | PathAttributes, *, roles: bool = False) -> bool:
    return decide(user, asked, lambda _: Decision(roles)).allowed


@pytest.mark.parametrize("user", [NOBODY, KNOWN, PRETENDER])
@pytest.mark.parametrize(
    "asked", [Attributes("get", resource="pods", name="x", bound_to="n1"), PathAttributes("get", "/")]
)
def test_other_users_are_authorized_by_rbac(user: User, asked: Attributes | PathAttributes) -> None:
    assert not may(user, asked)
    assert may(user, asked, roles=True)


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

MIRROR = Pod(
    metadata=ObjectMeta(
        name="p",
        annotations={"kubernetes.io/config.mirror": "x"},
        owner_references=(OwnerReference(api_version="v1", kind="Node", name="n1", uid="u1"),),
    ),
    spec=PodSpec(node_name="n1"),
)

ALLOWED_TO_NODES = [
    Attributes("watch", "storage.k8s.io", "csidrivers"),
    Attributes("list", "node.k8s.io", "runtimeclasses"),
    Attributes("get", *DRIVERS, name="n1"),
    Attributes("create", *DRIVERS, body_name="n1"),
    Attributes("patch", *DRIVERS, name="n1"),
    Attributes("deletecollection", *SLICES, asked_node="n1"),
    Attributes("watch", *SLICES, asked_node="n1"),
    Attributes("delete", *SLICES, name="s", bound_to="n1"),
    Attributes("watch", *QUERY, asked_node="n1"),
    Attributes("update", *QUERY, subresource="status", name="q", bound_to="n1"),
    Attributes("list", resource="nodes"),
    Attributes("watch", resource="namespaces"),
    Attributes("get", NETWORK, "clusternetworks", name="default"),
    Attributes("list", NETWORK, "hostsubnets"),
    Attributes("watch", NETWORK, "netnamespaces"),
    Attributes("watch", "discovery.k8s.io", "endpointslices"),
    Attributes("list", "podlane.io", "podaddresses"),
    Attributes("create", resource="nodes", body_name="n1"),
    Attributes("update", resource="nodes", name="n1"),
    Attributes("patch", resource="nodes", name="n1", subresource="status"),
    Attributes("list", resource="pods", asked_node="n1"),
    Attributes("watch", resource="pods", asked_node="n1", namespace="red"),
    Attributes("get", resource="pods", namespace="red", name="p", bound_to="n1"),
    Attributes("get", resource="pods", namespace="red", name="gone", bound_to=None),
    Attributes("patch", resource="pods", namespace="red", name="p", subresource="status", bound_to="n1"),
    Attributes("update", resource="pods", namespace="red", name="p", subresource="status", bound_to="n1"),
    Attributes("delete", resource="pods", namespace="red", name="p", bound_to="n1", grace=0),
    Attributes("get", *LEASE, namespace="kube-node-lease", name="n1"),
    Attributes("create", *LEASE, namespace="kube-node-lease", body_name="n1"),
    Attributes("update", *LEASE, namespace="kube-node-lease", name="n1"),
    Attributes("create", resource="events", namespace="red", body_name="p.1", body_host="n1"),
    Attributes("patch", resource="events", namespace="red", name="p.1", bound_to="n1"),
    Attributes("patch", resource="events", namespace="red", name="gone", bound_to=None),
    Attributes("get", resource="configmaps", namespace="red", name="c", needed=True),
    Attributes("list", resource="configmaps", namespace="red", needed=True),
    Attributes("watch", resource="secrets", namespace="red", needed=True),
    Attributes("get", resource="persistentvolumes", name="disk", needed=True),
    Attributes("watch", resource="persistentvolumeclaims", namespace="red", needed=True),
    Attributes("create", resource="pods", namespace="red", body_name="p", pod=MIRROR, node_uid="u1"),
]

REFUSED_TO_NODES = [
    Attributes("update", "discovery.k8s.io", "endpointslices", namespace="red", name="s"),
    Attributes("delete", "storage.k8s.io", "csidrivers", name="d"),
    Attributes("create", "node.k8s.io", "runtimeclasses"),
    Attributes("get", *DRIVERS, name="n2"),
    Attributes("create", *DRIVERS, body_name="n2"),
    Attributes("list", *DRIVERS),
    Attributes("deletecollection", *SLICES),
    Attributes("deletecollection", *SLICES, asked_node="n2"),
    Attributes("list", *SLICES),
    Attributes("delete", *SLICES, name="s", bound_to="n2"),
    Attributes("create", *SLICES, body_name="s"),
    Attributes("list", *QUERY),
    Attributes("watch", *QUERY, asked_node="n2"),
    Attributes("get", *QUERY, name="q", bound_to="n2"),
    Attributes("update", *QUERY, subresource="status", name="q", bound_to="n2"),
    Attributes("update", *QUERY, name="q", bound_to="n1"),
    Attributes("create", *QUERY),
    Attributes("delete", *QUERY, name="q", bound_to="n1"),
    Attributes("create", resource="nodes", body_name="n2"),
    Attributes("update", resource="nodes", name="n2"),
    Attributes("patch", resource="nodes", name="n2", subresource="status"),
    Attributes("delete", resource="nodes", name="n1"),
    Attributes("deletecollection", resource="nodes"),
    Attributes("list", resource="pods"),
    Attributes("list", resource="pods", asked_node="n2"),
    Attributes("get", resource="pods", namespace="red", name="p", bound_to="n2"),
    Attributes("get", resource="pods", namespace="red", name="p", bound_to=""),
    Attributes("create", resource="pods", namespace="red", body_name="p"),
    Attributes("create", resource="pods", namespace="red", body_name="p", pod=MIRROR, node_uid="u2"),
    Attributes("create", resource="pods", namespace="red", body_name="p", pod=MIRROR),
    Attributes("create", resource="pods", namespace="red", body_name="p", node_uid="u1"),
    Attributes("create", resource="pods", namespace="red", name="p", subresource="status", pod=MIRROR, node_uid="u1"),
    Attributes("create", resource="pods", namespace="red", name="p", subresource="binding", bound_to="n1"),
    Attributes("update", resource="pods", namespace="red", name="p", bound_to="n1"),
    Attributes("patch", resource="pods", namespace="red", name="p", bound_to="n1"),
    Attributes("patch", resource="pods", namespace="red", name="p", subresource="status", bound_to="n2"),
    Attributes("delete", resource="pods", namespace="red", name="p", bound_to="n1", grace=None),
    Attributes("delete", resource="pods", namespace="red", name="p", bound_to="n1", grace=30),
    Attributes("delete", resource="pods", namespace="red", name="p", bound_to="n2", grace=0),
    Attributes("deletecollection", resource="pods", namespace="red", asked_node="n1"),
    Attributes("create", resource="namespaces", body_name="n1"),
    Attributes("update", NETWORK, "hostsubnets", name="n1"),
    Attributes("patch", NETWORK, "netnamespaces", name="red"),
    Attributes("create", NETWORK, "hostsubnets", body_name="n1"),
    Attributes("list", resource="secrets"),
    Attributes("update", *LEASE, namespace="kube-node-lease", name="n2"),
    Attributes("create", *LEASE, namespace="kube-node-lease", body_name="n2"),
    Attributes("update", *LEASE, namespace="red", name="n1"),
    Attributes("list", *LEASE, namespace="kube-node-lease"),
    Attributes("delete", *LEASE, namespace="kube-node-lease", name="n1"),
    Attributes("create", resource="events", namespace="red", body_name="p.1", body_host="n2"),
    Attributes("create", resource="events", namespace="red", body_name="p.1"),
    Attributes("patch", resource="events", namespace="red", name="p.1", bound_to="n2"),
    Attributes("patch", resource="events", namespace="red", name="p.1", bound_to=""),
    Attributes("list", resource="events"),
    Attributes("delete", resource="events", namespace="red", name="p.1", bound_to="n1"),
    Attributes("get", resource="secrets", namespace="red", name="s"),
    Attributes("list", resource="persistentvolumes"),
    Attributes(
        "patch", resource="persistentvolumeclaims", namespace="red", name="c", subresource="status", needed=True
    ),
    Attributes("watch", resource="configmaps", namespace="red"),
    Attributes("update", resource="configmaps", namespace="red", name="c", needed=True),
    Attributes("create", resource="secrets", namespace="red", body_name="s", needed=True),
    Attributes("deletecollection", resource="secrets", namespace="red", needed=True),
]


@pytest.mark.parametrize("asked", ALLOWED_TO_NODES, ids=str)
def test_node_is_authorized_for_what_it_needs(asked: Attributes) -> None:
    assert may(NODE, asked)


@pytest.mark.parametrize("asked", REFUSED_TO_NODES, ids=str)
def test_node_is_denied_everything_else(asked: Attributes) -> None:
    assert not may(NODE, asked)
