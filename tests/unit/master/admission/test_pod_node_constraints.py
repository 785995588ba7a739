"""Who may choose the node of a pod."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from api.core.pod import Container, Pod, PodSpec
from api.meta.types import ObjectMeta
from master.admission.plugin import AdmissionRequest, Operation
from master.admission.pod_node_constraints import PodNodeConstraints
from master.auth.attributes import Attributes, User
from master.auth.rbac import Requester
from master.errors import StatusError
from master.resources.deployments import DEPLOYMENTS, Deployment, DeploymentSpec
from master.resources.pod_template import PodTemplateSpec
from master.resources.pods import PODS
from master.resources.resource import AnyResource

META = ObjectMeta(name="p", namespace="red")
SPEC = PodSpec(node_name="n1", containers=(Container(name="a", image="i"),))
POD = Pod(metadata=META, spec=SPEC)
ANYWHERE = replace(POD, spec=replace(SPEC, node_name=""))
BIND = Attributes("create", "", "pods", "binding", "red", "p")


def requester(*allowed: Attributes, name: str = "ann", groups: tuple[str, ...] = ()) -> Requester:
    return Requester(User(name, frozenset(groups)), lambda asked: asked in allowed, lambda _: (), lambda *_: None)


def validate(
    by: Requester | None, obj: Any, old: Any = None, resource: AnyResource = PODS, subresource: str = ""
) -> None:
    operation = Operation.CREATE if old is None else Operation.UPDATE
    request = AdmissionRequest(
        operation=operation, resource=resource, now=datetime.now(UTC), random_suffix=lambda: "abcde", old=old,
        requester=by, subresource=subresource,
    )  # fmt: skip
    PodNodeConstraints().validate(request, obj, None)  # type: ignore[arg-type]


def deployment(spec: PodSpec) -> Deployment:
    return Deployment(metadata=META, spec=DeploymentSpec(template=PodTemplateSpec(spec=spec)))


def test_node_of_a_pod_needs_the_right_to_bind() -> None:
    with pytest.raises(StatusError, match="node selection by nodeName is prohibited by policy for your role"):
        validate(requester(), POD)
    validate(requester(BIND), POD)
    validate(requester(), ANYWHERE)


def test_template_is_judged_when_it_is_written() -> None:
    with pytest.raises(StatusError, match="node selection"):
        validate(requester(), deployment(SPEC), resource=DEPLOYMENTS)
    with pytest.raises(StatusError, match="node selection"):
        validate(requester(), deployment(SPEC), deployment(ANYWHERE.spec), resource=DEPLOYMENTS)
    validate(requester(), deployment(SPEC), deployment(SPEC), resource=DEPLOYMENTS)
    validate(requester(BIND), deployment(SPEC), resource=DEPLOYMENTS)


def test_pod_that_is_bound_can_be_updated() -> None:
    validate(requester(), POD, POD)
    validate(requester(), POD, ANYWHERE, subresource="status")


def test_controllers_and_nodes_are_judged_elsewhere() -> None:
    validate(None, POD)
    validate(requester(name="system:node:n1", groups=("system:nodes",)), POD)
