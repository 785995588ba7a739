"""CronJob: jobs that begin at given times, again and again. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from msgspec.structs import replace

from api.meta.schema import MISSING, NOT_SUPPORTED, FieldError, quoted
from api.meta.selectors import shown_selector
from api.meta.types import Object, ObjectMeta, ObjectReference, Value
from api.validation.registry import KindRules
from master.kinds import schedules
from master.kinds.checks import at_least
from master.kinds.job import JobSpec, check_spec
from master.kinds.kind import AGE, NAME, Column, Kind, age, or_none
from master.kinds.workload import WIDE, defaulted_template, wide_cells

ALLOW, FORBID, REPLACE = "Allow", "Forbid", "Replace"
SUCCEEDED_KEPT, FAILED_KEPT = 3, 1
LONGEST_NAME = 52
"""Leaves room for the minute in the names of its jobs."""


class JobTemplateSpec(Value, frozen=True):
    """What a job is made from."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()


class CronJobSpec(Value, frozen=True):
    """`schedule` is in the form of cron, in the time of `time_zone`, or UTC.

    `concurrency_policy` says what happens when the job before has not finished: Allow, Forbid or Replace. A job that
    could not begin for `starting_deadline_seconds` is left out.
    """

    schedule: str = ""
    time_zone: str | None = None
    starting_deadline_seconds: int | None = None
    concurrency_policy: str = ""
    suspend: bool | None = None
    job_template: JobTemplateSpec = JobTemplateSpec()
    successful_jobs_history_limit: int | None = None
    failed_jobs_history_limit: int | None = None


class CronJobStatus(Value, frozen=True):
    """`active` are the jobs that have not finished."""

    active: tuple[ObjectReference, ...] = ()
    last_schedule_time: str | None = None
    last_successful_time: str | None = None


class CronJob(Object, frozen=True):
    """Makes a job whenever it is time."""

    API_VERSION = "batch/v1"
    KIND = "CronJob"

    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()


def _default(item: CronJob) -> CronJob:
    spec, job = item.spec, item.spec.job_template.spec
    kept, failed = spec.successful_jobs_history_limit, spec.failed_jobs_history_limit
    template = replace(spec.job_template, spec=replace(job, template=defaulted_template(job.template)))
    spec = replace(
        spec,
        concurrency_policy=spec.concurrency_policy or ALLOW,
        suspend=bool(spec.suspend),
        job_template=template,
        successful_jobs_history_limit=SUCCEEDED_KEPT if kept is None else kept,
        failed_jobs_history_limit=FAILED_KEPT if failed is None else failed,
    )
    return replace(item, spec=spec)


def _check(item: CronJob) -> Iterator[FieldError]:
    spec = item.spec
    if len(item.metadata.name) > LONGEST_NAME:
        yield FieldError("metadata.name", quoted(item.metadata.name), f"must be no more than {LONGEST_NAME} characters")
    if not spec.schedule:
        yield FieldError("spec.schedule", '""', "a schedule is required", MISSING)
    elif why := schedules.problem(spec.schedule):
        yield FieldError("spec.schedule", quoted(spec.schedule), why)
    if spec.time_zone is not None and not schedules.is_zone(spec.time_zone):
        yield FieldError("spec.timeZone", quoted(spec.time_zone), f"unknown time zone {spec.time_zone}")
    if spec.concurrency_policy not in ("", ALLOW, FORBID, REPLACE):
        accepted = f"{ALLOW}, {FORBID} and {REPLACE} are accepted"
        yield FieldError("spec.concurrencyPolicy", quoted(spec.concurrency_policy), accepted, NOT_SUPPORTED)
    yield from at_least(
        ("spec.startingDeadlineSeconds", spec.starting_deadline_seconds, 0),
        ("spec.successfulJobsHistoryLimit", spec.successful_jobs_history_limit, 0),
        ("spec.failedJobsHistoryLimit", spec.failed_jobs_history_limit, 0),
    )
    job = spec.job_template.spec
    for row in check_spec(job):
        yield row._replace(path=f"spec.jobTemplate.{row.path}")
    if job.manual_selector or job.selector is not None:
        why = "the server makes the selector of each job; none is accepted here"
        yield FieldError("spec.jobTemplate.spec.selector", quoted(shown_selector(job.selector)), why)


def _cells(item: CronJob, now: datetime.datetime) -> tuple[object, ...]:
    spec, last = item.spec, item.status.last_schedule_time
    job = spec.job_template.spec
    return (
        item.metadata.name,
        spec.schedule,
        or_none(spec.time_zone or ""),
        str(bool(spec.suspend)),
        len(item.status.active),
        age(last, now) if last else "<none>",
        age(item.metadata.creation_timestamp, now),
        *wide_cells(job.template, shown_selector(job.selector)),
    )


CRON_JOB = Kind(
    type=CronJob,
    plural="cronjobs",
    singular="cronjob",
    namespaced=True,
    short=("cj",),
    categories=("all",),
    columns=(
        NAME,
        Column("Schedule", "When a job begins, in the form of cron."),
        Column("Timezone", "In whose time that is."),
        Column("Suspend", "Whether no more begin.", "boolean"),
        Column("Active", "How many of its jobs have not finished.", "integer"),
        Column("Last Schedule", "Time since the last one was due."),
        AGE,
        *WIDE,
    ),
    cells=_cells,
    on_create=lambda item: replace(item, status=CronJobStatus()),
    on_update=lambda new, old: replace(new, status=old.status),
    with_status=lambda new, old: replace(old, status=new.status),
    spec=lambda item: item.spec,
    own_rules=KindRules(default=_default, check=_check),
)
