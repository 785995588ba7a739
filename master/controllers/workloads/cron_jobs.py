"""CronJobs: a Job at every scheduled time, and a limited history of finished Jobs. Pure.

A Job is named after its CronJob and its scheduled minute, and the time is recorded only when its Job exists. So no
Job is created twice or skipped when the master is killed. Of several missed times only the last one counts.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from api.core.events import NORMAL, reference
from api.meta.types import ObjectMeta, ObjectReference
from master.controllers import events
from master.controllers.actions import Action, Create, Delete, Update, WriteAction
from master.controllers.context import Lister
from master.resources import cron_jobs as schedules
from master.resources.cron_jobs import FORBID_CONCURRENT, REPLACE_CONCURRENT, CronJob, CronJobStatus
from master.resources.jobs import COMPLETE, Job, has_condition, is_job_finished
from master.resources.metadata import controller_of, controller_reference, format_time, parse_time

CONTROLLER = "cronjob-controller"
MANUAL_ANNOTATION = "cronjob.kubernetes.io/instantiate"
"""Annotation of a job that somebody made by hand (`kubectl create job --from`)."""

SCHEDULED_ANNOTATION = "batch.kubernetes.io/cronjob-scheduled-timestamp"
"""Annotation of a job with the time for which it was made."""


def reconcile(cron_jobs: Iterable[CronJob], jobs: Iterable[Job], now: datetime.datetime) -> Iterator[WriteAction]:
    """Everything that is to be written for these cron jobs."""
    owned: dict[str, list[Job]] = defaultdict(list)
    names: set[tuple[str, str]] = set()
    for job in jobs:
        names.add((job.metadata.namespace, job.metadata.name))
        owner = controller_of(job.metadata)
        if owner is not None:
            owned[owner.uid].append(job)
    for one in cron_jobs:
        if one.metadata.deletion_timestamp is None:
            yield from _sync(one, owned[one.metadata.uid], names, now)


def _sync(
    owner: CronJob, jobs: list[Job], names: set[tuple[str, str]], now: datetime.datetime
) -> Iterator[WriteAction]:
    due = _due(owner, now)
    begun = due is not None and (owner.metadata.namespace, _name(owner, due)) in names
    active = [job for job in jobs if not is_job_finished(job) and MANUAL_ANNOTATION not in job.metadata.annotations]
    waits = owner.spec.concurrency_policy == FORBID_CONCURRENT and active
    there = {job.metadata.uid for job in jobs}
    yield from (_missing_job_event(owner, row, now) for row in owner.status.active if row.uid not in there)
    if due is not None and not begun and not waits:
        if owner.spec.concurrency_policy == REPLACE_CONCURRENT:
            for job in (job for job in active if not job.metadata.deletion_timestamp):
                yield from _delete_job(owner, job, now)
            active = []
        yield Create(_new_job(owner, due), CONTROLLER)
    for job in _prune_history(owner, jobs):
        yield from _delete_job(owner, job, now)
    successes = (job.status.completion_time for job in jobs if has_condition(job, COMPLETE))
    known = [time for time in (*successes, owner.status.last_successful_time) if time]
    status = CronJobStatus(
        active=tuple(map(_job_reference, sorted(active, key=lambda job: job.metadata.name))),
        last_schedule_time=format_time(due) if due is not None and begun else owner.status.last_schedule_time,
        last_successful_time=max(known, default=None),
    )
    if status != owner.status:
        yield Update(replace(owner, status=status), owner)


def _due(owner: CronJob, now: datetime.datetime) -> datetime.datetime | None:
    """The last time that has come and is yet to be answered by a job; None if there is none."""
    spec = owner.spec
    since = parse_time(owner.status.last_schedule_time) or parse_time(owner.metadata.creation_timestamp)
    found = None if spec.suspend else schedules.latest_time(spec.schedule, spec.time_zone, now)
    if found is None or since is None or found <= since:
        return None
    limit = spec.starting_deadline_seconds
    return None if limit is not None and (now - found).total_seconds() > limit else found


def _name(owner: CronJob, due: datetime.datetime) -> str:
    return f"{owner.metadata.name}-{int(due.timestamp()) // 60}"


def _new_job(owner: CronJob, due: datetime.datetime) -> Job:
    template = owner.spec.job_template
    return Job(
        metadata=ObjectMeta(
            name=_name(owner, due),
            namespace=owner.metadata.namespace,
            labels=template.metadata.labels,
            annotations={**template.metadata.annotations, SCHEDULED_ANNOTATION: due.isoformat()},
            owner_references=(controller_reference(owner),),
        ),
        spec=template.spec,
    )


def _job_reference(job: Job) -> ObjectReference:
    """Without its revision, which changes all the time."""
    return replace(reference(job), resource_version="")


def _missing_job_event(owner: CronJob, row: ObjectReference, now: datetime.datetime) -> Create:
    """Somebody else has deleted a job before it had finished."""
    words = f"Active job went missing: {row.name}"
    return events.event_about(reference(owner), NORMAL, "MissingJob", words, CONTROLLER, now)


def _delete_job(owner: CronJob, job: Job, now: datetime.datetime) -> Iterator[WriteAction]:
    yield Delete(job)
    yield events.deleted(owner, job, CONTROLLER, now)


def _prune_history(owner: CronJob, jobs: Iterable[Job]) -> Iterator[Job]:
    """Of the jobs that have finished, well or not, all but the newest."""
    finished = [job for job in jobs if is_job_finished(job) and not job.metadata.deletion_timestamp]
    for well, limit in (
        (True, owner.spec.successful_jobs_history_limit),
        (False, owner.spec.failed_jobs_history_limit),
    ):
        kind = [job for job in finished if has_condition(job, COMPLETE) is well]
        kind.sort(key=lambda job: (job.status.start_time or "", job.metadata.name))
        yield from kind[: max(0, len(kind) - (limit or 0))]


def sync_cron_jobs(lister: Lister) -> Iterable[Action]:
    """Reconcile all CronJobs."""
    found = lister.list("CronJob")
    return reconcile(found, lister.list("Job"), lister.now) if found else ()
