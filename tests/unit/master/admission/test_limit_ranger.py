"""Defaults and rejections by LimitRanges."""

from __future__ import annotations

from typing import Any

import pytest

from api.core.pod import Pod
from api.core.storage import PersistentVolumeClaim
from api.validation.registry import decode, default
from master.admission import limit_ranger
from master.errors import StatusError
from master.resources.quotas import LIMIT_RANGES, LimitRange
from master.resources.scheme import BY_KIND
from tests.unit.master.admission.examples import decoded, pod


def bounds(*rows: dict[str, Any]) -> LimitRange:
    limit_range: LimitRange = decoded(LimitRange, spec={"limits": list(rows)})
    return limit_range


def refusal(obj: Any, *limit_ranges: LimitRange) -> str:
    with pytest.raises(StatusError) as refused:
        limit_ranger.check_limit_ranges(BY_KIND[obj.KIND], obj, limit_ranges)
    assert refused.value.status.code == 403
    return refused.value.status.message.partition(" is forbidden: ")[2]


def test_limit_range_defaults_follow_from_its_bounds() -> None:
    (limit_range_item,) = bounds(
        {"type": "Container", "max": {"cpu": "2000m", "memory": "1Gi"}, "min": {"cpu": 0.5}}
    ).spec.limits
    assert limit_range_item.default == {"cpu": "2", "memory": "1Gi"}
    assert limit_range_item.default_request == {"cpu": "2", "memory": "1Gi"}
    assert limit_range_item.min == {"cpu": "500m"}
    (limit_range_item,) = bounds({"type": "Container", "min": {"cpu": "1"}, "default": {"memory": "1Gi"}}).spec.limits
    assert limit_range_item.default_request == {"cpu": "1", "memory": "1Gi"}
    (limit_range_item,) = bounds({"type": "Pod", "max": {"cpu": "2"}}).spec.limits
    assert (limit_range_item.default, limit_range_item.default_request) == ({}, {})


def test_limit_range_sets_missing_resources_and_annotates_the_pod() -> None:
    limit_range = bounds(
        {"type": "Container", "default": {"cpu": "1", "memory": "1Gi"}, "defaultRequest": {"cpu": "100m"}}
    )
    completed = limit_ranger.apply_limit_range(pod({}, {"limits": {"cpu": "2"}}, init=({},)), [limit_range])
    assert [container.resources.limits for container in completed.spec.containers] == [
        {"cpu": "1", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"},
    ]  # fmt: skip
    assert [container.resources.requests for container in completed.spec.containers] == [
        {"cpu": "100m", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"},
    ]  # fmt: skip
    assert completed.spec.init_containers[0].resources.limits == {"cpu": "1", "memory": "1Gi"}
    assert completed.metadata.annotations[limit_ranger.LIMIT_RANGER_ANNOTATION] == (
        "LimitRanger plugin set: cpu, memory request for container c0; cpu, memory limit for container c0; "
        "memory request for container c1; memory limit for container c1; "
        "cpu, memory request for init container i0; cpu, memory limit for init container i0"
    )
    full = pod({"limits": {"cpu": "1", "memory": "1Gi"}})
    assert limit_ranger.apply_limit_range(full, [limit_range]) is full


CPU = {"requests": {"cpu": "500m"}, "limits": {"cpu": "2"}}
REFUSED = [
    ({"type": "Container", "max": {"cpu": "1"}}, pod(CPU), "maximum cpu usage per Container is 1, but limit is 2"),
    ({"type": "Container", "max": {"cpu": "1"}}, pod({"requests": {"cpu": "1"}}),
     "maximum cpu usage per Container is 1.  No limit is specified"),
    ({"type": "Container", "min": {"cpu": "1"}}, pod(CPU), "minimum cpu usage per Container is 1, but request is 500m"),
    ({"type": "Container", "min": {"cpu": "1"}}, pod({}),
     "minimum cpu usage per Container is 1.  No request is specified"),
    ({"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}, pod(CPU),
     "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000"),
    ({"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}, pod({}),
     "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0"),
    ({"type": "Container", "max": {"cpu": "1"}}, pod({"limits": {"cpu": "1"}}, init=({"limits": {"cpu": "3"}},)),
     "maximum cpu usage per Container is 1, but limit is 3"),
    ({"type": "Pod", "max": {"cpu": "3"}}, pod(CPU, CPU), "maximum cpu usage per Pod is 3, but limit is 4"),
    ({"type": "Pod", "max": {"memory": "1Gi"}}, pod({"limits": {"memory": "512Mi"}}, {"limits": {"memory": "513Mi"}}),
     "maximum memory usage per Pod is 1Gi, but limit is 1025Mi"),
    ({"type": "Pod", "min": {"cpu": "3"}}, pod(CPU, CPU), "minimum cpu usage per Pod is 3, but request is 1"),
    ({"type": "Container", "max": {"cpu": "1", "memory": "1Mi"}}, pod({"limits": {"cpu": "2", "memory": "2Mi"}}),
     "[maximum cpu usage per Container is 1, but limit is 2, "
     "maximum memory usage per Container is 1Mi, but limit is 2Mi]"),
]  # fmt: skip


@pytest.mark.parametrize(("limit", "obj", "why"), REFUSED, ids=[why for *_, why in REFUSED])
def test_limit_range_rejections_have_the_reference_messages(limit: dict[str, Any], obj: Pod, why: str) -> None:
    assert refusal(obj, bounds(limit)) == why


@pytest.mark.parametrize(
    "limit",
    [{"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "500m"}, "maxLimitRequestRatio": {"cpu": "4"}},
     {"type": "Pod", "max": {"cpu": "2"}}, {"type": "PersistentVolumeClaim", "max": {"storage": "1"}}],
)  # fmt: skip
def test_pod_within_limit_range_is_admitted(limit: dict[str, Any]) -> None:
    limit_ranger.check_limit_ranges(BY_KIND["Pod"], pod(CPU), [bounds(limit)])


def test_limit_range_applies_to_claims() -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}
    claim = decoded(PersistentVolumeClaim, spec=spec)
    most = bounds({"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}})
    assert refusal(claim, most) == "maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi"
    least = bounds({"type": "PersistentVolumeClaim", "min": {"storage": "3Gi"}})
    assert refusal(claim, least) == "minimum storage usage per PersistentVolumeClaim is 3Gi, but request is 2Gi"


WRONG = [
    ({"type": "Node"}, "type", "must be a standard limit type or fully qualified"),
    ({"type": "Pod", "default": {"cpu": "1"}}, "default", "may not be specified when `type` is 'Pod'"),
    ({"type": "Container", "max": {"storage": "1"}}, "max[storage]", "must be a standard resource for containers"),
    ({"type": "PersistentVolumeClaim"}, "limits", "either minimum or maximum storage value is required"),
    ({"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}}, "min[cpu]",
     "min value 2 is greater than max value 1"),
    ({"type": "Container", "default": {"cpu": "2"}, "max": {"cpu": "1"}}, "default[cpu]",
     "default value 2 is greater than max value 1"),
    ({"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}}, "defaultRequest[cpu]",
     "default request value 2 is greater than default limit value 1"),
    ({"type": "Container", "maxLimitRequestRatio": {"cpu": "0.5"}}, "maxLimitRequestRatio[cpu]",
     "ratio 500m is less than 1"),
    ({"type": "Pod", "maxLimitRequestRatio": {"cpu": "3"}, "min": {"cpu": "1"}, "max": {"cpu": "2"}},
     "maxLimitRequestRatio[cpu]", "ratio 3 is greater than max/min = 2.000000"),
    ({"type": "Container", "max": {"cpu": "x"}}, "max[cpu]", "is not a quantity"),
]  # fmt: skip


@pytest.mark.parametrize(("limit", "path", "why"), WRONG)
def test_invalid_limit_range_is_rejected(limit: dict[str, Any], path: str, why: str) -> None:
    document = {"metadata": {"name": "l", "namespace": "red"}, "spec": {"limits": [limit]}}
    _, problems, _ = decode(LimitRange, document, LIMIT_RANGES.rules)
    assert any(problem.path == f"spec.limits[0].{path}" and why in problem.detail for problem in problems), problems


def test_limit_range_defaults_are_set_once() -> None:
    once = bounds({"type": "Container", "max": {"cpu": "2000m"}})
    assert default(once, LIMIT_RANGES.rules) == once


def test_limit_range_accepts_quantities_beyond_float_range() -> None:
    """No float holds them."""
    huge = {"cpu": "9" * 400}
    rows = [{"type": kind, "max": huge, "min": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "2"}}
            for kind in ("Container", "Pod")]  # fmt: skip
    assert bounds(*rows).spec.limits[0].max["cpu"]
    actual = refusal(pod({"requests": {"cpu": "1"}, "limits": huge}), bounds(*rows))
    assert "cpu max limit to request ratio per Pod is 2, but provided ratio is 1" in actual
    above = {"type": "Pod", "max": {"cpu": "2"}, "min": {"cpu": "1"}, "maxLimitRequestRatio": huge}
    _, problems, _ = decode(LimitRange, {"metadata": {"name": "l"}, "spec": {"limits": [above]}}, LIMIT_RANGES.rules)
    assert "is greater than max/min = 2.000000" in problems[0].detail
