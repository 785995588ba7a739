"""PodDisruptionBudget of policy/v1beta1, as the components of Kubernetes before 1.21 ask for it. Pure.

An empty selector takes no pods in this form, and all of them in the newer one.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from api.meta.schema import FieldError
from api.meta.selectors import LabelSelector, LabelSelectorRequirement
from api.meta.types import Object
from api.validation.registry import KindRules
from master.kinds import pod_disruption_budget
from master.kinds.kind import Conversion, Kind
from master.kinds.pod_disruption_budget import POD_DISRUPTION_BUDGET, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus

ALL = LabelSelector(
    match_expressions=(
        LabelSelectorRequirement(
            key="pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match", operator="DoesNotExist"
        ),
    )
)
"""Takes every pod, as Kubernetes says it in this form."""


class PodDisruptionBudget(Object, frozen=True):
    """Evictions of the pods that it selects are refused while too few of them are healthy."""

    API_VERSION = "policy/v1beta1"
    KIND = "PodDisruptionBudget"

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


def _seen(item: pod_disruption_budget.PodDisruptionBudget) -> PodDisruptionBudget:
    spec = replace(item.spec, selector=ALL) if item.spec.selector == LabelSelector() else item.spec
    return PodDisruptionBudget(metadata=item.metadata, spec=spec, status=item.status)


def _kept(item: PodDisruptionBudget) -> pod_disruption_budget.PodDisruptionBudget:
    found, spec = item.spec.selector, item.spec
    if found == ALL:
        spec = replace(spec, selector=LabelSelector())
    elif found == LabelSelector():
        spec = replace(spec, selector=None)
    return pod_disruption_budget.PodDisruptionBudget(metadata=item.metadata, spec=spec, status=item.status)


def _check(item: PodDisruptionBudget) -> Iterator[FieldError]:
    yield from POD_DISRUPTION_BUDGET.rules.check(_kept(item))


POD_DISRUPTION_BUDGET_V1BETA1 = Kind(
    type=PodDisruptionBudget,
    plural=POD_DISRUPTION_BUDGET.plural,
    singular=POD_DISRUPTION_BUDGET.singular,
    namespaced=True,
    short=POD_DISRUPTION_BUDGET.short,
    columns=POD_DISRUPTION_BUDGET.columns,
    cells=lambda item, now: POD_DISRUPTION_BUDGET.cells(_kept(item), now),
    on_create=lambda item: replace(item, status=PodDisruptionBudgetStatus()),
    on_update=lambda new, old: replace(new, status=old.status),
    with_status=lambda new, old: replace(old, status=new.status),
    spec=lambda item: item.spec,
    own_rules=KindRules(check=_check),
    conversion=Conversion(POD_DISRUPTION_BUDGET, _seen, _kept),
)
