"""CronJobs and their schedules."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from api.meta.types import Condition
from api.validation.registry import decode
from master.controllers.actions import Create
from master.controllers.workloads import cron_jobs
from master.resources import cron_jobs as schedules
from master.resources.cron_jobs import CRON_JOBS, CronJob
from master.resources.jobs import Job, is_job_finished
from master.resources.metadata import format_time
from tests.unit.master.simulation import START, Simulation

DONE = (Condition(type="Complete", status="True"),)
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "tidy"}},
    "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i"}]}}},
}


def cron_job(**spec: Any) -> CronJob:
    document = {
        "metadata": {"name": "tidy", "namespace": "p"},
        "spec": {"schedule": "*/10 * * * *", "jobTemplate": TEMPLATE, **spec},
    }
    result, problems, _ = decode(CronJob, document, CRON_JOBS.rules)
    assert not problems, problems
    assert result is not None
    return result


class Times(Simulation):
    """A simulation with one cron job, begun at midnight."""

    def __init__(self, **spec: Any) -> None:
        super().__init__()
        self.put(cron_job(**spec))

    @property
    def cron(self) -> CronJob:
        result: CronJob = self.all("CronJob")[0]
        return result

    def wait(self, minutes: float) -> None:
        self.now += datetime.timedelta(minutes=minutes)
        self.settle()

    def finish(self, phase: str = "Succeeded") -> None:
        """End every pod and its job."""
        for pod in self.pods():
            if pod.status.phase == "Pending":
                self.change(replace(pod, status=replace(pod.status, phase=phase)))
        self.settle()

    @property
    def minutes(self) -> list[int]:
        """For which minutes since the start there are jobs."""
        begin = int(START.timestamp()) // 60
        return sorted(int(job.metadata.name.rpartition("-")[2]) - begin for job in self.all("Job"))

    @property
    def active(self) -> list[str]:
        return [object_reference.name for object_reference in self.cron.status.active]


def test_job_is_created_at_its_scheduled_time() -> None:
    world = Times()
    world.wait(9.9)
    assert not world.all("Job")
    assert CRON_JOBS.cells(world.cron, world.now)[1:6] == ("*/10 * * * *", "<none>", "False", 0, "<none>")
    world.wait(0.2)
    (job,) = world.all("Job")
    assert world.minutes == [10]
    assert job.metadata.labels == {"app": "tidy"}
    (owner,) = job.metadata.owner_references
    assert (owner.kind, owner.name, owner.controller) == ("CronJob", "tidy", True)
    assert job.metadata.annotations == {"batch.kubernetes.io/cronjob-scheduled-timestamp": "2026-01-01T00:10:00+00:00"}
    assert world.active == [job.metadata.name]
    assert world.cron.status.last_schedule_time == "2026-01-01T00:10:00Z"
    assert CRON_JOBS.cells(world.cron, world.now)[4:6] == (1, "6s")
    world.finish()
    assert not world.active
    assert world.cron.status.last_successful_time == format_time(world.now)
    world.wait(9.95)
    assert world.minutes == [10, 20]


def test_only_the_last_missed_time_starts_a_job() -> None:
    world = Times()
    world.wait(45)
    assert world.minutes == [40]
    world = Times(startingDeadlineSeconds=120)
    world.wait(45)
    assert not world.minutes, "too late for it"
    world.wait(6)
    assert world.minutes == [50]


@pytest.mark.parametrize(
    ("policy", "minutes", "active"), [("Allow", [10, 20], 2), ("Forbid", [10], 1), ("Replace", [20], 1)]
)
def test_concurrency_policy_applies_while_the_previous_job_runs(policy: str, minutes: list[int], active: int) -> None:
    world = Times(concurrencyPolicy=policy)
    world.wait(10)
    world.wait(10)
    assert world.minutes == minutes
    assert len(world.active) == active
    if policy == "Forbid":
        world.finish()
        assert world.minutes == [10, 20], "as soon as there is room"


def test_suspended_cron_job_creates_no_job() -> None:
    world = Times(suspend=True)
    world.wait(25)
    assert not world.minutes
    assert CRON_JOBS.cells(world.cron, world.now)[3] == "True"
    world.change(replace(world.cron, spec=replace(world.cron.spec, suspend=False)))
    world.settle()
    assert world.minutes == [20]


def test_oldest_finished_jobs_are_deleted() -> None:
    world = Times(successfulJobsHistoryLimit=2, failedJobsHistoryLimit=1)
    for _ in range(5):
        world.wait(10)
        world.finish()
    assert world.minutes == [40, 50]
    world = Times(jobTemplate={**TEMPLATE, "spec": {**TEMPLATE["spec"], "backoffLimit": 0}})
    for number in range(4):
        world.wait(10)
        world.finish("Failed" if number % 2 else "Succeeded")
    assert world.minutes == [10, 30, 40]


def test_manually_created_job_is_not_counted() -> None:
    world = Times(concurrencyPolicy="Forbid")
    world.wait(10)
    (created,) = world.all("Job")
    world.finish()
    marks = {"cronjob.kubernetes.io/instantiate": "manual"}
    meta = replace(created.metadata, name="by-hand", annotations=marks)
    world.put(Job(metadata=meta, spec=world.cron.spec.job_template.spec))
    world.settle()
    assert not world.active
    world.wait(10)
    assert len(world.all("Job")) == 3


def test_jobs_are_deleted_with_their_cron_job() -> None:
    world = Times()
    world.wait(10)
    world.delete(world.cron)
    world.settle()
    assert not [*world.all("Job"), *world.pods()]


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["Allow", "Forbid", "Replace"]),
    st.lists(st.tuples(st.sampled_from(["wait", "pass", "pass", "finish"]), st.integers(0, 3)), max_size=50),
)
def test_no_scheduled_time_starts_two_jobs_after_crashes(policy: str, actions: list[tuple[str, int]]) -> None:
    world = Times(concurrencyPolicy=policy)
    created: list[str] = []
    for what, number in actions:
        if what == "wait":
            world.now += datetime.timedelta(minutes=4 * number)
        elif what == "finish":
            for job in world.all("Job"):
                status = replace(job.status, completion_time=format_time(world.now), conditions=DONE)
                world.change(replace(job, status=status))
        else:
            actual = list(cron_jobs.reconcile([world.cron], world.all("Job"), world.now))[:number]
            created += [
                write.object.metadata.name
                for write in actual
                if isinstance(write, Create) and isinstance(write.object, Job)
            ]
            world.apply(actual)
            assert policy == "Allow" or sum(not is_job_finished(job) for job in world.all("Job")) <= 1
    assert len(set(created)) == len(created)
    world.wait(10)
    last = int((world.now - START).total_seconds() // 600) * 10
    assert policy == "Forbid" or world.minutes[-1] == last


# --- schedules --------------------------------------------------------------------------------------------------------


def moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


LATEST = [
    ("*/15 * * * *", None, "2026-03-01T12:14:59+00:00", "2026-03-01T12:00:00+00:00"),
    ("*/15 * * * *", None, "2026-03-01T12:15:00+00:00", "2026-03-01T12:15:00+00:00"),
    ("@daily", None, "2026-03-01T12:00:00+00:00", "2026-03-01T00:00:00+00:00"),
    ("@hourly", None, "2026-03-01T12:59:00+00:00", "2026-03-01T12:00:00+00:00"),
    ("0 0 ? * 1-5", None, "2026-03-01T12:00:00+00:00", "2026-02-27T00:00:00+00:00"),
    ("0 12 * JAN-MAR SUN", None, "2026-03-01T12:00:00+00:00", "2026-03-01T12:00:00+00:00"),
    ("0 8 * * *", "Europe/Berlin", "2026-07-01T07:00:00+00:00", "2026-07-01T06:00:00+00:00"),
    ("0 8 * * *", "Europe/Berlin", "2026-01-01T07:30:00+00:00", "2026-01-01T07:00:00+00:00"),
    ("0 0 29 2 *", None, "2026-01-01T00:00:00+00:00", "2024-02-29T00:00:00+00:00"),
]


@pytest.mark.parametrize(("schedule", "zone", "now", "last"), LATEST, ids=str)
def test_schedule_yields_its_last_time(schedule: str, zone: str | None, now: str, last: str) -> None:
    assert not schedules.schedule_problem(schedule)
    assert schedules.latest_time(schedule, zone, moment(now)) == moment(last)


@given(st.text("0123456789*/,-?@LMON# ", max_size=20), st.datetimes(moment("2000-01-01"), moment("2100-01-01")))
def test_any_schedule_is_rejected_or_yields_past_times(schedule: str, now: datetime.datetime) -> None:
    now = now.replace(tzinfo=datetime.UTC)
    last = schedules.latest_time(schedule, None, now)
    assert last is None or last <= now


WRONG = [
    ({"schedule": ""}, ["spec.schedule"]),
    ({"schedule": "* * * *"}, ["spec.schedule"]),
    ({"schedule": "* * * * * *"}, ["spec.schedule"]),
    ({"schedule": "61 * * * *"}, ["spec.schedule"]),
    ({"schedule": f"{'0,' * 600}0 * * * *"}, ["spec.schedule"]),
    ({"schedule": "@sometimes"}, ["spec.schedule"]),
    ({"schedule": "TZ=UTC * * * * *"}, ["spec.schedule"]),
    ({"timeZone": "Middle/Earth"}, ["spec.timeZone"]),
    ({"timeZone": "../../etc/passwd"}, ["spec.timeZone"]),
    ({"concurrencyPolicy": "Maybe"}, ["spec.concurrencyPolicy"]),
    ({"startingDeadlineSeconds": -1}, ["spec.startingDeadlineSeconds"]),
    ({"jobTemplate": {}}, ["spec.jobTemplate.spec.template.spec.containers"]),
    (
        {"jobTemplate": {"spec": {**TEMPLATE["spec"], "manualSelector": True}}},
        ["spec.jobTemplate.spec.selector"],
    ),
]


@pytest.mark.parametrize(("spec", "paths"), WRONG, ids=str)
def test_invalid_cron_job_is_rejected_by_path(spec: dict[str, Any], paths: list[str]) -> None:
    own = {"schedule": "* * * * *", "jobTemplate": TEMPLATE}
    _, problems, _ = decode(CronJob, {"metadata": {"name": "tidy"}, "spec": {**own, **spec}}, CRON_JOBS.rules)
    assert [error.path for error in problems if not error.path.endswith("restartPolicy")] == paths


def test_deleted_job_is_reported_missing_once_and_a_replaced_one_is_not() -> None:
    def missed(world: Times) -> list[str]:
        return [event.message for event in world.all("Event") if event.reason == "MissingJob"]

    world = Times()
    world.wait(10.1)
    (job,) = world.all("Job")
    world.remove(job)
    world.wait(1)
    assert missed(world) == [f"Active job went missing: {job.metadata.name}"]
    assert world.active == []
    replaced = Times(concurrencyPolicy="Replace")
    replaced.wait(10.1)
    replaced.wait(10)
    assert (replaced.minutes, missed(replaced)) == ([20], [])
