"""CronJob (v1 and v1beta1) and cron schedules. Pure, but for the database of time zones.

Components of Kubernetes before 1.21 use CronJob of batch/v1beta1.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from functools import cache, lru_cache
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from msgspec.structs import replace

from api.meta.schema import MISSING, NOT_SUPPORTED, FieldError, quoted
from api.meta.selectors import format_selector
from api.meta.types import Object, ObjectMeta, ObjectReference, Value
from api.meta.values import Int32, Time
from api.validation.registry import KindRules
from master.resources.jobs import JobSpec, validate_job_spec
from master.resources.pod_template import default_template, template_columns
from master.resources.printing import AGE, NAME, age, none_if_empty
from master.resources.resource import Column, Resource, Version
from master.resources.validation import minimum

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
CRON_FIELDS, MAX_SCHEDULE_LENGTH = 5, 1000
MINUTE = datetime.timedelta(minutes=1)
_SOME_DAY = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


@cache
def _time_zones() -> frozenset[str]:
    return frozenset(available_timezones())


def is_time_zone(name: str) -> bool:
    """Return whether a time zone of this name exists."""
    return name in _time_zones()


def schedule_problem(schedule: str) -> str:
    """Return why a schedule is not valid; empty if it is."""
    if "TZ" in schedule:
        return "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
    if len(schedule) > MAX_SCHEDULE_LENGTH:
        return f"must be no more than {MAX_SCHEDULE_LENGTH} characters"
    plain = _five_fields(schedule)
    accepted = f"five fields as in cron, or one of {', '.join(MACROS)}, are accepted"
    if len(plain.split()) != CRON_FIELDS:
        return accepted
    try:
        CronSim(plain, _SOME_DAY)
    except CronSimError as error:
        return f"{str(error)[:1].lower()}{str(error)[1:]}; {accepted}"
    return ""


def _five_fields(schedule: str) -> str:
    """Return the schedule as the five fields of cron, with "*" for "?"."""
    words = MACROS.get(schedule.strip(), schedule).split()
    return " ".join(f"*{word[1:]}" if word.startswith("?") else word for word in words)


def latest_time(schedule: str, zone: str | None, now: datetime.datetime) -> datetime.datetime | None:
    """Return the last time of the schedule up to and including `now`; None if there is none."""
    minute = now.astimezone(datetime.UTC).replace(second=0, microsecond=0)
    return _latest_time_at(schedule, zone or "UTC", minute)


@lru_cache(maxsize=4096)
def _latest_time_at(schedule: str, zone: str, minute: datetime.datetime) -> datetime.datetime | None:
    """Return the last time of the schedule; cached for the minute, the resolution of schedules."""
    try:
        past = CronSim(_five_fields(schedule), (minute + MINUTE).astimezone(ZoneInfo(zone)), reverse=True)
        return next(past, None)
    except CronSimError:
        return None


ALLOW_CONCURRENT, FORBID_CONCURRENT, REPLACE_CONCURRENT = "Allow", "Forbid", "Replace"
DEFAULT_SUCCESSFUL_JOBS_HISTORY, DEFAULT_FAILED_JOBS_HISTORY = 3, 1
MAX_CRON_JOB_NAME_LENGTH = 52
"""Leaves room for the minute in the names of its jobs."""


class JobTemplateSpec(Value, frozen=True):
    """The template of a job."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()


class CronJobSpec(Value, frozen=True):
    """The desired state of a CronJob.

    `schedule` has the form of cron, in the time zone `time_zone`, or UTC. `concurrency_policy` says what happens when
    the previous job has not finished: Allow, Forbid or Replace. A job that could not begin for
    `starting_deadline_seconds` is skipped.
    """

    schedule: str = ""
    time_zone: str | None = None
    starting_deadline_seconds: int | None = None
    concurrency_policy: str = ""
    suspend: bool | None = None
    job_template: JobTemplateSpec = JobTemplateSpec()
    successful_jobs_history_limit: Int32 | None = None
    failed_jobs_history_limit: Int32 | None = None


class CronJobStatus(Value, frozen=True):
    """The actual state of a CronJob. `active` are the jobs that have not finished."""

    active: tuple[ObjectReference, ...] = ()
    last_schedule_time: Time | None = None
    last_successful_time: Time | None = None


class CronJob(Object, frozen=True):
    """Creates a job at each time of a schedule."""

    API_VERSION = "batch/v1"
    KIND = "CronJob"
    PLURAL = "cronjobs"
    NAMESPACED = True

    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()


def _default_cron_job(cron_job: CronJob) -> CronJob:
    spec, job = cron_job.spec, cron_job.spec.job_template.spec
    successful, failed = spec.successful_jobs_history_limit, spec.failed_jobs_history_limit
    template = replace(spec.job_template, spec=replace(job, template=default_template(job.template)))
    spec = replace(
        spec,
        concurrency_policy=spec.concurrency_policy or ALLOW_CONCURRENT,
        suspend=bool(spec.suspend),
        job_template=template,
        successful_jobs_history_limit=DEFAULT_SUCCESSFUL_JOBS_HISTORY if successful is None else successful,
        failed_jobs_history_limit=DEFAULT_FAILED_JOBS_HISTORY if failed is None else failed,
    )
    return replace(cron_job, spec=spec)


def _validate_cron_job(cron_job: CronJob) -> Iterator[FieldError]:
    spec = cron_job.spec
    if len(cron_job.metadata.name) > MAX_CRON_JOB_NAME_LENGTH:
        yield FieldError(
            "metadata.name",
            quoted(cron_job.metadata.name),
            f"must be no more than {MAX_CRON_JOB_NAME_LENGTH} characters",
        )
    if not spec.schedule:
        yield FieldError("spec.schedule", '""', "a schedule is required", MISSING)
    elif reason := schedule_problem(spec.schedule):
        yield FieldError("spec.schedule", quoted(spec.schedule), reason)
    if spec.time_zone is not None and not is_time_zone(spec.time_zone):
        yield FieldError("spec.timeZone", quoted(spec.time_zone), f"unknown time zone {spec.time_zone}")
    if spec.concurrency_policy not in ("", ALLOW_CONCURRENT, FORBID_CONCURRENT, REPLACE_CONCURRENT):
        accepted = f"{ALLOW_CONCURRENT}, {FORBID_CONCURRENT} and {REPLACE_CONCURRENT} are accepted"
        yield FieldError("spec.concurrencyPolicy", quoted(spec.concurrency_policy), accepted, NOT_SUPPORTED)
    yield from minimum(
        ("spec.startingDeadlineSeconds", spec.starting_deadline_seconds, 0),
        ("spec.successfulJobsHistoryLimit", spec.successful_jobs_history_limit, 0),
        ("spec.failedJobsHistoryLimit", spec.failed_jobs_history_limit, 0),
    )
    job = spec.job_template.spec
    for error in validate_job_spec(job):
        yield error._replace(path=f"spec.jobTemplate.{error.path}")
    if job.manual_selector or job.selector is not None:
        reason = "the server makes the selector of each job; none is accepted here"
        yield FieldError("spec.jobTemplate.spec.selector", quoted(format_selector(job.selector)), reason)


CRON_JOBS = Resource(
    type=CronJob,
    short_names=("cj",),
    categories=("all",),
    columns=(
        NAME,
        Column("Schedule", "When a job begins, in the form of cron.", lambda cron_job, _: cron_job.spec.schedule),
        Column(
            "Timezone", "Time zone of the schedule.", lambda cron_job, _: none_if_empty(cron_job.spec.time_zone or "")
        ),
        Column(
            "Suspend",
            "True if no more jobs are created.",
            lambda cron_job, _: str(bool(cron_job.spec.suspend)),
            type="boolean",
        ),
        Column(
            "Active",
            "Number of jobs that have not finished.",
            lambda cron_job, _: len(cron_job.status.active),
            type="integer",
        ),
        Column(
            "Last Schedule",
            "Time since the last one was due.",
            lambda cron_job, now: (
                age(cron_job.status.last_schedule_time, now) if cron_job.status.last_schedule_time else "<none>"
            ),
        ),
        AGE,
        *template_columns(
            lambda cron_job: cron_job.spec.job_template.spec.template,
            lambda cron_job: format_selector(cron_job.spec.job_template.spec.selector),
        ),
    ),
    spec=lambda cron_job: cron_job.spec,
    rules=KindRules(default=_default_cron_job, validate=_validate_cron_job),
    acted_on_by="the cron job controller of the master",
)


class CronJobV1beta1(Object, frozen=True):
    """Creates a job at each time of a schedule."""

    API_VERSION = "batch/v1beta1"
    KIND = "CronJob"
    PLURAL = "cronjobs"
    NAMESPACED = True

    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()


def _cron_job_v1beta1_from_stored(cron_job: CronJob) -> CronJobV1beta1:
    return CronJobV1beta1(metadata=cron_job.metadata, spec=cron_job.spec, status=cron_job.status)


def _cron_job_v1beta1_to_stored(cron_job: CronJobV1beta1) -> CronJob:
    return CronJob(metadata=cron_job.metadata, spec=cron_job.spec, status=cron_job.status)


def _default_cron_job_v1beta1(cron_job: CronJobV1beta1) -> CronJobV1beta1:
    return replace(cron_job, spec=CRON_JOBS.rules.default(_cron_job_v1beta1_to_stored(cron_job)).spec)


def _validate_cron_job_v1beta1(cron_job: CronJobV1beta1) -> Iterator[FieldError]:
    yield from CRON_JOBS.rules.validate(_cron_job_v1beta1_to_stored(cron_job))


CRON_JOBS_V1BETA1 = Resource(
    type=CronJobV1beta1,
    short_names=CRON_JOBS.short_names,
    columns=CRON_JOBS.columns,
    spec=lambda cron_job: cron_job.spec,
    rules=KindRules(default=_default_cron_job_v1beta1, validate=_validate_cron_job_v1beta1),
    stored_as=Version(CRON_JOBS, _cron_job_v1beta1_from_stored, _cron_job_v1beta1_to_stored),
)
