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

TRACKING_FINALIZER = "batch.kubernetes.io/job-tracking"
FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED_FAILURES = "batch.kubernetes.io/job-index-ignored-failure-count"
"""Annotations of a pod: how often its index failed before it, where each index has a limit of its own."""

MIN_BACKOFF, MAX_BACKOFF = 10.0, 600.0
"""Seconds between a failure and the next pod; doubled with each failure since the last success."""


def has_finalizer(pod: Pod) -> bool:
    """Whether a pod is yet to be counted."""
    return TRACKING_FINALIZER in pod.metadata.finalizers


def without_finalizer(pod: Pod) -> Pod:
    """The pod as one that needs not be counted any more."""
    left = tuple(name for name in pod.metadata.finalizers if name != TRACKING_FINALIZER)
    return replace(pod, metadata=replace(pod.metadata, finalizers=left))


def with_finalizer(pod: Pod) -> Pod:
    """The pod as one that waits for being counted."""
    names = pod.metadata.finalizers
    return (
        pod
        if TRACKING_FINALIZER in names
        else replace(pod, metadata=replace(pod.metadata, finalizers=(*names, TRACKING_FINALIZER)))
    )


def is_terminated(pod: Pod) -> bool:
    """Whether nothing of a pod runs any more: it says so, or is deleted and nobody is left to end it."""
    meta = pod.metadata
    return pod.status.phase in FINAL_PHASES or bool(meta.deletion_timestamp and not meta.deletion_grace_period_seconds)


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return min(MIN_BACKOFF * float(2 ** min(failures - 1, 30)), MAX_BACKOFF) if failures else 0.0


@dataclass(frozen=True)
class JobPods:
    """A job and the pods that are its own."""

    job: Job
    pods: tuple[Pod, ...]

    # --- pods of now --------------------------------------------------------------------------------------------------

    @cached_property
    def active(self) -> tuple[Pod, ...]:
        """Those that run or will."""
        return tuple(filter(is_active, self.pods))

    @cached_property
    def terminating(self) -> tuple[Pod, ...]:
        """Those that were told to end and have not yet."""
        return tuple(pod for pod in self.pods if pod.metadata.deletion_timestamp and not is_terminated(pod))

    # --- how they ended -----------------------------------------------------------------------------------------------

    @cached_property
    def _new_failed(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.pods if has_finalizer(pod) and self._fails(pod))

    @cached_property
    def _new_succeeded(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.pods if has_finalizer(pod) and pod.status.phase == "Succeeded")

    def _fails(self, pod: Pod) -> bool:
        """One that is being deleted has failed already, unless the job replaces only what has really ended."""
        if pod.status.phase == "Succeeded":
            return False
        early = self.job.spec.pod_replacement_policy != FAILED_POLICY
        return is_terminated(pod) or (early and bool(pod.metadata.deletion_timestamp))

    @cached_property
    def _actions(self) -> Mapping[str, tuple[str, str]]:
        """By uid: what the policy says of each failure."""
        policy = self.job.spec.pod_failure_policy
        return {pod.metadata.uid: failure_action(policy, pod) for pod in self._new_failed}

    @cached_property
    def fatal(self) -> str:
        """Why the policy gives the whole job up; empty if it does not."""
        return next((text for action, text in self._actions.values() if action == FAIL_JOB), "")

    def _is_ignored(self, pod: Pod) -> bool:
        return self._actions[pod.metadata.uid][0] == IGNORE

    @property
    def counted(self) -> tuple[Pod, ...]:
        """Those whose mark may go now, as the numbers include them."""
        awaited = {pod.metadata.uid for pod in self.awaited}
        return tuple(pod for pod in (*self._new_succeeded, *self._new_failed) if pod.metadata.uid not in awaited)

    # --- numbers ------------------------------------------------------------------------------------------------------

    @property
    def is_indexed(self) -> bool:
        """Whether each completion has an index."""
        return self.job.spec.completion_mode == INDEXED

    @cached_property
    def succeeded(self) -> int:
        """How many have ended well, those of now included; of an indexed job how many indexes."""
        return len(self.done) if self.is_indexed else self.job.status.succeeded + len(self._new_succeeded)

    @cached_property
    def failed(self) -> int:
        """How many failures count towards the limit, those of now included."""
        return self.job.status.failed + sum(not self._is_ignored(pod) for pod in self._new_failed)

    @cached_property
    def told_failed(self) -> int:
        """How many failures the status tells: those that have been counted."""
        return self.failed - sum(not self._is_ignored(pod) for pod in self.awaited)

    @cached_property
    def done(self) -> frozenset[int]:
        """The indexes that have ended well."""
        count = self.job.spec.completions or 0
        new = {completion_index(pod) for pod in self._new_succeeded}
        known = jobs.parse_indexes(self.job.status.completed_indexes, count)
        return known | {index for index in new if index is not None and index < count}

    # --- a limit for each index ---------------------------------------------------------------------------------------

    @cached_property
    def lost(self) -> frozenset[int]:
        """The indexes that are given up."""
        limit = self.job.spec.backoff_limit_per_index
        if limit is None:
            return frozenset()
        known = jobs.parse_indexes(self.job.status.failed_indexes, self.job.spec.completions or 0)
        new = {
            index for index, pod in self.latest.items() if self._is_fatal(pod) or self.failures_after(pod)[0] > limit
        }
        return (known | new) - self.done

    def _is_fatal(self, pod: Pod) -> bool:
        return self._actions[pod.metadata.uid][0] == FAIL_INDEX

    @cached_property
    def latest(self) -> Mapping[int, Pod]:
        """The newest failure of each index that is yet to be counted, where each index has a limit of its own."""
        found: dict[int, Pod] = {}
        if self.job.spec.backoff_limit_per_index is not None:
            for pod in sorted(self._new_failed, key=_failures):
                index = completion_index(pod)
                if index is not None and index < (self.job.spec.completions or 0):
                    found[index] = pod
        return found

    @cached_property
    def awaited(self) -> tuple[Pod, ...]:
        """Failures that keep their mark until the next pod of their index carries their number on."""
        settled = self.done | self.lost
        if self.job.metadata.deletion_timestamp or has_condition(self.job, FAILURE_TARGET):
            return ()
        newest: dict[int | None, int] = {}
        for pod in self.pods:
            index = completion_index(pod)
            newest[index] = max(newest.get(index, -1), _failures(pod))
        return tuple(
            pod for index, pod in self.latest.items() if index not in settled and newest[index] == _failures(pod)
        )

    def failures_after(self, pod: Pod) -> tuple[int, int]:
        """How often the index of a failed pod has failed with it: those that count, and those that are ignored."""
        ignored = self._is_ignored(pod)
        return _number(pod, FAILURES) + (not ignored), _number(pod, IGNORED_FAILURES) + ignored

    # --- waiting after a failure --------------------------------------------------------------------------------------

    def waits(self, now: datetime.datetime) -> bool:
        """Whether it is too early for another pod. The failed pods that are there tell: one that was deleted, by
        whomever, does not hold up its successor.
        """
        policy = self.job.spec.pod_failure_policy
        there = [pod for pod in self.pods if not pod.metadata.deletion_timestamp]
        failed = [pod for pod in there if pod.status.phase == "Failed" and failure_action(policy, pod)[0] != IGNORE]
        last_success = max(_ends(pod for pod in there if pod.status.phase == "Succeeded"), default=None)
        since = [moment for moment in _ends(failed) if last_success is None or moment > last_success]
        return bool(since) and (now - max(since)).total_seconds() < backoff(len(since))

    def index_waits(self, index: int, now: datetime.datetime) -> bool:
        """The same for one index, where each has a limit of its own."""
        pod = self.latest.get(index)
        moment = ended_at(pod) if pod is not None else None
        if pod is None or moment is None or pod.metadata.deletion_timestamp:
            return False
        return (now - moment).total_seconds() < backoff(self.failures_after(pod)[0])


def _ends(pods: Iterable[Pod]) -> list[datetime.datetime]:
    return [moment for moment in map(ended_at, pods) if moment is not None]


def _number(pod: Pod, annotation: str) -> int:
    text = pod.metadata.annotations.get(annotation, "")
    return int(text) if text.isdecimal() else 0


def _failures(pod: Pod) -> int:
    return _number(pod, FAILURES) + _number(pod, IGNORED_FAILURES)


def restarts(pods: Iterable[Pod]) -> int:
    """How often containers of pods that run were started again."""
    return sum(
        row.restart_count
        for pod in pods
        if pod.status.phase in ("Running", "Pending")
        for row in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    )
