"""What a Job makes of a pod that failed, where the number of failures is not all that counts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from api.core.pod import ContainerStatus, Pod
from api.meta.schema import FORBIDDEN, MISSING, NOT_SUPPORTED, FieldError, quoted
from api.meta.types import Value

FAIL_JOB, FAIL_INDEX, IGNORE, COUNT = "FailJob", "FailIndex", "Ignore", "Count"
ACTIONS = (FAIL_JOB, FAIL_INDEX, IGNORE, COUNT)
IN, NOT_IN = "In", "NotIn"
MOST_RULES, MOST_VALUES = 20, 255


class PodFailurePolicyOnExitCodesRequirement(Value, frozen=True):
    """One container that ended badly has an exit code that is, or is not, one of `values`."""

    operator: str
    values: tuple[int, ...]
    container_name: str | None = None


class PodFailurePolicyOnPodConditionsPattern(Value, frozen=True):
    """The pod has this condition; `status` is True if nothing else is said."""

    type: str
    status: str = ""


class PodFailurePolicyRule(Value, frozen=True):
    """`action` is FailJob, FailIndex, Ignore or Count; exactly one of the two requirements is given."""

    action: str
    on_exit_codes: PodFailurePolicyOnExitCodesRequirement | None = None
    on_pod_conditions: tuple[PodFailurePolicyOnPodConditionsPattern, ...] = ()


class PodFailurePolicy(Value, frozen=True):
    """The first rule that fits a failed pod counts; with none, the failure counts towards the limit."""

    rules: tuple[PodFailurePolicyRule, ...] = ()


def defaulted(policy: PodFailurePolicy) -> PodFailurePolicy:
    """With every status written out."""
    return PodFailurePolicy(rules=tuple(_with_status(rule) for rule in policy.rules))


def _with_status(rule: PodFailurePolicyRule) -> PodFailurePolicyRule:
    rows = tuple(replace(row, status=row.status or "True") for row in rule.on_pod_conditions)
    return replace(rule, on_pod_conditions=rows)


# --- what fits --------------------------------------------------------------------------------------------------------


def verdict(policy: PodFailurePolicy | None, pod: Pod) -> tuple[str, str]:
    """The action for a pod that failed, and the sentence for people where the action ends something."""
    for number, rule in enumerate(policy.rules if policy else ()):
        if rule.on_exit_codes is not None:
            status = next(_fitting(rule.on_exit_codes, _ended(pod)), None)
            if status is not None and status.state.terminated is not None:
                code = status.state.terminated.exit_code
                what = f"Container {status.name} for pod {_named(pod)} failed with exit code {code}"
                return rule.action, f"{what} matching {rule.action} rule at index {number}"
        for row in pod.status.conditions:
            if any((row.type, row.status) == (wish.type, wish.status) for wish in rule.on_pod_conditions):
                what = f"Pod {_named(pod)} has condition {row.type}"
                return rule.action, f"{what} matching {rule.action} rule at index {number}"
    return COUNT, ""


def _named(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _ended(pod: Pod) -> Iterator[ContainerStatus]:
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if status.state.terminated is not None and status.state.terminated.exit_code != 0:
            yield status


def _fitting(
    wish: PodFailurePolicyOnExitCodesRequirement, statuses: Iterable[ContainerStatus]
) -> Iterator[ContainerStatus]:
    for status in statuses:
        ended = status.state.terminated
        if ended is None or wish.container_name not in (None, status.name):
            continue
        if (ended.exit_code in wish.values) == (wish.operator == IN):
            yield status


# --- what is wrong ----------------------------------------------------------------------------------------------------


def check(policy: PodFailurePolicy, containers: Iterable[str], per_index: bool) -> Iterator[FieldError]:
    """Every problem; `containers` are the names of the template's, `per_index` says whether each index has a limit."""
    path, names = "spec.podFailurePolicy.rules", frozenset(containers)
    if len(policy.rules) > MOST_RULES:
        yield FieldError(path, str(len(policy.rules)), f"must have at most {MOST_RULES} items")
    for number, rule in enumerate(policy.rules):
        place = f"{path}[{number}]"
        if rule.action not in ACTIONS:
            yield FieldError(
                f"{place}.action", quoted(rule.action), f"{', '.join(ACTIONS)} are accepted", NOT_SUPPORTED
            )
        if rule.action == FAIL_INDEX and not per_index:
            why = "requires the backoffLimitPerIndex to be set"
            yield FieldError(f"{place}.action", quoted(rule.action), why)
        if rule.on_exit_codes is not None and rule.on_pod_conditions:
            yield FieldError(place, "both", "specifying both OnExitCodes and OnPodConditions is not supported")
        elif rule.on_exit_codes is None and not rule.on_pod_conditions:
            yield FieldError(place, "neither", "specifying one of OnExitCodes and OnPodConditions is required")
        if rule.on_exit_codes is not None:
            yield from _check_codes(f"{place}.onExitCodes", rule.on_exit_codes, names)
        for index, row in enumerate(rule.on_pod_conditions):
            if row.status not in ("", "True", "False", "Unknown"):
                accepted = "False, True, Unknown are accepted"
                yield FieldError(
                    f"{place}.onPodConditions[{index}].status", quoted(row.status), accepted, NOT_SUPPORTED
                )


def _check_codes(
    path: str, wish: PodFailurePolicyOnExitCodesRequirement, names: frozenset[str]
) -> Iterator[FieldError]:
    if wish.operator not in (IN, NOT_IN):
        yield FieldError(f"{path}.operator", quoted(wish.operator), f"{IN} and {NOT_IN} are accepted", NOT_SUPPORTED)
    if wish.container_name is not None and wish.container_name not in names:
        why = "must be one of the container or initContainer names in the pod template"
        yield FieldError(f"{path}.containerName", quoted(wish.container_name), why)
    if not wish.values:
        yield FieldError(f"{path}.values", "[]", "at least one value is required", MISSING)
    if len(wish.values) > MOST_VALUES:
        yield FieldError(f"{path}.values", str(len(wish.values)), f"must have at most {MOST_VALUES} items", FORBIDDEN)
    if list(wish.values) != sorted(set(wish.values)):
        yield FieldError(f"{path}.values", quoted(wish.values), "must be ordered and without duplicates")
    if 0 in wish.values and wish.operator == IN:
        yield FieldError(f"{path}.values", quoted(wish.values), "must not be 0 for the In operator")
