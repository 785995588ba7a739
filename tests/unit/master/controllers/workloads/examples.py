"""Workloads, pods and budgets."""

from __future__ import annotations

import datetime
from typing import Any

from msgspec.structs import replace

from api.core.pod import Pod, PodSpec, PodStatus
from api.meta.types import Condition, Object, OwnerReference
from api.validation.registry import decode
from master.controllers.workloads.disruption_budgets import reconcile
from master.resources.deployments import DEPLOYMENTS, REPLICA_SETS, REPLICATION_CONTROLLERS, Deployment
from master.resources.disruption_budgets import POD_DISRUPTION_BUDGETS, PodDisruptionBudget, PodDisruptionBudgetStatus
from tests.unit.master.examples import meta

NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


NUMBERS = ("expected_pods", "current_healthy", "desired_healthy", "disruptions_allowed")


def budget(status: PodDisruptionBudgetStatus | None = None, **spec: Any) -> PodDisruptionBudget:
    selecting = {"selector": {"matchLabels": {"app": "web"}}, **spec}
    document = {"metadata": {"name": "b", "namespace": "red", "generation": 3}, "spec": selecting}
    result, problems, _ = decode(PodDisruptionBudget, document, POD_DISRUPTION_BUDGETS.rules)
    assert result is not None, problems
    return replace(result, status=status or PodDisruptionBudgetStatus())


def owned_by(owner: Object | None) -> tuple[OwnerReference, ...]:
    if owner is None:
        return ()
    owner_reference = OwnerReference(
        api_version=owner.API_VERSION, kind=owner.KIND, name="o", uid=owner.metadata.uid, controller=True
    )
    return (owner_reference,)


def pod(name: str, ready: bool = True, owner: Object | None = None, phase: str = "Running", **rest: Any) -> Pod:
    labels = {"app": "web"}
    return Pod(
        metadata=meta(name, namespace="red", labels=labels, owner_references=owned_by(owner), **rest),
        spec=PodSpec(node_name="n"),
        status=PodStatus(phase=phase, conditions=(Condition(type="Ready", status=str(ready)),)),
    )


def status_of(obj: PodDisruptionBudget, pods: list[Pod], *owners: Object) -> PodDisruptionBudgetStatus:
    updates = list(reconcile([obj], pods, owners, NOW))
    for change in updates:
        assert isinstance(change.object, PodDisruptionBudget)
        assert not list(reconcile([change.object], pods, owners, NOW)), "the second pass has nothing to say"
        return change.object.status
    return obj.status


KINDS: dict[str, Any] = {resource.kind: resource for resource in (DEPLOYMENTS, REPLICA_SETS, REPLICATION_CONTROLLERS)}


def template(image: str = "i:1", **labels: str) -> dict[str, Any]:
    containers = [{"name": "main", "image": image}]
    return {"metadata": {"labels": labels or {"app": "web"}}, "spec": {"containers": containers}}


def workload(kind: str, name: str = "web", **spec: Any) -> Any:
    chosen = {"app": "web"} if kind == "ReplicationController" else {"matchLabels": {"app": "web"}}
    document = {
        "metadata": {"name": name, "namespace": "p"},
        "spec": {"selector": chosen, "template": template(), **spec},
    }
    obj, problems, _ = decode(KINDS[kind].type, document, KINDS[kind].rules)
    assert not problems, problems
    return obj


def deployment(**spec: Any) -> Deployment:
    result: Deployment = workload("Deployment", **spec)
    return result
