"""When a Job with indexes has succeeded although some of them have not ended well. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from api.meta.schema import MISSING, FieldError, quoted
from api.meta.types import Value
from master.kinds import job_indexes
from master.kinds.checks import at_least

MOST_RULES = 20


class SuccessPolicyRule(Value, frozen=True):
    """So many indexes have ended well, or all that are named, or so many of those that are named ("0,3-5")."""

    succeeded_indexes: str | None = None
    succeeded_count: int | None = None


class SuccessPolicy(Value, frozen=True):
    """One of the rules must be met."""

    rules: tuple[SuccessPolicyRule, ...] = ()


def met(policy: SuccessPolicy | None, done: frozenset[int], completions: int) -> int | None:
    """The place of the first rule that is met; None if none is. `done` are the indexes that have ended well."""
    for number, rule in enumerate(policy.rules if policy else ()):
        named = rule.succeeded_indexes
        wanted = frozenset(range(completions)) if named is None else job_indexes.read(named, completions)
        least = len(wanted) if rule.succeeded_count is None else rule.succeeded_count
        if len(done & wanted) >= least:
            return number
    return None


def check(policy: SuccessPolicy, completions: int) -> Iterator[FieldError]:
    """Every problem, of a job with so many completions."""
    path = "spec.successPolicy.rules"
    if not policy.rules:
        yield FieldError(
            path, "[]", "at least one rules must be specified when the successPolicy is specified", MISSING
        )
    if len(policy.rules) > MOST_RULES:
        yield FieldError(path, str(len(policy.rules)), f"must have at most {MOST_RULES} items")
    for number, rule in enumerate(policy.rules):
        place, named, count = f"{path}[{number}]", rule.succeeded_indexes, rule.succeeded_count
        if named is None and count is None:
            why = "at least one of succeededCount or succeededIndexes must be specified"
            yield FieldError(place, "{}", why, MISSING)
        yield from at_least((f"{place}.succeededCount", count, 0))
        indexes = job_indexes.read(named, completions)
        if named is not None and not job_indexes.is_list(named, completions):
            why = 'indexes below the completions are accepted, in order and joined as in "0,2-4"'
            yield FieldError(f"{place}.succeededIndexes", quoted(named), why)
        elif named is not None and count is not None and count > len(indexes):
            why = f"must be less than or equal to {len(indexes)}, the number of the indexes"
            yield FieldError(f"{place}.succeededCount", quoted(count), why)
        if count is not None and count > completions:
            why = f"must be less than or equal to {completions}, the number of completions"
            yield FieldError(f"{place}.succeededCount", quoted(count), why)
