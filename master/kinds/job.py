"""Job: pods that run to their end, until enough of them have ended well. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated

from msgspec.structs import replace

from api.meta import names
from api.meta.schema import FORBIDDEN, MISSING, NOT_SUPPORTED, FieldError, quoted
from api.meta.selectors import LabelSelector, check_selector, shown_selector
from api.meta.types import Condition, Object, Value, merge_keys
from api.validation.registry import KindRules
from master.kinds import pod_failure_policy, success_policy
from master.kinds.checks import at_least
from master.kinds.kind import AGE, NAME, Column, Kind, age, duration, parse_time
from master.kinds.pod_failure_policy import PodFailurePolicy
from master.kinds.success_policy import SuccessPolicy
from master.kinds.workload import WIDE, PodTemplateSpec, check_template, defaulted_template, wide_cells

INDEXED, NON_INDEXED = "Indexed", "NonIndexed"
ONLY_FAILED, TERMINATING_OR_FAILED = "Failed", "TerminatingOrFailed"
COMPLETE, FAILED, SUSPENDED = "Complete", "Failed", "Suspended"
CRITERIA_MET, FAILURE_TARGET = "SuccessCriteriaMet", "FailureTarget"
OUR_NAME = "kubernetes.io/job-controller"
"""By which a job may say that this master is to act for it, which it does anyway."""

BACKOFF_LIMIT, NO_LIMIT = 6, (1 << 31) - 1
MOST_INDEXES = 100_000
LONGEST_NAME = 63
"""A job's name is the value of a label of its pods."""


UID_LABEL, NAME_LABEL = "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"
LEGACY_UID_LABEL, LEGACY_NAME_LABEL = "controller-uid", "job-name"
POLICIES = ("OnFailure", "Never")


class JobSpec(Value, frozen=True):
    """Up to `parallelism` pods run at a time until `completions` have ended well, or the job is given up.

    `selector` and some labels of the template are made by the server unless `manual_selector` is set. A job that is
    `managed_by` somebody else is left to them.
    """

    parallelism: int | None = None
    completions: int | None = None
    active_deadline_seconds: int | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    success_policy: SuccessPolicy | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    selector: LabelSelector | None = None
    manual_selector: bool = False
    template: PodTemplateSpec = PodTemplateSpec()
    ttl_seconds_after_finished: int | None = None
    completion_mode: str = ""
    suspend: bool | None = None
    pod_replacement_policy: str = ""
    managed_by: str | None = None


class JobStatus(Value, frozen=True):
    """`active`, `ready` and `terminating` are pods of now; `succeeded` and `failed` count all there have ever been.

    The indexes are written as "0,3-5".
    """

    conditions: Annotated[tuple[Condition, ...], merge_keys("type")] = ()
    start_time: str | None = None
    completion_time: str | None = None
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    terminating: int | None = None
    completed_indexes: str = ""
    failed_indexes: str | None = None
    ready: int | None = None


class Job(Object, frozen=True):
    """Runs pods made from `template` until enough of them have ended well."""

    API_VERSION = "batch/v1"
    KIND = "Job"

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


def has(item: Job, condition: str) -> bool:
    """Whether the job has a condition."""
    return any(row.type == condition and row.status == "True" for row in item.status.conditions)


def is_finished(item: Job) -> bool:
    """Whether the job has ended, well or not."""
    return has(item, COMPLETE) or has(item, FAILED)


# --- what the server fills in -----------------------------------------------------------------------------------------


def defaulted_spec(spec: JobSpec) -> JobSpec:
    """With every default written out."""
    alone = spec.completions is None and spec.parallelism is None
    policy = spec.pod_failure_policy
    replacement = TERMINATING_OR_FAILED if policy is None else ONLY_FAILED
    limit = BACKOFF_LIMIT if spec.backoff_limit_per_index is None else NO_LIMIT
    return replace(
        spec,
        completions=1 if alone else spec.completions,
        parallelism=1 if spec.parallelism is None else spec.parallelism,
        backoff_limit=limit if spec.backoff_limit is None else spec.backoff_limit,
        completion_mode=spec.completion_mode or NON_INDEXED,
        suspend=bool(spec.suspend),
        pod_failure_policy=None if policy is None else pod_failure_policy.defaulted(policy),
        pod_replacement_policy=spec.pod_replacement_policy or replacement,
        template=defaulted_template(spec.template),
    )


def _default(item: Job) -> Job:
    labels = item.metadata.labels or item.spec.template.metadata.labels
    return replace(item, metadata=replace(item.metadata, labels=labels), spec=defaulted_spec(item.spec))


def _on_create(item: Job) -> Job:
    """A job as it begins: its pods are told apart by its uid, even if it was copied from another one.

    A job without labels has those of its pods.
    """
    spec, meta = item.spec, item.metadata
    if not spec.manual_selector:
        template, uid, name = spec.template, meta.uid, meta.name
        mine = {UID_LABEL: uid, LEGACY_UID_LABEL: uid, NAME_LABEL: name, LEGACY_NAME_LABEL: name}
        labels = {**template.metadata.labels, **mine}
        spec = replace(
            spec,
            selector=LabelSelector(match_labels={UID_LABEL: uid}),
            template=replace(template, metadata=replace(template.metadata, labels=labels)),
        )
    meta = replace(meta, labels=meta.labels or spec.template.metadata.labels)
    return replace(item, metadata=meta, spec=spec, status=JobStatus())


# --- what is wrong ----------------------------------------------------------------------------------------------------


def check_spec(spec: JobSpec) -> Iterator[FieldError]:
    """Every problem of a job's spec but for its selector."""
    yield from at_least(
        ("spec.parallelism", spec.parallelism, 0),
        ("spec.completions", spec.completions, 0),
        ("spec.activeDeadlineSeconds", spec.active_deadline_seconds, 0),
        ("spec.backoffLimit", spec.backoff_limit, 0),
        ("spec.ttlSecondsAfterFinished", spec.ttl_seconds_after_finished, 0),
        ("spec.backoffLimitPerIndex", spec.backoff_limit_per_index, 0),
        ("spec.maxFailedIndexes", spec.max_failed_indexes, 0),
    )
    yield from check_template(spec.template, None, ("Always", *POLICIES))
    policy = spec.template.spec.restart_policy
    if policy in ("", "Always"):
        wanted = 'valid values: "OnFailure", "Never"'
        yield FieldError("spec.template.spec.restartPolicy", quoted(policy), wanted, MISSING)
    yield from _check_modes(spec)
    yield from _check_indexes(spec)
    yield from _check_limits(spec)
    if spec.pod_failure_policy is not None:
        yield from _check_policy(spec, spec.pod_failure_policy)


def _check_modes(spec: JobSpec) -> Iterator[FieldError]:
    if spec.managed_by is not None and ("/" not in spec.managed_by or names.label_key(spec.managed_by)):
        why = 'must be a domain-prefixed path (such as "acme.io/foo")'
        yield FieldError("spec.managedBy", quoted(spec.managed_by), why)
    for name, value, accepted in (
        ("completionMode", spec.completion_mode, (INDEXED, NON_INDEXED)),
        ("podReplacementPolicy", spec.pod_replacement_policy, (ONLY_FAILED, TERMINATING_OR_FAILED)),
    ):
        if value not in ("", *accepted):
            yield FieldError(f"spec.{name}", quoted(value), f"{' and '.join(accepted)} are accepted", NOT_SUPPORTED)


def _check_indexes(spec: JobSpec) -> Iterator[FieldError]:
    if spec.completion_mode == INDEXED:
        if spec.completions is None:
            yield FieldError("spec.completions", "null", f"when completion mode is {INDEXED}", MISSING)
        for name, number in (("parallelism", spec.parallelism), ("completions", spec.completions)):
            if number is not None and number > MOST_INDEXES:
                why = f"must be less than or equal to {MOST_INDEXES} when completion mode is {INDEXED}"
                yield FieldError(f"spec.{name}", quoted(number), why)
        if spec.success_policy is not None:
            yield from success_policy.check(spec.success_policy, min(spec.completions or 0, MOST_INDEXES))
        return
    for name, value in (
        ("backoffLimitPerIndex", spec.backoff_limit_per_index),
        ("maxFailedIndexes", spec.max_failed_indexes),
        ("successPolicy", spec.success_policy),
    ):
        if value is not None:
            why = f"requires indexed completion mode (completionMode: {INDEXED})"
            yield FieldError(f"spec.{name}", "given", why, FORBIDDEN)


def _check_limits(spec: JobSpec) -> Iterator[FieldError]:
    if spec.max_failed_indexes is not None and spec.backoff_limit_per_index is None:
        why = "when maxFailedIndexes is specified"
        yield FieldError("spec.backoffLimitPerIndex", "null", why, MISSING)
    if spec.backoff_limit_per_index is not None and spec.template.spec.restart_policy == "OnFailure":
        why = "only Never is accepted when backoffLimitPerIndex is specified"
        yield FieldError("spec.template.spec.restartPolicy", quoted("OnFailure"), why)


def _check_policy(spec: JobSpec, policy: PodFailurePolicy) -> Iterator[FieldError]:
    pod = spec.template.spec
    if pod.restart_policy == "OnFailure":
        why = 'only "Never" is supported when podFailurePolicy is specified'
        yield FieldError("spec.template.spec.restartPolicy", quoted(pod.restart_policy), why)
    if spec.pod_replacement_policy == TERMINATING_OR_FAILED:
        why = f"only {ONLY_FAILED} is accepted with a podFailurePolicy"
        yield FieldError("spec.podReplacementPolicy", quoted(spec.pod_replacement_policy), why, NOT_SUPPORTED)
    containers = (one.name for one in (*pod.init_containers, *pod.containers))
    yield from pod_failure_policy.check(policy, containers, spec.backoff_limit_per_index is not None)


def _check(item: Job) -> Iterator[FieldError]:
    spec, wish = item.spec, item.spec.selector
    if len(item.metadata.name) > LONGEST_NAME:
        yield FieldError("metadata.name", quoted(item.metadata.name), f"must be no more than {LONGEST_NAME} characters")
    yield from check_spec(spec)
    yield from check_selector("spec.selector", wish or LabelSelector())
    if spec.manual_selector:
        if wish is None or not (wish.match_labels or wish.match_expressions):
            yield FieldError("spec.selector", quoted(wish), "with manualSelector a selector is required", MISSING)
        elif not list(check_selector("", wish)):
            bad = check_template(spec.template, wish, ("Always", *POLICIES))
            yield from (row for row in bad if row.path == "spec.template.metadata.labels")
    elif wish is not None and not _is_generated(item, wish):
        yield FieldError("spec.selector", quoted(shown_selector(wish)), "`selector` not auto-generated")
    if spec.completion_mode == INDEXED and spec.completions:
        last = f"{item.metadata.name}-{spec.completions - 1}"
        if item.metadata.name and names.dns_label(last):
            why = f"the names of its pods' hosts, such as {last}, must be DNS labels: {names.dns_label(last)}"
            yield FieldError("metadata.name", quoted(item.metadata.name), why)


def _is_generated(item: Job, wish: LabelSelector) -> bool:
    keys = frozenset((UID_LABEL, LEGACY_UID_LABEL))
    uid = item.metadata.uid
    mine = all(key in keys and uid and value == uid for key, value in wish.match_labels.items())
    return mine and not wish.match_expressions


def _immutable(old: Job, new: Job) -> Iterator[FieldError]:
    before, after = old.spec, new.spec
    template = (_lasting(old), _lasting(new)) if _never_ran(old) else (before.template, after.template)
    for name, was, wish in (
        ("selector", before.selector, after.selector),
        ("completionMode", before.completion_mode, after.completion_mode),
        ("podFailurePolicy", before.pod_failure_policy, after.pod_failure_policy),
        ("successPolicy", before.success_policy, after.success_policy),
        ("backoffLimitPerIndex", before.backoff_limit_per_index, after.backoff_limit_per_index),
        ("managedBy", before.managed_by, after.managed_by),
        ("template", *template),
    ):
        if was != wish:
            yield FieldError(f"spec.{name}", "changed", "field is immutable")
    if before.completions != after.completions:
        grows = after.completion_mode == INDEXED and after.completions is not None
        if not (grows and before.completions is not None and after.completions == after.parallelism):
            yield FieldError("spec.completions", quoted(after.completions), "field is immutable")


def _never_ran(item: Job) -> bool:
    """Whether places and labels of its pods may still be chosen, as a queue for jobs does before it resumes them."""
    return bool(item.spec.suspend) and item.status.start_time is None


def _lasting(item: Job) -> PodTemplateSpec:
    """The part of the template that never changes."""
    template = item.spec.template
    meta = replace(template.metadata, labels={}, annotations={})
    free = replace(template.spec, node_selector={}, affinity=None, tolerations=(), scheduling_gates=None)
    return replace(template, metadata=meta, spec=free)


# --- how it is shown --------------------------------------------------------------------------------------------------


def state(item: Job) -> str:
    """One word for how the job is."""
    if is_finished(item):
        return COMPLETE if has(item, COMPLETE) else FAILED
    if item.metadata.deletion_timestamp:
        return "Terminating"
    return next((row for row in (SUSPENDED, FAILURE_TARGET, CRITERIA_MET) if has(item, row)), "Running")


def _completions(item: Job) -> str:
    done, spec = item.status.succeeded, item.spec
    if spec.completions is not None:
        return f"{done}/{spec.completions}"
    parallel = spec.parallelism or 0
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def _took(item: Job, now: datetime.datetime) -> str:
    begun, ended = parse_time(item.status.start_time), parse_time(item.status.completion_time)
    return "" if begun is None else duration(int(((ended or now) - begun).total_seconds()))


def _cells(item: Job, now: datetime.datetime) -> tuple[object, ...]:
    return (
        item.metadata.name,
        state(item),
        _completions(item),
        _took(item, now),
        age(item.metadata.creation_timestamp, now),
        *wide_cells(item.spec.template, shown_selector(item.spec.selector)),
    )


JOB = Kind(
    type=Job,
    plural="jobs",
    singular="job",
    namespaced=True,
    categories=("all",),
    columns=(
        NAME,
        Column("Status", "Whether it runs, waits or has ended."),
        Column("Completions", "How many pods have ended well, of how many."),
        Column("Duration", "How long it has taken, or takes so far."),
        AGE,
        *WIDE,
    ),
    cells=_cells,
    fields=lambda item: {"status.successful": str(item.status.succeeded)},
    on_create=_on_create,
    on_update=lambda new, old: replace(new, status=old.status),
    with_status=lambda new, old: replace(old, status=new.status),
    spec=lambda item: item.spec,
    own_rules=KindRules(default=_default, check=_check, immutable=_immutable),
    orphans=True,
)
