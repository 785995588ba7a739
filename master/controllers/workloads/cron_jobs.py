"""CronJobs: a Job at every scheduled time, and a limited history of finished Jobs. Pure.

A Job is named after its CronJob and its scheduled minute, and the time is recorded only when its Job exists. So no
Job is created twice or skipped when the master is killed. Of several missed times only the last one counts.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from api.core.events import NORMAL, object_reference
from api.meta.types import ObjectMeta, ObjectReference
from master.controllers import events
from master.controllers.actions import Action, Create, Delete, Failed, Update, WriteAction, isolate_errors
from master.controllers.context import Lister
from master.resources.cron_jobs import FORBID_CONCURRENT, REPLACE_CONCURRENT, CronJob, CronJobStatus, latest_time
from master.resources.jobs import COMPLETE, Job, has_condition, is_job_finished
from master.resources.metadata import controller_of, controller_reference, format_time, parse_time

CONTROLLER = "cronjob-controller"
MANUAL_ANNOTATION = "cronjob.kubernetes.io/instantiate"
"""Annotation of a job that a user created (`kubectl create job --from`)."""

SCHEDULED_ANNOTATION = "batch.kubernetes.io/cronjob-scheduled-timestamp"
"""Annotation of a job with its scheduled time."""


def reconcile(
    cron_jobs: Iterable[CronJob], jobs: Iterable[Job], now: datetime.datetime
) -> Iterator[WriteAction | Failed]:
    """Yield the writes for these cron jobs."""
    jobs_by_owner: dict[str, list[Job]] = defaultdict(list)
    names: set[tuple[str, str]] = set()
    for job in jobs:
        names.add((job.metadata.namespace, job.metadata.name))
        owner = controller_of(job.metadata)
        if owner is not None:
            jobs_by_owner[owner.uid].append(job)

    def sync_cron_job(cron_job: CronJob) -> Iterator[WriteAction]:
        if cron_job.metadata.deletion_timestamp is None:
            yield from _sync(cron_job, jobs_by_owner[cron_job.metadata.uid], names, now)

    return isolate_errors(cron_jobs, sync_cron_job)


def _sync(
    owner: CronJob, jobs: list[Job], names: set[tuple[str, str]], now: datetime.datetime
) -> Iterator[WriteAction]:
    scheduled_time = _due_time(owner, now)
    is_created = scheduled_time is not None and (owner.metadata.namespace, _job_name(owner, scheduled_time)) in names
    active = [job for job in jobs if not is_job_finished(job) and MANUAL_ANNOTATION not in job.metadata.annotations]
    must_wait = owner.spec.concurrency_policy == FORBID_CONCURRENT and active
    job_uids = {job.metadata.uid for job in jobs}
    yield from (
        _missing_job_event(owner, job_reference, now)
        for job_reference in owner.status.active
        if job_reference.uid not in job_uids
    )
    if scheduled_time is not None and not is_created and not must_wait:
        if owner.spec.concurrency_policy == REPLACE_CONCURRENT:
            for job in (job for job in active if not job.metadata.deletion_timestamp):
                yield from _delete_job(owner, job, now)
            active = []
        yield Create(_new_job(owner, scheduled_time), CONTROLLER)
    for job in _prune_history(owner, jobs):
        yield from _delete_job(owner, job, now)
    successes = (job.status.completion_time for job in jobs if has_condition(job, COMPLETE))
    success_times = [time for time in (*successes, owner.status.last_successful_time) if time]
    status = CronJobStatus(
        active=tuple(map(_job_reference, sorted(active, key=lambda job: job.metadata.name))),
        last_schedule_time=format_time(scheduled_time)
        if scheduled_time is not None and is_created
        else owner.status.last_schedule_time,
        last_successful_time=max(success_times, default=None),
    )
    if status != owner.status:
        yield Update(replace(owner, status=status), owner)


def _due_time(owner: CronJob, now: datetime.datetime) -> datetime.datetime | None:
    """Return the last scheduled time without a job; None if there is none."""
    spec = owner.spec
    since = parse_time(owner.status.last_schedule_time) or parse_time(owner.metadata.creation_timestamp)
    latest = None if spec.suspend else latest_time(spec.schedule, spec.time_zone, now)
    if latest is None or since is None or latest <= since:
        return None
    limit = spec.starting_deadline_seconds
    return None if limit is not None and (now - latest).total_seconds() > limit else latest


def _job_name(owner: CronJob, scheduled_time: datetime.datetime) -> str:
    return f"{owner.metadata.name}-{int(scheduled_time.timestamp()) // 60}"


def _new_job(owner: CronJob, scheduled_time: datetime.datetime) -> Job:
    template = owner.spec.job_template
    return Job(
        metadata=ObjectMeta(
            name=_job_name(owner, scheduled_time),
            namespace=owner.metadata.namespace,
            labels=template.metadata.labels,
            annotations={**template.metadata.annotations, SCHEDULED_ANNOTATION: scheduled_time.isoformat()},
            owner_references=(controller_reference(owner),),
        ),
        spec=template.spec,
    )


def _job_reference(job: Job) -> ObjectReference:
    """Return a reference without resourceVersion, which changes often."""
    return replace(object_reference(job), resource_version="")


def _missing_job_event(owner: CronJob, job_reference: ObjectReference, now: datetime.datetime) -> Create:
    """Return the event that an active job was deleted by others."""
    message = f"Active job went missing: {job_reference.name}"
    return events.event_about(object_reference(owner), NORMAL, "MissingJob", message, CONTROLLER, now)


def _delete_job(owner: CronJob, job: Job, now: datetime.datetime) -> Iterator[WriteAction]:
    yield Delete(job)
    yield events.deleted(owner, job, CONTROLLER, now)


def _prune_history(owner: CronJob, jobs: Iterable[Job]) -> Iterator[Job]:
    """Yield the oldest finished jobs beyond the history limits, complete and failed ones."""
    finished = [job for job in jobs if is_job_finished(job) and not job.metadata.deletion_timestamp]
    for is_complete, limit in (
        (True, owner.spec.successful_jobs_history_limit),
        (False, owner.spec.failed_jobs_history_limit),
    ):
        selected = [job for job in finished if has_condition(job, COMPLETE) is is_complete]
        selected.sort(key=lambda job: (job.status.start_time or "", job.metadata.name))
        yield from selected[: max(0, len(selected) - (limit or 0))]


def cron_jobs_await_time(lister: Lister) -> bool:
    """Return whether a cron job is not suspended."""
    return any(not cron_job.spec.suspend for cron_job in lister.list(CronJob))


def sync_cron_jobs(lister: Lister) -> Iterable[Action]:
    """Reconcile all CronJobs."""
    cron_jobs = lister.list(CronJob)
    return reconcile(cron_jobs, lister.list(Job), lister.now) if cron_jobs else ()
