"""Jobs: pods are created until enough have succeeded or too many have failed. Pure.

Failing and completing take two steps, as in Kubernetes: the job first gets the condition of its target state, and its
pods are deleted; when none is left it reaches that state.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from msgspec.structs import replace

from api.core.events import NORMAL, WARNING, object_reference
from api.core.pod import Container, EnvVar, EnvVarSource, Pod
from api.meta.selectors import LabelSelector, compile_selector
from api.meta.types import Condition, ObjectFieldSelector
from master.controllers import events
from master.controllers.actions import Action, Create, Delete, Failed, Update, WriteAction, isolate_errors
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
from master.resources.jobs import (
    COMPLETE,
    COMPLETION_INDEX,
    CRITERIA_MET,
    FAILED,
    FAILED_POLICY,
    FAILURE_TARGET,
    JOB_CONTROLLER,
    SUSPENDED,
    Job,
    JobStatus,
    completion_index,
    format_indexes,
    has_condition,
    is_job_finished,
    matched_rule,
)
from master.resources.metadata import controller_of, format_time, parse_time

COMPLETION_INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
CONTROLLER = "job-controller"


def reconcile(
    jobs: Iterable[Job], pods: Iterable[Pod], now: datetime.datetime, create_errors: Mapping[str, str]
) -> Iterator[WriteAction | Failed]:
    """Yield the writes for these jobs. `create_errors`: by uid, why pods of a job could not be created."""
    all_pods, all_jobs = tuple(pods), tuple(jobs)
    index = OwnerIndex(() if all(map(is_job_finished, all_jobs)) else all_pods)
    counting_jobs: set[str] = set()

    def sync_job(job: Job) -> Iterator[WriteAction]:
        if job.spec.managed_by not in (None, JOB_CONTROLLER):
            counting_jobs.add(job.metadata.uid)  # Its other controller counts its pods, too.
        elif not is_job_finished(job):
            counting_jobs.add(job.metadata.uid)
            yield from _sync(job, index.candidates(job), now, job.metadata.uid in create_errors)
        elif _is_expired(job, now):
            yield Delete(job, "Foreground")

    yield from isolate_errors(all_jobs, sync_job)
    for pod in all_pods:
        owner = controller_of(pod.metadata)
        if has_finalizer(pod) and (owner is None or owner.uid not in counting_jobs):
            yield Update(without_finalizer(pod), pod)


def _is_expired(job: Job, now: datetime.datetime) -> bool:
    """Return whether a finished job is older than its TTL."""
    seconds, final = job.spec.ttl_seconds_after_finished, (COMPLETE, FAILED)
    times = (
        condition.last_transition_time
        for condition in job.status.conditions
        if condition.type in final and condition.status == "True"
    )
    finished = parse_time(next(times, None))
    if seconds is None or finished is None or job.metadata.deletion_timestamp:
        return False
    return (now - finished).total_seconds() >= seconds


def _sync(job: Job, pods: Iterable[Pod], now: datetime.datetime, is_backing_off: bool) -> Iterator[WriteAction]:
    claimed = claim_pods(job, compile_selector(job.spec.selector or LabelSelector()), pods, with_finalizer)
    if claimed.ownership_changes:
        yield from claimed.ownership_changes
        return
    job_pods = JobPods(job, claimed.owned)
    yield from (Update(without_finalizer(pod), pod) for pod in job_pods.countable)
    target = _target(job_pods, now)
    creates, deletes = _plan_pods(job_pods, target, now)
    yield from creates
    for pod in deletes:
        yield Delete(pod)
        yield events.deleted(job, pod, CONTROLLER, now)
    status = _status(job_pods, target, 0 if is_backing_off else len(creates), deletes, now)
    if status != job.status:
        yield Update(replace(job, status=status), job)
        yield from _condition_event(job, status, now)


def _condition_event(job: Job, status: JobStatus, now: datetime.datetime) -> Iterator[Create]:
    """Yield an event for a new final or suspended condition."""
    old_conditions = {(condition.type, condition.status) for condition in job.status.conditions}
    for condition in status.conditions:
        if (condition.type, condition.status) not in old_conditions and condition.type in (COMPLETE, FAILED, SUSPENDED):
            reason, message = {
                COMPLETE: ("Completed", "Job completed"),
                SUSPENDED: ("Suspended", condition.message)
                if condition.status == "True"
                else ("Resumed", condition.message),
            }.get(condition.type, (condition.reason, condition.message))
            event_type = WARNING if condition.type == FAILED else NORMAL
            yield events.event_about(object_reference(job), event_type, reason, message, CONTROLLER, now)


# --- target state -----------------------------------------------------------------------------------------------------


def _target(job_pods: JobPods, now: datetime.datetime) -> Condition | None:
    """Return the condition of the job's target state, if it is decided."""
    job = job_pods.job
    known_targets = (
        condition
        for condition in job.status.conditions
        if condition.type in (CRITERIA_MET, FAILURE_TARGET) and condition.status == "True"
    )
    if (old := next(known_targets, None)) is not None:
        return old
    if (failure := _failure(job_pods, now)) is not None:
        return _condition(FAILURE_TARGET, *failure, now)
    completions = job.spec.completions
    rule = matched_rule(job.spec.success_policy, job_pods.succeeded_indexes, completions or 0)
    if rule is not None:
        return _condition(CRITERIA_MET, "SuccessPolicy", f"Matched rules at index {rule}", now)
    is_complete = (
        job_pods.succeeded >= completions if completions is not None else job_pods.succeeded > 0 and not job_pods.active
    )
    if is_complete:
        return _condition(CRITERIA_MET, "CompletionsReached", "Reached expected number of succeeded pods", now)
    return None


def _failure(job_pods: JobPods, now: datetime.datetime) -> tuple[str, str] | None:
    """Return reason and message of a failed job; None if it has not failed."""
    spec, limit = job_pods.job.spec, job_pods.job.spec.backoff_limit or 0
    if job_pods.fatal_reason:
        return "PodFailurePolicy", job_pods.fatal_reason
    restart_count = restarts(job_pods.active) if spec.template.spec.restart_policy == "OnFailure" else 0
    if job_pods.failed > limit or (restart_count >= limit if limit else restart_count > 0):
        return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    start = parse_time(job_pods.job.status.start_time)
    duration = (now - start).total_seconds() if start is not None and not spec.suspend else -1.0
    if spec.active_deadline_seconds is not None and duration >= spec.active_deadline_seconds:
        return "DeadlineExceeded", "Job was active longer than specified deadline"
    if spec.max_failed_indexes is not None and len(job_pods.failed_indexes) > spec.max_failed_indexes:
        return "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
    if job_pods.failed_indexes and len(job_pods.failed_indexes | job_pods.succeeded_indexes) >= (spec.completions or 0):
        return "FailedIndexes", "Job has failed indexes"
    return None


def _condition(name: str, reason: str, message: str, now: datetime.datetime, status: str = "True") -> Condition:
    time = format_time(now)
    return Condition(
        type=name,
        status=status,
        reason=reason,
        message=message,
        last_probe_time=time,
        last_transition_time=time,
    )


# --- pods -------------------------------------------------------------------------------------------------------------


def _plan_pods(job_pods: JobPods, target: Condition | None, now: datetime.datetime) -> tuple[list[Create], list[Pod]]:
    """Return creates and pods to delete. A pod that the job itself deletes is no failure, so its finalizer is removed,
    unless the whole job has failed.
    """
    job = job_pods.job
    if job.metadata.deletion_timestamp:
        return [], []
    if target is not None and target.type == FAILURE_TARGET:
        return [], list(job_pods.active[:MAX_PODS_PER_PASS])
    surplus = job_pods.active if target is not None or job.spec.suspend else _surplus(job_pods)
    if surplus:
        return [], [without_finalizer(pod) for pod in surplus[:MAX_PODS_PER_PASS]]
    if target is not None or job.spec.suspend:
        return [], []
    return _creates(job_pods, now), []


def _desired_active(job_pods: JobPods) -> int:
    """Return how many pods are to run now."""
    spec = job_pods.job.spec
    parallel = spec.parallelism or 0
    if spec.completions is None:
        return len(job_pods.active) if job_pods.succeeded else parallel
    return max(0, min(parallel, spec.completions - job_pods.succeeded - len(job_pods.failed_indexes)))


def _surplus(job_pods: JobPods) -> tuple[Pod, ...]:
    """Return active pods that are not needed: of an index that is settled or has another pod, and beyond the
    parallelism.
    """
    unneeded: list[Pod] = []
    needed = list(job_pods.active)
    if job_pods.is_indexed:
        settled_indexes = set(job_pods.succeeded_indexes | job_pods.failed_indexes)
        needed = []
        for pod in sorted(job_pods.active, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name)):
            index = completion_index(pod)
            is_pending = (
                index is not None and index < (job_pods.job.spec.completions or 0) and index not in settled_indexes
            )
            (needed if is_pending else unneeded).append(pod)
            settled_indexes.add(-1 if index is None else index)
    excess = max(0, len(needed) - _desired_active(job_pods))
    return (*unneeded, *deletion_order(needed)[:excess])


def _creates(job_pods: JobPods, now: datetime.datetime) -> list[Create]:
    job = job_pods.job
    terminating = len(job_pods.terminating) if job.spec.pod_replacement_policy == FAILED_POLICY else 0
    missing = min(_desired_active(job_pods) - len(job_pods.active) - terminating, MAX_PODS_PER_PASS)
    per_index = job.spec.backoff_limit_per_index is not None
    if missing <= 0 or (not per_index and job_pods.in_backoff(now)):
        return []
    if not job_pods.is_indexed:
        return [Create(pod_from_template(job.spec.template, job, finalizers=_finalizers(job)), CONTROLLER)] * missing
    used_indexes = {completion_index(pod) for pod in (*job_pods.active, *(job_pods.terminating if terminating else ()))}
    excluded = job_pods.succeeded_indexes | job_pods.failed_indexes | used_indexes
    missing_indexes = (index for index in range(job.spec.completions or 0) if index not in excluded)
    startable = (index for index in missing_indexes if not job_pods.index_in_backoff(index, now))
    return [Create(_index_pod(job_pods, index), CONTROLLER) for index in islice(startable, missing)]


def _finalizers(job: Job) -> tuple[str, ...]:
    return (*job.spec.template.metadata.finalizers, TRACKING_FINALIZER)


def _index_pod(job_pods: JobPods, index: int) -> Pod:
    """Return the pod of an index; annotation, label, variable and hostname contain the index."""
    job = job_pods.job
    meta = job.spec.template.metadata
    annotations = {**meta.annotations, COMPLETION_INDEX: str(index)}
    if job.spec.backoff_limit_per_index is not None:
        failed_pod = job_pods.latest.get(index)
        failure_counts = (0, 0) if failed_pod is None else job_pods.failures_after(failed_pod)
        annotations |= {FAILURES: str(failure_counts[0])} | (
            {IGNORED_FAILURES: str(failure_counts[1])} if failure_counts[1] else {}
        )
    name = f"{job.metadata.name}-{index}"
    pod = pod_from_template(
        job.spec.template,
        job,
        generate_name=f"{name}-",
        labels={**meta.labels, COMPLETION_INDEX: str(index)},
        annotations=annotations,
        finalizers=_finalizers(job),
    )
    containers = tuple(map(_with_index, pod.spec.containers))
    init_containers = tuple(map(_with_index, pod.spec.init_containers))
    spec = replace(pod.spec, hostname=name, containers=containers, init_containers=init_containers)
    return replace(pod, spec=spec)


def _with_index(container: Container) -> Container:
    if any(variable.name == COMPLETION_INDEX_VARIABLE for variable in container.env):
        return container
    source = EnvVarSource(
        field_ref=ObjectFieldSelector(api_version="v1", field_path=f"metadata.labels['{COMPLETION_INDEX}']")
    )
    return replace(container, env=(*container.env, EnvVar(name=COMPLETION_INDEX_VARIABLE, value_from=source)))


# --- status -----------------------------------------------------------------------------------------------------------


def _status(
    job_pods: JobPods, target: Condition | None, created: int, deleted: list[Pod], now: datetime.datetime
) -> JobStatus:
    job = job_pods.job
    old, spec = job.status, job.spec
    conditions = {condition.type: condition for condition in old.conditions}
    start: str | None = old.start_time or format_time(now)
    if spec.suspend and target is None:
        start = None
        if not has_condition(job, SUSPENDED):
            conditions[SUSPENDED] = _condition(SUSPENDED, "JobSuspended", "Job suspended", now)
    elif has_condition(job, SUSPENDED) and target is None:
        start = format_time(now)
        conditions[SUSPENDED] = _condition(SUSPENDED, "JobResumed", "Job resumed", now, status="False")
    finished = target is not None and not (job_pods.active or job_pods.terminating or job_pods.uncounted)
    if target is not None:
        conditions.setdefault(target.type, target)
    if finished and target is not None:
        final = COMPLETE if target.type == CRITERIA_MET else FAILED
        conditions[final] = _condition(final, target.reason, target.message, now)
    deleted_running = sum(bool(pod.spec.node_name) for pod in deleted)
    return replace(
        old,
        conditions=tuple(conditions.values()),
        start_time=start,
        completion_time=format_time(now) if COMPLETE in conditions else None,
        active=len(job_pods.active) + created - len(deleted),
        ready=sum(ready_since(pod) is not None for pod in job_pods.active),
        terminating=len(job_pods.terminating) + deleted_running,
        succeeded=job_pods.succeeded,
        failed=job_pods.reported_failed,
        completed_indexes=format_indexes(job_pods.succeeded_indexes) if job_pods.is_indexed else "",
        failed_indexes=format_indexes(job_pods.failed_indexes) if spec.backoff_limit_per_index is not None else None,
    )


def jobs_await_time(lister: Lister) -> bool:
    """Return whether a job has a deadline, a retry or a time to live."""
    return any(not is_job_finished(job) or job.spec.ttl_seconds_after_finished is not None for job in lister.list(Job))


def sync_jobs(lister: Lister) -> Iterable[Action]:
    """Reconcile all Jobs."""
    return reconcile(lister.list(Job), lister.list(Pod), lister.now, lister.create_errors)
