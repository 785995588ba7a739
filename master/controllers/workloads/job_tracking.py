"""Tracking of a Job's pods: active, terminating, and finished but not yet counted. Pure.

A finished pod is counted exactly once, even if it is deleted before the controller reads it: each pod has the
finalizer TRACKING_FINALIZER, as in Kubernetes, until it is counted. The finalizer is removed in the same transaction
that updates the job's status, so no list of uncounted pods (`uncountedTerminatedPods`) is needed.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from api.core.pod import FINAL_PHASES, Pod
from master.controllers.workloads.pod_control import ended_at, is_active
from master.resources import jobs
from master.resources.jobs import (
    FAIL_INDEX,
    FAIL_JOB,
    FAILED_POLICY,
    FAILURE_TARGET,
    IGNORE,
    INDEXED,
    Job,
    completion_index,
    failure_action,
    has_condition,
)
from master.resources.metadata import whole_number

TRACKING_FINALIZER = "batch.kubernetes.io/job-tracking"
FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED_FAILURES = "batch.kubernetes.io/job-index-ignored-failure-count"
"""Annotations of a pod with a limit for each index: how often its index failed before, and how many failures were
ignored.
"""

MIN_BACKOFF, MAX_BACKOFF = 10.0, 600.0
"""Seconds between a failure and the next pod; doubled with each failure since the last success."""


def has_finalizer(pod: Pod) -> bool:
    """Return whether a pod is not yet counted."""
    return TRACKING_FINALIZER in pod.metadata.finalizers


def without_finalizer(pod: Pod) -> Pod:
    """Return the pod without the tracking finalizer."""
    finalizers = tuple(name for name in pod.metadata.finalizers if name != TRACKING_FINALIZER)
    return replace(pod, metadata=replace(pod.metadata, finalizers=finalizers))


def with_finalizer(pod: Pod) -> Pod:
    """Return the pod with the tracking finalizer."""
    names = pod.metadata.finalizers
    return (
        pod
        if TRACKING_FINALIZER in names
        else replace(pod, metadata=replace(pod.metadata, finalizers=(*names, TRACKING_FINALIZER)))
    )


def is_terminated(pod: Pod) -> bool:
    """Return whether nothing of a pod runs any more: its phase is final, or it is deleted without a grace period."""
    meta = pod.metadata
    return pod.status.phase in FINAL_PHASES or bool(meta.deletion_timestamp and not meta.deletion_grace_period_seconds)


def backoff(failures: int) -> float:
    """Return the seconds to wait after this many consecutive failures."""
    return min(MIN_BACKOFF * float(2 ** min(failures - 1, 30)), MAX_BACKOFF) if failures else 0.0


@dataclass(frozen=True)
class JobPods:
    """A job and its pods."""

    job: Job
    pods: tuple[Pod, ...]

    # --- current pods -------------------------------------------------------------------------------------------------

    @cached_property
    def active(self) -> tuple[Pod, ...]:
        """Return the pods that run or will run."""
        return tuple(filter(is_active, self.pods))

    @cached_property
    def terminating(self) -> tuple[Pod, ...]:
        """Return the pods that are being deleted and still run."""
        return tuple(pod for pod in self.pods if pod.metadata.deletion_timestamp and not is_terminated(pod))

    # --- terminated pods ----------------------------------------------------------------------------------------------

    @cached_property
    def _new_failed(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.pods if has_finalizer(pod) and self._fails(pod))

    @cached_property
    def _new_succeeded(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.pods if has_finalizer(pod) and pod.status.phase == "Succeeded")

    def _fails(self, pod: Pod) -> bool:
        """Return whether a pod has failed. A pod that is being deleted counts as failed, unless the job replaces only
        terminated pods.
        """
        if pod.status.phase == "Succeeded":
            return False
        early = self.job.spec.pod_replacement_policy != FAILED_POLICY
        return is_terminated(pod) or (early and bool(pod.metadata.deletion_timestamp))

    @cached_property
    def _actions(self) -> Mapping[str, tuple[str, str]]:
        """Return the action of the failure policy for each new failure, by uid."""
        policy = self.job.spec.pod_failure_policy
        return {pod.metadata.uid: failure_action(policy, pod) for pod in self._new_failed}

    @cached_property
    def fatal_reason(self) -> str:
        """Return why the failure policy fails the whole job; empty if it does not."""
        return next((text for action, text in self._actions.values() if action == FAIL_JOB), "")

    def _is_ignored(self, pod: Pod) -> bool:
        return self._actions[pod.metadata.uid][0] == IGNORE

    @property
    def countable(self) -> tuple[Pod, ...]:
        """Return the pods whose finalizer may be removed now, because the status counts them."""
        uncounted = {pod.metadata.uid for pod in self.uncounted}
        return tuple(pod for pod in (*self._new_succeeded, *self._new_failed) if pod.metadata.uid not in uncounted)

    # --- counts -------------------------------------------------------------------------------------------------------

    @property
    def is_indexed(self) -> bool:
        """Return whether each completion has an index."""
        return self.job.spec.completion_mode == INDEXED

    @cached_property
    def succeeded(self) -> int:
        """Return how many pods have succeeded, new ones included; of an indexed job, how many indexes."""
        return len(self.succeeded_indexes) if self.is_indexed else self.job.status.succeeded + len(self._new_succeeded)

    @cached_property
    def failed(self) -> int:
        """Return how many failures count towards the limit, new ones included."""
        return self.job.status.failed + sum(not self._is_ignored(pod) for pod in self._new_failed)

    @cached_property
    def reported_failed(self) -> int:
        """Return how many failures the status reports: those that are counted."""
        return self.failed - sum(not self._is_ignored(pod) for pod in self.uncounted)

    @cached_property
    def succeeded_indexes(self) -> frozenset[int]:
        """Return the indexes that have succeeded."""
        count = self.job.spec.completions or 0
        new = {completion_index(pod) for pod in self._new_succeeded}
        known = jobs.parse_indexes(self.job.status.completed_indexes, count)
        return known | {index for index in new if index is not None and index < count}

    # --- limits for each index ----------------------------------------------------------------------------------------

    @cached_property
    def failed_indexes(self) -> frozenset[int]:
        """Return the indexes that have failed for good."""
        limit = self.job.spec.backoff_limit_per_index
        if limit is None:
            return frozenset()
        known = jobs.parse_indexes(self.job.status.failed_indexes, self.job.spec.completions or 0)
        new = {
            index for index, pod in self.latest.items() if self._is_fatal(pod) or self.failures_after(pod)[0] > limit
        }
        return (known | new) - self.succeeded_indexes

    def _is_fatal(self, pod: Pod) -> bool:
        return self._actions[pod.metadata.uid][0] == FAIL_INDEX

    @cached_property
    def latest(self) -> Mapping[int, Pod]:
        """Return the newest uncounted failure of each index, if each index has a limit of its own."""
        failures: dict[int, Pod] = {}
        if self.job.spec.backoff_limit_per_index is not None:
            for pod in sorted(self._new_failed, key=_failure_count):
                index = completion_index(pod)
                if index is not None and index < (self.job.spec.completions or 0):
                    failures[index] = pod
        return failures

    @cached_property
    def uncounted(self) -> tuple[Pod, ...]:
        """Return failures that keep their finalizer until the next pod of the index has their count."""
        settled = self.succeeded_indexes | self.failed_indexes
        if self.job.metadata.deletion_timestamp or has_condition(self.job, FAILURE_TARGET):
            return ()
        newest_by_index: dict[int | None, int] = {}
        for pod in self.pods:
            index = completion_index(pod)
            newest_by_index[index] = max(newest_by_index.get(index, -1), _failure_count(pod))
        return tuple(
            pod
            for index, pod in self.latest.items()
            if index not in settled and newest_by_index[index] == _failure_count(pod)
        )

    def failures_after(self, pod: Pod) -> tuple[int, int]:
        """Return how often the index of a failed pod has failed, this failure included: (counted, ignored)."""
        ignored = self._is_ignored(pod)
        return _int_annotation(pod, FAILURES) + (not ignored), _int_annotation(pod, IGNORED_FAILURES) + ignored

    # --- back-off -----------------------------------------------------------------------------------------------------

    def in_backoff(self, now: datetime.datetime) -> bool:
        """Return whether it is too early for another pod. Only existing failed pods delay it, so a deleted pod does
        not.
        """
        policy = self.job.spec.pod_failure_policy
        remaining = [pod for pod in self.pods if not pod.metadata.deletion_timestamp]
        failed = [pod for pod in remaining if pod.status.phase == "Failed" and failure_action(policy, pod)[0] != IGNORE]
        last_success = max(_end_times(pod for pod in remaining if pod.status.phase == "Succeeded"), default=None)
        failure_times = [time for time in _end_times(failed) if last_success is None or time > last_success]
        return bool(failure_times) and (now - max(failure_times)).total_seconds() < backoff(len(failure_times))

    def index_in_backoff(self, index: int, now: datetime.datetime) -> bool:
        """Return whether it is too early for another pod of an index with a limit of its own."""
        pod = self.latest.get(index)
        time = ended_at(pod) if pod is not None else None
        if pod is None or time is None or pod.metadata.deletion_timestamp:
            return False
        return (now - time).total_seconds() < backoff(self.failures_after(pod)[0])


def _end_times(pods: Iterable[Pod]) -> list[datetime.datetime]:
    return [time for time in map(ended_at, pods) if time is not None]


def _int_annotation(pod: Pod, annotation: str) -> int:
    text = pod.metadata.annotations.get(annotation, "")
    return whole_number(text) or 0


def _failure_count(pod: Pod) -> int:
    return _int_annotation(pod, FAILURES) + _int_annotation(pod, IGNORED_FAILURES)


def restarts(pods: Iterable[Pod]) -> int:
    """Return how often containers of running pods were restarted."""
    return sum(
        status.restart_count
        for pod in pods
        if pod.status.phase in ("Running", "Pending")
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    )
