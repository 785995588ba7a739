"""Jobs: pods are created until enough have succeeded or too many have failed. Pure.

Failing and completing take two steps, as in Kubernetes: the job first gets the condition of its target state, and its
pods are deleted; when none is left it reaches that state.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from msgspec.structs import replace

from api.core.events import NORMAL, WARNING, reference
from api.core.pod import Container, EnvVar, EnvVarSource, Pod
from api.meta.selectors import LabelSelector, selector
from api.meta.types import Condition, ObjectFieldSelector
from master.controllers import events
from master.controllers.actions import Action, Create, Delete, Update, WriteAction
from master.controllers.context import Lister
from master.controllers.workloads.job_tracking import (
    FAILURES,
    IGNORED_FAILURES,
    TRACKING_FINALIZER,
    JobPods,
    has_finalizer,
    restarts,
    with_finalizer,
    without_finalizer,
)
from master.controllers.workloads.pod_control import (
    MAX_PODS_PER_PASS,
    OwnerIndex,
    claim_pods,
    deletion_order,
    pod_from_template,
    ready_since,
)
from master.resources import jobs as job_indexes
from master.resources import jobs as success_policy
from master.resources.jobs import (
    COMPLETE,
    CRITERIA_MET,
    FAILED,
    FAILED_POLICY,
    FAILURE_TARGET,
    JOB_CONTROLLER,
    SUSPENDED,
    Job,
    JobStatus,
    completion_index,
    has_condition,
    is_job_finished,
)
from master.resources.jobs import COMPLETION_INDEX as INDEX
from master.resources.metadata import controller_of, format_time, parse_time

COMPLETION_INDEX = "JOB_COMPLETION_INDEX"
CONTROLLER = "job-controller"


def reconcile(
    jobs: Iterable[Job], pods: Iterable[Pod], now: datetime.datetime, refused: Mapping[str, str]
) -> Iterator[WriteAction]:
    """Everything that is to be written for these jobs. `refused`: by uid, why a job does not get its pods."""
    everything, known = tuple(pods), tuple(jobs)
    kin = OwnerIndex(() if all(map(is_job_finished, known)) else everything)
    counting: set[str] = set()
    for job in known:
        if job.spec.managed_by not in (None, JOB_CONTROLLER):
            counting.add(job.metadata.uid)  # Whoever acts for it counts its pods, too.
        elif not is_job_finished(job):
            counting.add(job.metadata.uid)
            yield from _sync(job, kin.near(job), now, job.metadata.uid in refused)
        elif _is_due(job, now):
            yield Delete(job, "Foreground")
    for pod in everything:
        owner = controller_of(pod.metadata)
        if has_finalizer(pod) and (owner is None or owner.uid not in counting):
            yield Update(without_finalizer(pod), pod)


def _is_due(job: Job, now: datetime.datetime) -> bool:
    """Whether a job that has finished is to be forgotten."""
    seconds, last = job.spec.ttl_seconds_after_finished, (COMPLETE, FAILED)
    ends = (row.last_transition_time for row in job.status.conditions if row.type in last and row.status == "True")
    ended = parse_time(next(ends, None))
    if seconds is None or ended is None or job.metadata.deletion_timestamp:
        return False
    return (now - ended).total_seconds() >= seconds


def _sync(job: Job, pods: Iterable[Pod], now: datetime.datetime, is_refused: bool) -> Iterator[WriteAction]:
    found = claim_pods(job, selector(job.spec.selector or LabelSelector()), pods, with_finalizer)
    if found.handed:
        yield from found.handed
        return
    tally = JobPods(job, found.mine)
    yield from (Update(without_finalizer(pod), pod) for pod in tally.counted)
    target = _target(tally, now)
    made, ended = _plan_pods(tally, target, now)
    yield from made
    for pod in ended:
        yield Delete(pod)
        yield events.deleted(job, pod, CONTROLLER, now)
    status = _status(tally, target, 0 if is_refused else len(made), ended, now)
    if status != job.status:
        yield Update(replace(job, status=status), job)
        yield from _condition_event(job, status, now)


def _condition_event(job: Job, status: JobStatus, now: datetime.datetime) -> Iterator[Create]:
    """An event for what the job has come to."""
    known = {(row.type, row.status) for row in job.status.conditions}
    for row in status.conditions:
        if (row.type, row.status) not in known and row.type in (COMPLETE, FAILED, SUSPENDED):
            reason, words = {
                COMPLETE: ("Completed", "Job completed"),
                SUSPENDED: ("Suspended", row.message) if row.status == "True" else ("Resumed", row.message),
            }.get(row.type, (row.reason, row.message))
            kind = WARNING if row.type == FAILED else NORMAL
            yield events.event_about(reference(job), kind, reason, words, CONTROLLER, now)


# --- what it comes to -------------------------------------------------------------------------------------------------


def _target(tally: JobPods, now: datetime.datetime) -> Condition | None:
    """The condition that says what the job comes to, if that is known."""
    job = tally.job
    known = (
        row for row in job.status.conditions if row.type in (CRITERIA_MET, FAILURE_TARGET) and row.status == "True"
    )
    if (old := next(known, None)) is not None:
        return old
    if (failure := _failure(tally, now)) is not None:
        return _condition(FAILURE_TARGET, *failure, now)
    wanted = job.spec.completions
    rule = success_policy.matched_rule(job.spec.success_policy, tally.done, wanted or 0)
    if rule is not None:
        return _condition(CRITERIA_MET, "SuccessPolicy", f"Matched rules at index {rule}", now)
    enough = tally.succeeded >= wanted if wanted is not None else tally.succeeded > 0 and not tally.active
    if enough:
        return _condition(CRITERIA_MET, "CompletionsReached", "Reached expected number of succeeded pods", now)
    return None


def _failure(tally: JobPods, now: datetime.datetime) -> tuple[str, str] | None:
    """Reason and sentence of a job that is given up."""
    spec, limit = tally.job.spec, tally.job.spec.backoff_limit or 0
    if tally.fatal:
        return "PodFailurePolicy", tally.fatal
    restarted = restarts(tally.active) if spec.template.spec.restart_policy == "OnFailure" else 0
    if tally.failed > limit or (restarted >= limit if limit else restarted > 0):
        return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    begun = parse_time(tally.job.status.start_time)
    lasted = (now - begun).total_seconds() if begun is not None and not spec.suspend else -1.0
    if spec.active_deadline_seconds is not None and lasted >= spec.active_deadline_seconds:
        return "DeadlineExceeded", "Job was active longer than specified deadline"
    if spec.max_failed_indexes is not None and len(tally.lost) > spec.max_failed_indexes:
        return "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
    if tally.lost and len(tally.lost | tally.done) >= (spec.completions or 0):
        return "FailedIndexes", "Job has failed indexes"
    return None


def _condition(name: str, reason: str, message: str, now: datetime.datetime, status: str = "True") -> Condition:
    moment = format_time(now)
    return Condition(
        type=name,
        status=status,
        reason=reason,
        message=message,
        last_probe_time=moment,
        last_transition_time=moment,
    )


# --- pods come and go -------------------------------------------------------------------------------------------------


def _plan_pods(tally: JobPods, target: Condition | None, now: datetime.datetime) -> tuple[list[Create], list[Pod]]:
    """Pods to be made and pods to be ended. One that the job itself ends is no failure and loses its mark, unless the
    whole job has failed.
    """
    job = tally.job
    if job.metadata.deletion_timestamp:
        return [], []
    if target is not None and target.type == FAILURE_TARGET:
        return [], list(tally.active[:MAX_PODS_PER_PASS])
    surplus = tally.active if target is not None or job.spec.suspend else _surplus(tally)
    if surplus:
        return [], [without_finalizer(pod) for pod in surplus[:MAX_PODS_PER_PASS]]
    if target is not None or job.spec.suspend:
        return [], []
    return _creates(tally, now), []


def _desired_active(tally: JobPods) -> int:
    """How many pods are to run now."""
    spec = tally.job.spec
    parallel = spec.parallelism or 0
    if spec.completions is None:
        return len(tally.active) if tally.succeeded else parallel
    return max(0, min(parallel, spec.completions - tally.succeeded - len(tally.lost)))


def _surplus(tally: JobPods) -> tuple[Pod, ...]:
    """Pods that run and are not needed: of an index that is settled or has another pod, and beyond the parallelism."""
    needless: list[Pod] = []
    needed = list(tally.active)
    if tally.is_indexed:
        settled = set(tally.done | tally.lost)
        needed = []
        for pod in sorted(tally.active, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name)):
            index = completion_index(pod)
            is_pending = index is not None and index < (tally.job.spec.completions or 0) and index not in settled
            (needed if is_pending else needless).append(pod)
            settled.add(-1 if index is None else index)
    too_many = max(0, len(needed) - _desired_active(tally))
    return (*needless, *deletion_order(needed)[:too_many])


def _creates(tally: JobPods, now: datetime.datetime) -> list[Create]:
    job = tally.job
    later = len(tally.terminating) if job.spec.pod_replacement_policy == FAILED_POLICY else 0
    missing = min(_desired_active(tally) - len(tally.active) - later, MAX_PODS_PER_PASS)
    per_index = job.spec.backoff_limit_per_index is not None
    if missing <= 0 or (not per_index and tally.waits(now)):
        return []
    if not tally.is_indexed:
        return [Create(pod_from_template(job.spec.template, job, finalizers=_finalizers(job)), CONTROLLER)] * missing
    taken = {completion_index(pod) for pod in (*tally.active, *(tally.terminating if later else ()))}
    settled = tally.done | tally.lost | taken
    pending = (index for index in range(job.spec.completions or 0) if index not in settled)
    free = (index for index in pending if not tally.index_waits(index, now))
    return [Create(_index_pod(tally, index), CONTROLLER) for index in islice(free, missing)]


def _finalizers(job: Job) -> tuple[str, ...]:
    return (*job.spec.template.metadata.finalizers, TRACKING_FINALIZER)


def _index_pod(tally: JobPods, index: int) -> Pod:
    """The pod of an index, which knows it by annotation, label, variable and the name of its host."""
    job = tally.job
    meta = job.spec.template.metadata
    annotations = {**meta.annotations, INDEX: str(index)}
    if job.spec.backoff_limit_per_index is not None:
        before = tally.latest.get(index)
        counts = (0, 0) if before is None else tally.failures_after(before)
        annotations |= {FAILURES: str(counts[0])} | ({IGNORED_FAILURES: str(counts[1])} if counts[1] else {})
    name = f"{job.metadata.name}-{index}"
    pod = pod_from_template(
        job.spec.template,
        job,
        generate_name=f"{name}-",
        labels={**meta.labels, INDEX: str(index)},
        annotations=annotations,
        finalizers=_finalizers(job),
    )
    containers = tuple(map(_with_index, pod.spec.containers))
    firsts = tuple(map(_with_index, pod.spec.init_containers))
    spec = replace(pod.spec, hostname=name, containers=containers, init_containers=firsts)
    return replace(pod, spec=spec)


def _with_index(container: Container) -> Container:
    if any(row.name == COMPLETION_INDEX for row in container.env):
        return container
    source = EnvVarSource(field_ref=ObjectFieldSelector(api_version="v1", field_path=f"metadata.labels['{INDEX}']"))
    return replace(container, env=(*container.env, EnvVar(name=COMPLETION_INDEX, value_from=source)))


# --- what it tells ----------------------------------------------------------------------------------------------------


def _status(tally: JobPods, target: Condition | None, made: int, ended: list[Pod], now: datetime.datetime) -> JobStatus:
    job = tally.job
    old, spec = job.status, job.spec
    rows = {row.type: row for row in old.conditions}
    start: str | None = old.start_time or format_time(now)
    if spec.suspend and target is None:
        start = None
        if not has_condition(job, SUSPENDED):
            rows[SUSPENDED] = _condition(SUSPENDED, "JobSuspended", "Job suspended", now)
    elif has_condition(job, SUSPENDED) and target is None:
        start = format_time(now)
        rows[SUSPENDED] = _condition(SUSPENDED, "JobResumed", "Job resumed", now, status="False")
    finished = target is not None and not (tally.active or tally.terminating or tally.awaited)
    if target is not None:
        rows.setdefault(target.type, target)
    if finished and target is not None:
        last = COMPLETE if target.type == CRITERIA_MET else FAILED
        rows[last] = _condition(last, target.reason, target.message, now)
    leaving = sum(bool(pod.spec.node_name) for pod in ended)
    return replace(
        old,
        conditions=tuple(rows.values()),
        start_time=start,
        completion_time=format_time(now) if COMPLETE in rows else None,
        active=len(tally.active) + made - len(ended),
        ready=sum(ready_since(pod) is not None for pod in tally.active),
        terminating=len(tally.terminating) + leaving,
        succeeded=tally.succeeded,
        failed=tally.told_failed,
        completed_indexes=job_indexes.format_indexes(tally.done) if tally.is_indexed else "",
        failed_indexes=job_indexes.format_indexes(tally.lost) if spec.backoff_limit_per_index is not None else None,
    )


def sync_jobs(lister: Lister) -> Iterable[Action]:
    """Reconcile all Jobs."""
    return reconcile(lister.list("Job"), lister.list("Pod"), lister.now, lister.create_errors)
