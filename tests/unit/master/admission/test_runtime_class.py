"""The RuntimeClass of new pods."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from api.core.placement import Toleration
from api.core.pod import Container, Pod, PodSpec, ResourceRequirements
from api.core.resource_requests import pod_requests
from master.admission.resource_quota import usage
from master.admission.runtime_class import apply_runtime_class
from master.errors import StatusError
from master.resources.nodes import Overhead, RuntimeClass, Scheduling
from master.resources.pods import PODS
from tests.unit.master.examples import meta

TAINT = Toleration(key="kata", operator="Exists")
KATA = RuntimeClass(
    metadata=meta("kata"),
    handler="kata",
    overhead=Overhead(pod_fixed={"cpu": "250m", "memory": "64Mi"}),
    scheduling=Scheduling(node_selector={"kata": "yes"}, tolerations=(TAINT,)),
)
RESOURCES = ResourceRequirements(requests={"cpu": "1"}, limits={"cpu": "2"})
WEB = Pod(
    metadata=meta("web", namespace="red"),
    spec=PodSpec(containers=(Container(name="a", image="b", resources=RESOURCES),), runtime_class_name="kata"),
)


def test_pod_gets_the_overhead_and_the_nodes_of_its_runtime_class() -> None:
    spec = apply_runtime_class(WEB, KATA).spec
    assert (spec.overhead, spec.node_selector, spec.tolerations) == (
        {"cpu": "250m", "memory": "64Mi"}, {"kata": "yes"}, (TAINT,)
    )  # fmt: skip
    assert apply_runtime_class(replace(WEB, spec=spec), KATA).spec == spec
    plain = replace(WEB, spec=replace(WEB.spec, runtime_class_name=None))
    assert apply_runtime_class(plain, None) is plain


@pytest.mark.parametrize(
    ("changes", "runtime_class", "reason"),
    [
        ({}, None, 'pod rejected: RuntimeClass "kata" not found'),
        ({"overhead": {"cpu": "1"}}, KATA, "doesn't match RuntimeClass's defined Overhead"),
        ({"overhead": {"cpu": "1"}}, RuntimeClass(metadata=meta("kata")), "without corresponding RuntimeClass"),
        ({"overhead": {"cpu": "1"}, "runtime_class_name": None}, None, "without corresponding RuntimeClass"),
        ({"node_selector": {"kata": "no"}}, KATA, r"conflict: runtimeClass\.scheduling\.nodeSelector\[kata\] = yes"),
    ],
)
def test_pod_that_contradicts_its_runtime_class_is_rejected(
    changes: dict[str, object], runtime_class: RuntimeClass | None, reason: str
) -> None:
    with pytest.raises(StatusError, match=reason) as caught:
        apply_runtime_class(replace(WEB, spec=replace(WEB.spec, **changes)), runtime_class)
    assert caught.value.status.code == 403


def test_overhead_counts_for_scheduling_and_quota() -> None:
    pod = apply_runtime_class(WEB, KATA)
    assert pod_requests(pod) == {"pods": 1, "cpu": 1250, "memory": 64 << 20}
    used = usage(PODS, pod, datetime(2026, 1, 1, tzinfo=UTC))
    shown = {name: str(amount) for name, amount in used.items()}
    assert (shown["requests.cpu"], shown["cpu"], shown["limits.cpu"], shown["requests.memory"]) == (
        "1250m", "1250m", "2250m", "64Mi"
    )  # fmt: skip
    assert "limits.memory" not in shown
