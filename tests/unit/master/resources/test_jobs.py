"""Updates of Jobs."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from api.core.pod import Container, PodSpec, ResourceRequirements
from api.meta.types import Condition
from api.validation.registry import check_update
from master.resources.jobs import JOBS, SUSPENDED, Job, JobSpec, JobStatus
from master.resources.pod_template import PodTemplateSpec
from tests.unit.master.examples import meta

THEN = "2026-01-01T00:00:00Z"
STOPPED = JobStatus(start_time=THEN, conditions=(Condition(type=SUSPENDED, status="True"),))
RUNNING = JobStatus(start_time=THEN)
QUEUED = JobStatus()


def job(status: JobStatus, *, suspend: bool, image: str = "b", **pod: Any) -> Job:
    container = Container(name="a", image=image, resources=ResourceRequirements(requests=pod.pop("requests", {})))
    template = PodTemplateSpec(spec=PodSpec(containers=(container,), init_containers=(container,), **pod))
    return Job(metadata=meta("work", namespace="red"), spec=JobSpec(suspend=suspend, template=template), status=status)


@pytest.mark.parametrize("change", [{"requests": {"cpu": "1"}}, {"node_selector": {"a": "b"}}])
@pytest.mark.parametrize(
    ("status", "suspend", "is_accepted"),
    [
        (QUEUED, True, True),
        (STOPPED, True, True),
        (replace(STOPPED, active=1), True, False),
        (RUNNING, True, False),
        (RUNNING, False, False),
    ],
)
def test_template_of_a_suspended_job_may_change_what_its_pods_request_and_where_they_run(
    change: dict[str, Any], status: JobStatus, suspend: bool, is_accepted: bool
) -> None:
    old, new = job(status, suspend=suspend), job(status, suspend=suspend, **change)
    errors = [problem.path for problem in check_update(old, new, JOBS.rules)]
    assert errors == ([] if is_accepted else ["spec.template"])


def test_image_of_a_suspended_job_is_immutable() -> None:
    errors = check_update(job(QUEUED, suspend=True), job(QUEUED, suspend=True, image="c"), JOBS.rules)
    assert [problem.path for problem in errors] == ["spec.template"]
