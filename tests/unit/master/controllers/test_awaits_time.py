"""Controllers start passes by time only while something waits for time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from api.meta.types import Condition, Object, ObjectMeta
from master.controllers.context import Lister
from master.controllers.workloads.cron_jobs import cron_jobs_await_time
from master.controllers.workloads.daemon_sets import daemon_sets_await_time
from master.controllers.workloads.deployments import deployments_await_time
from master.controllers.workloads.jobs import jobs_await_time
from master.controllers.workloads.replica_sets import replicas_await_time
from master.controllers.workloads.stateful_sets import stateful_sets_await_time
from master.resources.cron_jobs import CronJob, CronJobSpec
from master.resources.daemon_sets import DaemonSet, DaemonSetSpec, DaemonSetStatus
from master.resources.deployments import (
    Deployment,
    DeploymentSpec,
    DeploymentStatus,
    ReplicaSet,
    ReplicaSetSpec,
)
from master.resources.jobs import COMPLETE, Job, JobSpec, JobStatus
from master.resources.pod_template import ReplicasStatus
from master.resources.stateful_sets import StatefulSet, StatefulSetSpec, StatefulSetStatus

COMPLETE_JOB = JobStatus(conditions=(Condition(type=COMPLETE, status="True"),))
COMPLETE_ROLLOUT = DeploymentStatus(observed_generation=2, replicas=3, updated_replicas=3, available_replicas=3)
OLD_ROLLOUT = DeploymentStatus(observed_generation=1, replicas=3, updated_replicas=3, available_replicas=3)
LATE_ROLLOUT = DeploymentStatus(observed_generation=2, replicas=3, updated_replicas=3, available_replicas=2)


class _OneObject:
    """A lister that finds one object."""

    def __init__(self, obj: Object) -> None:
        self._object = obj

    def list_kind(self, kind: str) -> list[Any]:
        return [self._object] if kind == type(self._object).KIND else []

    def list(self, kind: type[Object]) -> list[Any]:
        return [self._object] if isinstance(self._object, kind) else []


def _deployment(status: DeploymentStatus) -> Deployment:
    return Deployment(metadata=ObjectMeta(generation=2), spec=DeploymentSpec(replicas=3), status=status)


def _daemon_set(available: int, min_ready_seconds: int = 0) -> DaemonSet:
    status = DaemonSetStatus(desired_number_scheduled=2, number_available=available)
    return DaemonSet(spec=DaemonSetSpec(min_ready_seconds=min_ready_seconds), status=status)


@pytest.mark.parametrize(
    ("awaits_time", "obj", "expected"),
    [
        (jobs_await_time, Job(), True),
        (jobs_await_time, Job(status=COMPLETE_JOB), False),
        (jobs_await_time, Job(spec=JobSpec(ttl_seconds_after_finished=60), status=COMPLETE_JOB), True),
        (cron_jobs_await_time, CronJob(), True),
        (cron_jobs_await_time, CronJob(spec=CronJobSpec(suspend=True)), False),
        (deployments_await_time, _deployment(COMPLETE_ROLLOUT), False),
        (deployments_await_time, _deployment(OLD_ROLLOUT), True),
        (deployments_await_time, _deployment(LATE_ROLLOUT), True),
        (replicas_await_time, ReplicaSet(spec=ReplicaSetSpec(replicas=1)), True),
        (
            replicas_await_time,
            ReplicaSet(spec=ReplicaSetSpec(replicas=1), status=ReplicasStatus(available_replicas=1)),
            False,
        ),
        (daemon_sets_await_time, _daemon_set(2), False),
        (daemon_sets_await_time, _daemon_set(1), True),
        (daemon_sets_await_time, _daemon_set(2, min_ready_seconds=5), True),
        (stateful_sets_await_time, StatefulSet(spec=StatefulSetSpec(replicas=1)), True),
        (
            stateful_sets_await_time,
            StatefulSet(spec=StatefulSetSpec(replicas=1), status=StatefulSetStatus(available_replicas=1)),
            False,
        ),
    ],
)
def test_controller_awaits_time(awaits_time: Callable[[Lister], bool], obj: Object, expected: bool) -> None:
    assert awaits_time(cast("Lister", _OneObject(obj))) is expected
