"""PodDisruptionBudget: how many of some pods may be missing at a time when somebody evicts them. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated

from msgspec.structs import replace

from api.meta.schema import FieldError, quoted, unsupported_values
from api.meta.selectors import LabelSelector, check_selector
from api.meta.types import Object, StatusCondition, Value, merge_keys
from api.validation.registry import KindRules
from master.kinds.kind import AGE, NAME, Column, Kind, age
from master.kinds.workload import check_share, share

IF_HEALTHY, ALWAYS = "IfHealthyBudget", "AlwaysAllow"


class PodDisruptionBudgetSpec(Value, frozen=True):
    """Either `minAvailable` or `maxUnavailable`: a number of pods, or a part in percent.

    A selector that is empty takes every pod of the project, one that is left out takes none.
    `unhealthyPodEvictionPolicy` is IfHealthyBudget (the default) or AlwaysAllow.
    """

    min_available: int | str | None = None
    selector: LabelSelector | None = None
    max_unavailable: int | str | None = None
    unhealthy_pod_eviction_policy: str | None = None


class PodDisruptionBudgetStatus(Value, frozen=True, omit_defaults=False):
    """`disruptedPods`: pods that somebody has promised to end, with the time of the promise (RFC 3339)."""

    observed_generation: int = 0
    disrupted_pods: dict[str, str] = {}
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    conditions: Annotated[tuple[StatusCondition, ...], merge_keys("type")] = ()


class PodDisruptionBudget(Object, frozen=True):
    """Evictions of the pods that it selects are refused while too few of them are healthy."""

    API_VERSION = "policy/v1"
    KIND = "PodDisruptionBudget"

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


def _check(item: PodDisruptionBudget) -> Iterator[FieldError]:
    spec = item.spec
    if spec.min_available is not None and spec.max_unavailable is not None:
        found = quoted({"minAvailable": spec.min_available, "maxUnavailable": spec.max_unavailable})
        yield FieldError("spec", found, "minAvailable and maxUnavailable cannot be both set")
    for name, value in (("minAvailable", spec.min_available), ("maxUnavailable", spec.max_unavailable)):
        if wrong := _wrong(value):
            yield FieldError(f"spec.{name}", quoted(value), wrong)
    yield from check_selector("spec.selector", spec.selector or LabelSelector())
    policy = spec.unhealthy_pod_eviction_policy
    yield from unsupported_values(("spec.unhealthyPodEvictionPolicy", policy or "", (IF_HEALTHY, ALWAYS)))


def _wrong(value: int | str | None) -> str:
    """What is wrong with a number of pods; empty if nothing."""
    if isinstance(value, int):
        return "" if value >= 0 else "must be greater than or equal to 0"
    if any(check_share("", value)):
        return "must be an integer or percentage (e.g '5%')"
    return "" if share(value, 100, up=False) <= 100 else "must not be greater than 100%"


def _cells(item: PodDisruptionBudget, now: datetime.datetime) -> tuple[object, ...]:
    spec = item.spec
    return (
        item.metadata.name,
        "N/A" if spec.min_available is None else str(spec.min_available),
        "N/A" if spec.max_unavailable is None else str(spec.max_unavailable),
        item.status.disruptions_allowed,
        age(item.metadata.creation_timestamp, now),
    )


POD_DISRUPTION_BUDGET = Kind(
    type=PodDisruptionBudget,
    plural="poddisruptionbudgets",
    singular="poddisruptionbudget",
    namespaced=True,
    short=("pdb",),
    columns=(
        NAME,
        Column("Min Available", "How many pods must be healthy."),
        Column("Max Unavailable", "How many pods may be missing."),
        Column("Allowed Disruptions", "How many pods may be evicted now.", "integer"),
        AGE,
    ),
    cells=_cells,
    on_create=lambda item: replace(item, status=PodDisruptionBudgetStatus()),
    on_update=lambda new, old: replace(new, status=old.status),
    with_status=lambda new, old: replace(old, status=new.status),
    spec=lambda item: item.spec,
    own_rules=KindRules(check=_check),
)
