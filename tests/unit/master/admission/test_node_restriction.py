"""The changes that a node may make to its own Node."""

from __future__ import annotations

import datetime
from typing import Any, cast

import pytest
from msgspec.structs import replace

from api.core.auth import BoundObjectReference, TokenRequest, TokenRequestSpec
from api.core.events import Event, EventSource
from api.core.node import Lease, Node, NodeSpec, Taint
from api.core.pod import Pod, PodSpec
from api.meta.types import Object, ObjectMeta, ObjectReference, OwnerReference
from master.admission.node_restriction import NodeRestriction, check_token_request, node_restriction_denial
from master.admission.plugin import AdmissionRequest, Operation
from master.auth.attributes import User
from master.auth.rbac import Requester
from master.errors import StatusError
from master.request_info import RequestInfo
from master.resources.configuration import ServiceAccount
from master.resources.csi import CSINode
from master.resources.scheme import BY_KIND, group_resource
from master.storage.interface import Key, Transaction

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


# --- what depends on the body of a request ----------------------------------------------------------------------------


NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
NODE_USER = User("system:node:n1", frozenset(("system:nodes",)))
REQUESTER = Requester(NODE_USER, is_allowed=lambda _: False, rules_for=lambda _: (), role_rules=lambda *_: None)
MIRROR = Pod(
    metadata=ObjectMeta(
        name="p",
        namespace="red",
        annotations={"kubernetes.io/config.mirror": "x"},
        owner_references=(OwnerReference(api_version="v1", kind="Node", name="n1", uid="u1"),),
    ),
    spec=PodSpec(node_name="n1"),
)


class Objects:
    """The stored objects: the pod red/far of another node, and the Node n1 with this uid, or none."""

    def __init__(self, node_uid: str) -> None:
        self._node_uid = node_uid

    def get(self, key: Key) -> Node | Pod | None:
        if key.resource == group_resource(Pod):
            own, far = (replace(MIRROR, spec=PodSpec(node_name=node)) for node in ("n1", "n2"))
            pods = {"p": own, "far": replace(far, metadata=replace(far.metadata, uid="u2"))}
            return pods.get(key.name) if key.namespace == "red" else None
        assert key == Key(group_resource(Node), "", "n1")
        return Node(metadata=ObjectMeta(name="n1", uid=self._node_uid)) if self._node_uid else None


def denial(
    obj: Any,
    operation: Operation = Operation.CREATE,
    grace: int | None = None,
    node_uid: str = "u1",
    requester: Requester | None = REQUESTER,
) -> str:
    request = AdmissionRequest(
        operation=operation,
        resource=BY_KIND[obj.KIND],
        now=NOW,
        random_suffix=lambda: "bcdfg",
        old=obj if operation is not Operation.CREATE else None,
        requester=requester,
        grace_period_seconds=grace,
    )
    try:
        NodeRestriction().validate(request, obj, cast("Transaction", Objects(node_uid)))
    except StatusError as error:
        return error.status.message if error.status.code == 403 else f"code {error.status.code}"
    return ""


def named(kind: type[Object], name: str, namespace: str = "") -> Any:
    return kind(metadata=ObjectMeta(name=name, namespace=namespace))


def event(host: str, kind: str = "Node", name: str = "n1", uid: str = "") -> Event:
    about = ObjectReference(kind=kind, namespace="red", name=name, uid=uid)
    meta = ObjectMeta(name="p.1", namespace="red")
    return Event(metadata=meta, involved_object=about, source=EventSource(host=host))


ABOUT_OTHERS_POD = "node n1 may only write events about pods that are bound to it"


@pytest.mark.parametrize(
    ("name", "uid", "reason"),
    [
        ("p", "", ""),
        ("far", "", ABOUT_OTHERS_POD),
        ("far", "u2", ABOUT_OTHERS_POD),
        ("far", "of a pod before it", ""),
        ("gone", "u3", ""),
    ],
)
def test_a_node_writes_events_about_its_own_pods(name: str, uid: str, reason: str) -> None:
    message = denial(event("n1", "Pod", name, uid))
    assert message.endswith(reason) if reason else not message
    assert denial(event("n1", "Service", name, uid)) == ""


@pytest.mark.parametrize(
    "obj",
    [named(Node, "n1"), named(Lease, "n1", "kube-node-lease"), named(CSINode, "n1"), event("n1"), MIRROR],
    ids=lambda obj: obj.KIND,
)
def test_a_node_creates_its_own_objects(obj: Any) -> None:
    assert denial(obj) == ""


@pytest.mark.parametrize(
    ("obj", "reason"),
    [
        (named(Node, "n2"), "node n1 may not write the Node 'n2'"),
        (named(Lease, "n2", "kube-node-lease"), "node n1 may not read or renew the lease 'n2'"),
        (named(CSINode, "n2"), "node n1 may not read or write the CSINode 'n2'"),
        (event("n2"), "node n1 may only write events with itself as source.host"),
        (event(""), "node n1 may only write events with itself as source.host"),
        (replace(MIRROR, metadata=replace(MIRROR.metadata, annotations={})), ""),
        (replace(MIRROR, spec=PodSpec(node_name="n2")), ""),
    ],
    ids=str,
)
def test_a_node_does_not_create_objects_of_others(obj: Any, reason: str) -> None:
    message = denial(obj)
    assert message.endswith(reason)
    assert 'User "system:node:n1" cannot create resource' in message
    assert denial(obj, requester=None) == ""


@pytest.mark.parametrize("node_uid", ["u2", ""])
def test_a_node_creates_mirror_pods_only_as_the_registered_node(node_uid: str) -> None:
    assert denial(MIRROR, node_uid=node_uid)


def test_a_node_deletes_a_pod_only_without_grace_period() -> None:
    assert denial(MIRROR, Operation.DELETE, grace=0) == ""
    for grace in (None, 30):
        assert "with gracePeriodSeconds 0" in denial(MIRROR, Operation.DELETE, grace=grace)
        assert denial(MIRROR, Operation.DELETE, grace=grace, requester=None) == ""


def token_denial(pod: Pod | None, user: User = NODE_USER, uid: str = "p1", account: str = "robot") -> str:
    reference = BoundObjectReference(kind="Pod", name="p", uid=uid)
    request = TokenRequest(spec=TokenRequestSpec(bound_object_ref=reference))
    info = RequestInfo(BY_KIND[ServiceAccount.KIND], "red", account, "token")
    try:
        check_token_request(user, info, request, pod)
    except StatusError as error:
        return error.status.message
    return ""


def test_a_node_gets_no_token_for_a_mirror_pod() -> None:
    mirror = replace(MIRROR, metadata=replace(MIRROR.metadata, uid="p1"))
    assert mirror.spec.node_name == "n1"
    assert "a node may only request a token bound to a pod" in token_denial(mirror, account="default")


def test_a_node_requests_tokens_for_its_own_pods_only() -> None:
    pod = Pod(
        metadata=ObjectMeta(name="p", namespace="red", uid="p1"),
        spec=PodSpec(node_name="n1", service_account_name="robot"),
    )
    assert token_denial(pod) == ""
    assert token_denial(None, User("bob")) == ""
    for other in (
        None,
        replace(pod, spec=replace(pod.spec, node_name="n2")),
        replace(pod, spec=replace(pod.spec, service_account_name="other")),
        replace(pod, metadata=replace(pod.metadata, uid="p2")),
    ):
        assert token_denial(other).endswith(
            "a node may only request a token bound to a pod on node n1 with this service account"
        )
