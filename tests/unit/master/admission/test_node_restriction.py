"""What a node may say of itself."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from api.core.node import Node, NodeSpec, Taint
from api.meta.types import ObjectMeta, OwnerReference
from master.admission.node_restriction import node_restriction_denial

TAINT = Taint(key="dedicated", value="db", effect="NoSchedule")
OWNER = OwnerReference(api_version="v1", kind="Namespace", name="gone", uid="gone")
FORBIDDEN = (
    "node-restriction.kubernetes.io/x",
    "team.node-restriction.kubernetes.io/x",
    "node-role.kubernetes.io/control-plane",
    "kubernetes.io/x",
    "kubernetes.io/instance-type",
    "x.k8s.io/y",
    "x.topology.kubernetes.io/y",
    "k8s.io/y",
)
OWN = (
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "kubelet.kubernetes.io/x",
    "x.kubelet.kubernetes.io/y",
    "node.kubernetes.io/x",
    "disk",
    "example.org/disk",
    "notkubernetes.io/x",
)


def node(labels: dict[str, str] | None = None, taints: tuple[Taint, ...] = (), *owners: OwnerReference) -> Node:
    metadata = ObjectMeta(name="n1", labels=labels or {}, owner_references=owners)
    return Node(metadata=metadata, spec=NodeSpec(taints=taints))


@pytest.mark.parametrize("label", FORBIDDEN)
def test_node_may_not_set_change_or_remove_restricted_labels(label: str) -> None:
    has, other, none = node({label: "a"}), node({label: "b"}), node()
    assert node_restriction_denial(has, None) == f"is not allowed to set the following labels: {label}"
    for new, old in ((has, none), (other, has), (none, has)):
        assert node_restriction_denial(new, old) == f"is not allowed to modify labels: {label}"
    assert node_restriction_denial(replace(has, spec=NodeSpec(unschedulable=True)), has) is None


@pytest.mark.parametrize("label", OWN)
def test_node_may_set_its_own_kubelet_labels(label: str) -> None:
    has, none = node({label: "a"}), node()
    assert [node_restriction_denial(new, old) for new, old in ((has, None), (has, none), (none, has))] == [None] * 3


def test_node_restriction_names_all_rejected_labels_in_order() -> None:
    labels = {"node-role.kubernetes.io/b": "", "disk": "ssd", "k8s.io/a": ""}
    assert (
        node_restriction_denial(node(labels), node())
        == "is not allowed to modify labels: k8s.io/a, node-role.kubernetes.io/b"
    )


def test_node_may_set_taints_only_at_registration() -> None:
    assert node_restriction_denial(node(None, (TAINT,)), None) is None
    assert node_restriction_denial(node({"disk": "ssd"}, (TAINT,)), node(None, (TAINT,))) is None
    for new, old in ((node(None, (TAINT,)), node()), (node(), node(None, (TAINT,)))):
        assert node_restriction_denial(new, old) == "is not allowed to modify taints"


def test_node_may_not_change_owner_references() -> None:
    for new, old in ((node(None, (), OWNER), node()), (node(), node(None, (), OWNER))):
        assert node_restriction_denial(new, old) == "is not allowed to modify ownerReferences"
    assert node_restriction_denial(node({"disk": "ssd"}, (), OWNER), node(None, (), OWNER)) is None


def test_node_may_not_register_with_owner_references() -> None:
    owned = Node(metadata=ObjectMeta(name="n", owner_references=(OWNER,)))
    assert node_restriction_denial(owned, None) == "is not allowed to set ownerReferences"
    assert node_restriction_denial(Node(metadata=ObjectMeta(name="n")), None) is None
