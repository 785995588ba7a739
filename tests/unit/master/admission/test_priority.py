"""Who may use the system priority classes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from api.core.pod import Container, Pod, PodSpec
from api.meta.types import ObjectMeta
from master.admission.defaults import Priority
from master.admission.plugin import AdmissionRequest, Operation
from master.auth.attributes import Attributes, Authorize, User
from master.auth.rbac import Requester
from master.errors import StatusError
from master.resources.pods import PODS

ANN, ACCOUNT = "ann", "system:serviceaccount:red:default"


def pod(name: str, namespace: str = "red") -> Pod:
    spec = PodSpec(priority_class_name=name, containers=(Container(name="a", image="i"),))
    return Pod(metadata=ObjectMeta(name="p", namespace=namespace), spec=spec)


def allow(*names: str) -> Authorize:
    expected = Attributes("use", "scheduling.k8s.io", "priorityclasses", "", "red", "system-node-critical")
    return lambda user, attributes: user.name in names and attributes == expected


def validate(new: Pod, authorize: Authorize | None, user: User | None) -> None:
    requester = None if user is None else Requester(user, lambda _: False, lambda _: (), lambda *_: None)
    request = AdmissionRequest(
        operation=Operation.CREATE,
        resource=PODS,
        now=datetime.now(UTC),
        random_suffix=lambda: "abcde",
        requester=requester,
    )
    Priority(authorize).validate(request, new, None)  # type: ignore[arg-type]


CRITICAL = "system-node-critical"
DENIED = f"pods with {CRITICAL} priorityClass is not permitted in red namespace"


@pytest.mark.parametrize("user", [User(ANN), None])
def test_system_class_needs_the_right_to_use_it(user: User | None) -> None:
    with pytest.raises(StatusError, match=DENIED):
        validate(pod(CRITICAL), allow(), user)
    validate(pod(CRITICAL), allow(ACCOUNT), user)
    validate(pod(CRITICAL, "kube-system"), allow(), user)
    validate(pod("mine"), allow(), user)


def test_right_of_the_requester_counts_too() -> None:
    validate(pod(CRITICAL), allow(ANN), User(ANN))
    with pytest.raises(StatusError, match=DENIED):
        validate(pod(CRITICAL), allow(ANN), None)


def test_mirror_pods_and_clusters_without_sccs_are_free() -> None:
    validate(pod(CRITICAL), allow(), User("system:node:n1", frozenset(("system:nodes",))))
    validate(pod(CRITICAL), None, User(ANN))
