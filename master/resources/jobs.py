"""Job: completion indexes, success policy, pod failure policy, defaults and validation. Pure."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator
from typing import Annotated

from msgspec.structs import replace

from api.core.pod import Container, ContainerStatus, Pod, ResourceRequirements
from api.meta import names
from api.meta.schema import FORBIDDEN, MISSING, NOT_SUPPORTED, FieldError, quoted
from api.meta.selectors import LabelSelector, check_selector, format_selector
from api.meta.types import Condition, Object, Value, merge_keys
from api.meta.values import Int32, Time
from api.validation.registry import KindRules
from master.resources.metadata import parse_time, whole_number
from master.resources.pod_template import (
    TEMPLATE_COLUMNS,
    PodTemplateSpec,
    default_template,
    validate_template,
)
from master.resources.printing import AGE, NAME, duration
from master.resources.resource import Column, Resource
from master.resources.validation import minimum

_INDEX_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation and label of a pod with an index."""


def completion_index(pod: Pod) -> int | None:
    """Return the completion index of a pod; None if it has none."""
    text = pod.metadata.annotations.get(COMPLETION_INDEX, "")
    return whole_number(text)


def parse_indexes(text: str | None, count: int) -> frozenset[int]:
    """Return the indexes in a text that are below `count`; everything else is ignored."""
    indexes: set[int] = set()
    for part in filter(None, (text or "").split(",")):
        first, dash, last = part.partition("-")
        if first.isdecimal() and (not dash or last.isdecimal()):
            indexes.update(range(int(first), min(int(last or first), count - 1) + 1))
    return frozenset(indexes)


def is_index_list(text: str, count: int) -> bool:
    """Return whether a text is a sorted list of indexes below `count`."""
    least = 0
    for part in text.split(","):
        match = _INDEX_RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (-1, -1)
        if not least <= first <= last < count:
            return False
        least = last + 1
    return True


def format_indexes(indexes: Iterable[int]) -> str:
    """Return the indexes as text; three and more in a row are written as first-last."""
    return ",".join(part for first, last in _index_ranges(sorted(indexes)) for part in _format_range(first, last))


def _index_ranges(ordered: list[int]) -> Iterator[tuple[int, int]]:
    first = 0
    for position, index in enumerate(ordered):
        if position + 1 == len(ordered) or ordered[position + 1] != index + 1:
            yield ordered[first], index
            first = position + 1


def _format_range(first: int, last: int) -> Iterator[str]:
    if last == first:
        yield str(first)
    elif last == first + 1:
        yield from (str(first), str(last))
    else:
        yield f"{first}-{last}"


MAX_SUCCESS_RULES = 20


class SuccessPolicyRule(Value, frozen=True):
    """A condition for success: a number of succeeded indexes, all named indexes ("0,3-5"), or a number of these."""

    succeeded_indexes: str | None = None
    succeeded_count: Int32 | None = None


class SuccessPolicy(Value, frozen=True):
    """The conditions for success, of which one must be met."""

    rules: tuple[SuccessPolicyRule, ...] = ()


def matched_rule(policy: SuccessPolicy | None, done: frozenset[int], completions: int) -> int | None:
    """Return the position of the first rule that is met; None if there is none. `done` are the succeeded indexes."""
    for number, rule in enumerate(policy.rules if policy else ()):
        named = rule.succeeded_indexes
        indexes = frozenset(range(completions)) if named is None else parse_indexes(named, completions)
        least = len(indexes) if rule.succeeded_count is None else rule.succeeded_count
        if len(done & indexes) >= least:
            return number
    return None


def validate_success_policy(policy: SuccessPolicy, completions: int) -> Iterator[FieldError]:
    """Yield every error of a success policy for this number of completions."""
    path = "spec.successPolicy.rules"
    if not policy.rules:
        yield FieldError(
            path, "[]", "at least one rules must be specified when the successPolicy is specified", MISSING
        )
    if len(policy.rules) > MAX_SUCCESS_RULES:
        yield FieldError(path, str(len(policy.rules)), f"must have at most {MAX_SUCCESS_RULES} items")
    for number, rule in enumerate(policy.rules):
        rule_path, named, count = f"{path}[{number}]", rule.succeeded_indexes, rule.succeeded_count
        if named is None and count is None:
            reason = "at least one of succeededCount or succeededIndexes must be specified"
            yield FieldError(rule_path, "{}", reason, MISSING)
        yield from minimum((f"{rule_path}.succeededCount", count, 0))
        # A list that is in order names each index once, so only then it is short enough to be expanded.
        is_accepted = named is None or is_index_list(named, completions)
        indexes = parse_indexes(named, completions) if is_accepted else frozenset()
        if not is_accepted:
            reason = 'indexes below the completions are accepted, in order and joined as in "0,2-4"'
            yield FieldError(f"{rule_path}.succeededIndexes", quoted(named), reason)
        elif named is not None and count is not None and count > len(indexes):
            reason = f"must be less than or equal to {len(indexes)}, the number of the indexes"
            yield FieldError(f"{rule_path}.succeededCount", quoted(count), reason)
        if count is not None and count > completions:
            reason = f"must be less than or equal to {completions}, the number of completions"
            yield FieldError(f"{rule_path}.succeededCount", quoted(count), reason)


FAIL_JOB, FAIL_INDEX, IGNORE, COUNT = "FailJob", "FailIndex", "Ignore", "Count"
FAILURE_ACTIONS = (FAIL_JOB, FAIL_INDEX, IGNORE, COUNT)
IN_OPERATOR, NOT_IN_OPERATOR = "In", "NotIn"
MAX_FAILURE_RULES, MAX_EXIT_CODES = 20, 255


class PodFailurePolicyOnExitCodesRequirement(Value, frozen=True):
    """A condition on the exit code of a failed container: it is, or is not, one of `values`."""

    operator: str
    values: tuple[Int32, ...]
    container_name: str | None = None


class PodFailurePolicyOnPodConditionsPattern(Value, frozen=True):
    """A condition that the pod has. `status` is True if it is not set."""

    type: str
    status: str = ""


class PodFailurePolicyRule(Value, frozen=True):
    """A rule for failed pods.

    `action` is FailJob, FailIndex, Ignore or Count. Exactly one of the two requirements is set.
    """

    action: str
    on_exit_codes: PodFailurePolicyOnExitCodesRequirement | None = None
    on_pod_conditions: tuple[PodFailurePolicyOnPodConditionsPattern, ...] = ()


class PodFailurePolicy(Value, frozen=True):
    """The rules for failed pods.

    The first rule that matches a pod counts. If none matches, the failure counts towards the limit.
    """

    rules: tuple[PodFailurePolicyRule, ...] = ()


def default_failure_policy(policy: PodFailurePolicy) -> PodFailurePolicy:
    """Return the policy with every status set."""
    return PodFailurePolicy(rules=tuple(_default_failure_rule(rule) for rule in policy.rules))


def _default_failure_rule(rule: PodFailurePolicyRule) -> PodFailurePolicyRule:
    patterns = tuple(replace(pattern, status=pattern.status or "True") for pattern in rule.on_pod_conditions)
    return replace(rule, on_pod_conditions=patterns)


# --- failure policy of finished pods ----------------------------------------------------------------------------------


def failure_action(policy: PodFailurePolicy | None, pod: Pod) -> tuple[str, str]:
    """Return the action for a failed pod, and the message if the action fails the job or the index."""
    for number, rule in enumerate(policy.rules if policy else ()):
        if rule.on_exit_codes is not None:
            status = next(_matching_container(rule.on_exit_codes, _terminated_statuses(pod)), None)
            if status is not None and status.state.terminated is not None:
                code = status.state.terminated.exit_code
                message = f"Container {status.name} for pod {_pod_text(pod)} failed with exit code {code}"
                return rule.action, f"{message} matching {rule.action} rule at index {number}"
        for condition in pod.status.conditions:
            if any(
                (condition.type, condition.status) == (pattern.type, pattern.status)
                for pattern in rule.on_pod_conditions
            ):
                message = f"Pod {_pod_text(pod)} has condition {condition.type}"
                return rule.action, f"{message} matching {rule.action} rule at index {number}"
    return COUNT, ""


def _pod_text(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _terminated_statuses(pod: Pod) -> Iterator[ContainerStatus]:
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if status.state.terminated is not None and status.state.terminated.exit_code != 0:
            yield status


def _matching_container(
    requirement: PodFailurePolicyOnExitCodesRequirement, statuses: Iterable[ContainerStatus]
) -> Iterator[ContainerStatus]:
    for status in statuses:
        ended = status.state.terminated
        if ended is None or requirement.container_name not in (None, status.name):
            continue
        if (ended.exit_code in requirement.values) == (requirement.operator == IN_OPERATOR):
            yield status


# --- validation -------------------------------------------------------------------------------------------------------


def validate_failure_policy(
    policy: PodFailurePolicy, containers: Iterable[str], per_index: bool
) -> Iterator[FieldError]:
    """Yield every error; `containers` are names in the template, `per_index` is set if each index has a limit."""
    path, names = "spec.podFailurePolicy.rules", frozenset(containers)
    if len(policy.rules) > MAX_FAILURE_RULES:
        yield FieldError(path, str(len(policy.rules)), f"must have at most {MAX_FAILURE_RULES} items")
    for number, rule in enumerate(policy.rules):
        rule_path = f"{path}[{number}]"
        if rule.action not in FAILURE_ACTIONS:
            yield FieldError(
                f"{rule_path}.action", quoted(rule.action), f"{', '.join(FAILURE_ACTIONS)} are accepted", NOT_SUPPORTED
            )
        if rule.action == FAIL_INDEX and not per_index:
            reason = "requires the backoffLimitPerIndex to be set"
            yield FieldError(f"{rule_path}.action", quoted(rule.action), reason)
        if rule.on_exit_codes is not None and rule.on_pod_conditions:
            yield FieldError(rule_path, "both", "specifying both OnExitCodes and OnPodConditions is not supported")
        elif rule.on_exit_codes is None and not rule.on_pod_conditions:
            yield FieldError(rule_path, "neither", "specifying one of OnExitCodes and OnPodConditions is required")
        if rule.on_exit_codes is not None:
            yield from _validate_exit_codes(f"{rule_path}.onExitCodes", rule.on_exit_codes, names)
        for index, pattern in enumerate(rule.on_pod_conditions):
            if pattern.status not in ("", "True", "False", "Unknown"):
                accepted = "False, True, Unknown are accepted"
                yield FieldError(
                    f"{rule_path}.onPodConditions[{index}].status", quoted(pattern.status), accepted, NOT_SUPPORTED
                )


def _validate_exit_codes(
    path: str, requirement: PodFailurePolicyOnExitCodesRequirement, names: frozenset[str]
) -> Iterator[FieldError]:
    if requirement.operator not in (IN_OPERATOR, NOT_IN_OPERATOR):
        yield FieldError(
            f"{path}.operator",
            quoted(requirement.operator),
            f"{IN_OPERATOR} and {NOT_IN_OPERATOR} are accepted",
            NOT_SUPPORTED,
        )
    if requirement.container_name is not None and requirement.container_name not in names:
        reason = "must be one of the container or initContainer names in the pod template"
        yield FieldError(f"{path}.containerName", quoted(requirement.container_name), reason)
    if not requirement.values:
        yield FieldError(f"{path}.values", "[]", "at least one value is required", MISSING)
    if len(requirement.values) > MAX_EXIT_CODES:
        yield FieldError(
            f"{path}.values", str(len(requirement.values)), f"must have at most {MAX_EXIT_CODES} items", FORBIDDEN
        )
    if list(requirement.values) != sorted(set(requirement.values)):
        yield FieldError(f"{path}.values", quoted(requirement.values), "must be ordered and without duplicates")
    if 0 in requirement.values and requirement.operator == IN_OPERATOR:
        yield FieldError(f"{path}.values", quoted(requirement.values), "must not be 0 for the In operator")


INDEXED, NON_INDEXED = "Indexed", "NonIndexed"
FAILED_POLICY, TERMINATING_OR_FAILED = "Failed", "TerminatingOrFailed"
COMPLETE, FAILED, SUSPENDED = "Complete", "Failed", "Suspended"
CRITERIA_MET, FAILURE_TARGET = "SuccessCriteriaMet", "FailureTarget"
JOB_CONTROLLER = "kubernetes.io/job-controller"
"""By which a job may say that this master is to act for it, which it does anyway."""

DEFAULT_BACKOFF_LIMIT, UNLIMITED_BACKOFF = 6, (1 << 31) - 1
MAX_INDEXES = 100_000
MAX_JOB_NAME_LENGTH = 63
"""A job's name is the value of a label of its pods."""


UID_LABEL, NAME_LABEL = "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"
LEGACY_UID_LABEL, LEGACY_NAME_LABEL = "controller-uid", "job-name"
JOB_RESTART_POLICIES = ("OnFailure", "Never")


class JobSpec(Value, frozen=True):
    """The desired state of a Job.

    Up to `parallelism` pods run at a time until `completions` have succeeded, or the job fails. The server sets
    `selector` and some labels of the template unless `manual_selector` is set. A job with `managed_by` is left to that
    controller.
    """

    parallelism: Int32 | None = None
    completions: Int32 | None = None
    active_deadline_seconds: int | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    success_policy: SuccessPolicy | None = None
    backoff_limit: Int32 | None = None
    backoff_limit_per_index: Int32 | None = None
    max_failed_indexes: Int32 | None = None
    selector: LabelSelector | None = None
    manual_selector: bool = False
    template: PodTemplateSpec = PodTemplateSpec()
    ttl_seconds_after_finished: Int32 | None = None
    completion_mode: str = ""
    suspend: bool | None = None
    pod_replacement_policy: str = ""
    managed_by: str | None = None


class JobStatus(Value, frozen=True):
    """The actual state of a Job.

    `active`, `ready` and `terminating` are numbers of present pods; `succeeded` and `failed` count all pods that ever
    were. Indexes are written as "0,3-5".
    """

    conditions: Annotated[tuple[Condition, ...], merge_keys("type")] = ()
    start_time: Time | None = None
    completion_time: Time | None = None
    active: Int32 = 0
    succeeded: Int32 = 0
    failed: Int32 = 0
    terminating: Int32 | None = None
    completed_indexes: str = ""
    failed_indexes: str | None = None
    ready: Int32 | None = None


class Job(Object, frozen=True):
    """Runs pods from a template until enough of them have succeeded."""

    API_VERSION = "batch/v1"
    KIND = "Job"
    PLURAL = "jobs"
    NAMESPACED = True

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


def has_condition(job: Job, condition: str) -> bool:
    """Return whether the job has a condition."""
    return any(current.type == condition and current.status == "True" for current in job.status.conditions)


def is_job_finished(job: Job) -> bool:
    """Return whether the job has completed or failed."""
    return has_condition(job, COMPLETE) or has_condition(job, FAILED)


# --- defaults and fields that the server sets -------------------------------------------------------------------------


def default_job_spec(spec: JobSpec) -> JobSpec:
    """Return the spec with every default set."""
    alone = spec.completions is None and spec.parallelism is None
    policy = spec.pod_failure_policy
    replacement = TERMINATING_OR_FAILED if policy is None else FAILED_POLICY
    limit = DEFAULT_BACKOFF_LIMIT if spec.backoff_limit_per_index is None else UNLIMITED_BACKOFF
    return replace(
        spec,
        completions=1 if alone else spec.completions,
        parallelism=1 if spec.parallelism is None else spec.parallelism,
        backoff_limit=limit if spec.backoff_limit is None else spec.backoff_limit,
        completion_mode=spec.completion_mode or NON_INDEXED,
        suspend=bool(spec.suspend),
        pod_failure_policy=None if policy is None else default_failure_policy(policy),
        pod_replacement_policy=spec.pod_replacement_policy or replacement,
        template=default_template(spec.template),
    )


def _default_job(job: Job) -> Job:
    labels = job.metadata.labels or job.spec.template.metadata.labels
    return replace(job, metadata=replace(job.metadata, labels=labels), spec=default_job_spec(job.spec))


def _prepare_job_for_create(job: Job) -> Job:
    """Set selector and labels of a new job from its uid, even if it was copied from another job.

    A job without labels gets those of its pods.
    """
    spec, meta = job.spec, job.metadata
    if not spec.manual_selector:
        template, uid, name = spec.template, meta.uid, meta.name
        own_labels = {UID_LABEL: uid, LEGACY_UID_LABEL: uid, NAME_LABEL: name, LEGACY_NAME_LABEL: name}
        labels = {**template.metadata.labels, **own_labels}
        spec = replace(
            spec,
            selector=LabelSelector(match_labels={UID_LABEL: uid}),
            template=replace(template, metadata=replace(template.metadata, labels=labels)),
        )
    meta = replace(meta, labels=meta.labels or spec.template.metadata.labels)
    return replace(job, metadata=meta, spec=spec, status=JobStatus())


# --- validation -------------------------------------------------------------------------------------------------------


def validate_job_spec(spec: JobSpec) -> Iterator[FieldError]:
    """Yield every error of a job's spec but for its selector."""
    yield from minimum(
        ("spec.parallelism", spec.parallelism, 0),
        ("spec.completions", spec.completions, 0),
        ("spec.activeDeadlineSeconds", spec.active_deadline_seconds, 0),
        ("spec.backoffLimit", spec.backoff_limit, 0),
        ("spec.ttlSecondsAfterFinished", spec.ttl_seconds_after_finished, 0),
        ("spec.backoffLimitPerIndex", spec.backoff_limit_per_index, 0),
        ("spec.maxFailedIndexes", spec.max_failed_indexes, 0),
    )
    yield from validate_template(spec.template, None, ("Always", *JOB_RESTART_POLICIES))
    policy = spec.template.spec.restart_policy
    if policy in ("", "Always"):
        accepted = 'valid values: "OnFailure", "Never"'
        yield FieldError("spec.template.spec.restartPolicy", quoted(policy), accepted, MISSING)
    yield from _validate_modes(spec)
    yield from _validate_indexes(spec)
    yield from _validate_limits(spec)
    if spec.pod_failure_policy is not None:
        yield from _validate_policy(spec, spec.pod_failure_policy)


def _validate_modes(spec: JobSpec) -> Iterator[FieldError]:
    if spec.managed_by is not None and ("/" not in spec.managed_by or names.label_key_error(spec.managed_by)):
        reason = 'must be a domain-prefixed path (such as "acme.io/foo")'
        yield FieldError("spec.managedBy", quoted(spec.managed_by), reason)
    for name, value, accepted in (
        ("completionMode", spec.completion_mode, (INDEXED, NON_INDEXED)),
        ("podReplacementPolicy", spec.pod_replacement_policy, (FAILED_POLICY, TERMINATING_OR_FAILED)),
    ):
        if value not in ("", *accepted):
            yield FieldError(f"spec.{name}", quoted(value), f"{' and '.join(accepted)} are accepted", NOT_SUPPORTED)


def _validate_indexes(spec: JobSpec) -> Iterator[FieldError]:
    if spec.completion_mode == INDEXED:
        if spec.completions is None:
            yield FieldError("spec.completions", "null", f"when completion mode is {INDEXED}", MISSING)
        for name, number in (("parallelism", spec.parallelism), ("completions", spec.completions)):
            if number is not None and number > MAX_INDEXES:
                reason = f"must be less than or equal to {MAX_INDEXES} when completion mode is {INDEXED}"
                yield FieldError(f"spec.{name}", quoted(number), reason)
        if spec.success_policy is not None:
            yield from validate_success_policy(spec.success_policy, min(spec.completions or 0, MAX_INDEXES))
        return
    for name, value in (
        ("backoffLimitPerIndex", spec.backoff_limit_per_index),
        ("maxFailedIndexes", spec.max_failed_indexes),
        ("successPolicy", spec.success_policy),
    ):
        if value is not None:
            reason = f"requires indexed completion mode (completionMode: {INDEXED})"
            yield FieldError(f"spec.{name}", "given", reason, FORBIDDEN)


def _validate_limits(spec: JobSpec) -> Iterator[FieldError]:
    if spec.max_failed_indexes is not None and spec.backoff_limit_per_index is None:
        reason = "when maxFailedIndexes is specified"
        yield FieldError("spec.backoffLimitPerIndex", "null", reason, MISSING)
    if spec.backoff_limit_per_index is not None and spec.template.spec.restart_policy == "OnFailure":
        reason = "only Never is accepted when backoffLimitPerIndex is specified"
        yield FieldError("spec.template.spec.restartPolicy", quoted("OnFailure"), reason)


def _validate_policy(spec: JobSpec, policy: PodFailurePolicy) -> Iterator[FieldError]:
    pod = spec.template.spec
    if pod.restart_policy == "OnFailure":
        reason = 'only "Never" is supported when podFailurePolicy is specified'
        yield FieldError("spec.template.spec.restartPolicy", quoted(pod.restart_policy), reason)
    if spec.pod_replacement_policy == TERMINATING_OR_FAILED:
        reason = f"only {FAILED_POLICY} is accepted with a podFailurePolicy"
        yield FieldError("spec.podReplacementPolicy", quoted(spec.pod_replacement_policy), reason, NOT_SUPPORTED)
    containers = (container.name for container in (*pod.init_containers, *pod.containers))
    yield from validate_failure_policy(policy, containers, spec.backoff_limit_per_index is not None)


def _validate_job(job: Job) -> Iterator[FieldError]:
    spec, selector = job.spec, job.spec.selector
    if len(job.metadata.name) > MAX_JOB_NAME_LENGTH:
        yield FieldError(
            "metadata.name", quoted(job.metadata.name), f"must be no more than {MAX_JOB_NAME_LENGTH} characters"
        )
    yield from validate_job_spec(spec)
    yield from check_selector("spec.selector", selector or LabelSelector())
    if spec.manual_selector:
        if selector is None or not (selector.match_labels or selector.match_expressions):
            yield FieldError("spec.selector", quoted(selector), "with manualSelector a selector is required", MISSING)
        elif not list(check_selector("", selector)):
            bad = validate_template(spec.template, selector, ("Always", *JOB_RESTART_POLICIES))
            yield from (error for error in bad if error.path == "spec.template.metadata.labels")
    elif selector is not None and not _is_generated_selector(job, selector):
        yield FieldError("spec.selector", quoted(format_selector(selector)), "`selector` not auto-generated")
    if spec.completion_mode == INDEXED and spec.completions:
        last = f"{job.metadata.name}-{spec.completions - 1}"
        if job.metadata.name and names.dns_label_error(last):
            reason = f"the names of its pods' hosts, such as {last}, must be DNS labels: {names.dns_label_error(last)}"
            yield FieldError("metadata.name", quoted(job.metadata.name), reason)


def _is_generated_selector(job: Job, selector: LabelSelector) -> bool:
    keys = frozenset((UID_LABEL, LEGACY_UID_LABEL))
    uid = job.metadata.uid
    is_own = all(key in keys and uid and value == uid for key, value in selector.match_labels.items())
    return is_own and not selector.match_expressions


def _validate_job_update(old: Job, new: Job) -> Iterator[FieldError]:
    before, after = old.spec, new.spec
    template = (
        (_immutable_template(old), _immutable_template(new))
        if _may_change_template(old)
        else (before.template, after.template)
    )
    for name, old_value, new_value in (
        ("selector", before.selector, after.selector),
        ("completionMode", before.completion_mode, after.completion_mode),
        ("podFailurePolicy", before.pod_failure_policy, after.pod_failure_policy),
        ("successPolicy", before.success_policy, after.success_policy),
        ("backoffLimitPerIndex", before.backoff_limit_per_index, after.backoff_limit_per_index),
        ("managedBy", before.managed_by, after.managed_by),
        ("template", *template),
    ):
        if old_value != new_value:
            yield FieldError(f"spec.{name}", "changed", "field is immutable")
    if before.completions != after.completions:
        grows = after.completion_mode == INDEXED and after.completions is not None
        if not (grows and before.completions is not None and after.completions == after.parallelism):
            yield FieldError("spec.completions", quoted(after.completions), "field is immutable")


def _may_change_template(job: Job) -> bool:
    """Return whether job queues may change where its pods run and what they request, before they resume the job.

    It is suspended, and none of its pods runs.
    """
    has_stopped = has_condition(job, SUSPENDED) and not job.status.active
    return bool(job.spec.suspend) and (job.status.start_time is None or has_stopped)


def _immutable_template(job: Job) -> PodTemplateSpec:
    """Return the part of the template that is immutable."""
    template = job.spec.template
    meta = replace(template.metadata, labels={}, annotations={})
    spec = template.spec
    free = replace(
        spec,
        node_selector={},
        affinity=None,
        tolerations=(),
        scheduling_gates=None,
        containers=_without_resources(spec.containers),
        init_containers=_without_resources(spec.init_containers),
    )
    return replace(template, metadata=meta, spec=free)


def _without_resources(containers: Iterable[Container]) -> tuple[Container, ...]:
    return tuple(replace(container, resources=ResourceRequirements()) for container in containers)


# --- columns ----------------------------------------------------------------------------------------------------------


def job_state(job: Job) -> str:
    """Return the state of the job in one word."""
    if is_job_finished(job):
        return COMPLETE if has_condition(job, COMPLETE) else FAILED
    if job.metadata.deletion_timestamp:
        return "Terminating"
    return next(
        (condition for condition in (SUSPENDED, FAILURE_TARGET, CRITERIA_MET) if has_condition(job, condition)),
        "Running",
    )


def _completions_text(job: Job) -> str:
    done, spec = job.status.succeeded, job.spec
    if spec.completions is not None:
        return f"{done}/{spec.completions}"
    parallel = spec.parallelism or 0
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def _duration_text(job: Job, now: datetime.datetime) -> str:
    begun, ended = parse_time(job.status.start_time), parse_time(job.status.completion_time)
    return "" if begun is None else duration(int(((ended or now) - begun).total_seconds()))


JOBS = Resource(
    type=Job,
    categories=("all",),
    columns=(
        NAME,
        Column(
            "Status", "State of the job, such as Running, Suspended, Complete or Failed.", lambda job, _: job_state(job)
        ),
        Column("Completions", "Number of succeeded pods and of required ones.", lambda job, _: _completions_text(job)),
        Column(
            "Duration", "Time between start and completion, or until now.", lambda job, now: _duration_text(job, now)
        ),
        AGE,
        *TEMPLATE_COLUMNS,
    ),
    selectable_fields=lambda job: {"status.successful": str(job.status.succeeded)},
    prepare_for_create=_prepare_job_for_create,
    spec=lambda job: job.spec,
    rules=KindRules(default=_default_job, validate=_validate_job, validate_update=_validate_job_update),
    orphans_dependents=True,
    acted_on_by="the job controller of the master",
)
