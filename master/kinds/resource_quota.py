"""ResourceQuota: how much all objects of a project may take together. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from api.meta import names
from api.meta.schema import MISSING, FieldError, quoted
from api.meta.types import Object, Value
from api.validation.registry import KindRules
from master.kinds.amounts import Given, shortest
from master.kinds.checks import amounts
from master.kinds.kind import AGE, NAME, Column, Kind, age

TERMINATING, NOT_TERMINATING = "Terminating", "NotTerminating"
BEST_EFFORT, NOT_BEST_EFFORT = "BestEffort", "NotBestEffort"
PRIORITY, AFFINITY = "PriorityClass", "CrossNamespacePodAffinity"
SCOPES = (TERMINATING, NOT_TERMINATING, BEST_EFFORT, NOT_BEST_EFFORT, PRIORITY, AFFINITY)
CONFLICTING = ({BEST_EFFORT, NOT_BEST_EFFORT}, {TERMINATING, NOT_TERMINATING})
ONLY_EXISTS = (BEST_EFFORT, NOT_BEST_EFFORT, TERMINATING, NOT_TERMINATING, AFFINITY)

COUNTED = (
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
)
"""Resources of which there are whole ones only."""

OF_PODS = (
    "pods",
    "cpu",
    "memory",
    "ephemeral-storage",
    *(f"{part}.{name}" for part in ("requests", "limits") for name in ("cpu", "memory", "ephemeral-storage")),
)
"""Resources that only pods take, so that a quota of them may be for some pods only."""

STANDARD = frozenset((*COUNTED, *OF_PODS, "requests.storage"))


class ScopedResourceSelectorRequirement(Value, frozen=True):
    """`operator` is In, NotIn, Exists or DoesNotExist."""

    scope_name: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class ScopeSelector(Value, frozen=True):
    """All of it must hold."""

    match_expressions: tuple[ScopedResourceSelectorRequirement, ...] = ()


class ResourceQuotaSpec(Value, frozen=True):
    """`hard`: the most of each resource; with scopes only pods count that are in all of them."""

    hard: dict[str, str | int | float] = {}
    scopes: tuple[str, ...] = ()
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(Value, frozen=True):
    """`hard` is what holds, `used` what there is of it."""

    hard: dict[str, str | int | float] = {}
    used: dict[str, str | int | float] = {}


class ResourceQuota(Object, frozen=True):
    """What would take more than this is not made."""

    API_VERSION = "v1"
    KIND = "ResourceQuota"

    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


def scopes(spec: ResourceQuotaSpec) -> tuple[ScopedResourceSelectorRequirement, ...]:
    """Every scope of a quota, as what must hold of a pod."""
    plain = tuple(ScopedResourceSelectorRequirement(scope_name=name, operator="Exists") for name in spec.scopes)
    return (*plain, *(spec.scope_selector.match_expressions if spec.scope_selector else ()))


def _default(item: ResourceQuota) -> ResourceQuota:
    return replace(item, spec=replace(item.spec, hard=shortest(item.spec.hard)))


def _check(item: ResourceQuota) -> Iterator[FieldError]:
    for part, given in (
        ("spec.hard", item.spec.hard), ("status.hard", item.status.hard), ("status.used", item.status.used)
    ):  # fmt: skip
        yield from _check_hard(part, given)
    yield from _check_scopes("spec.scopes", item.spec.scopes, item.spec)
    if item.spec.scope_selector is not None:
        rows = item.spec.scope_selector.match_expressions
        yield from _check_scopes("spec.scopeSelector.matchExpressions", [row.scope_name for row in rows], item.spec)
        for row in rows:
            yield from _check_selector("spec.scopeSelector.matchExpressions", row)


def _check_hard(path: str, hard: Given) -> Iterator[FieldError]:
    for name in hard:
        if names.label_key(name):
            yield FieldError(f"{path}[{name}]", quoted(name), names.label_key(name))
        elif "/" not in name and name not in STANDARD and not name.startswith(("hugepages-", "requests.hugepages-")):
            yield FieldError(f"{path}[{name}]", quoted(name), "must be a standard resource for quota")
    bad = list(amounts(path, hard))
    yield from bad
    if not bad:
        for name, text in shortest(hard).items():
            if (name in COUNTED or name.startswith("count/")) and str(text).endswith("m"):
                yield FieldError(f"{path}[{name}]", quoted(text), "must be an integer")


def _check_scopes(path: str, found: Iterable[str], spec: ResourceQuotaSpec) -> Iterator[FieldError]:
    found = tuple(found)
    for scope in found:
        if scope not in SCOPES:
            yield FieldError(path, quoted(found), "unsupported scope")
        elif any("/" not in name and not _may_have(scope, name) for name in spec.hard):
            yield FieldError(path, quoted(found), "unsupported scope applied to resource")
    if any(pair <= set(found) for pair in CONFLICTING):
        yield FieldError(path, quoted(found), "conflicting scopes")


def _may_have(scope: str, resource: str) -> bool:
    if scope == BEST_EFFORT:
        return resource == "pods"
    return resource in OF_PODS or resource.startswith(("hugepages-", "requests.hugepages-"))


def _check_selector(path: str, row: ScopedResourceSelectorRequirement) -> Iterator[FieldError]:
    if row.scope_name in ONLY_EXISTS and row.operator != "Exists":
        why = f"must be 'Exist' only operator when scope is any of {', '.join(ONLY_EXISTS)}"
        yield FieldError(f"{path}.operator", quoted(row.operator), why)
    if row.operator in ("In", "NotIn"):
        if not row.values:
            why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
            yield FieldError(f"{path}.values", "[]", why, MISSING)
    elif row.operator in ("Exists", "DoesNotExist"):
        if row.values:
            why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
            yield FieldError(f"{path}.values", quoted(row.values), why)
    else:
        yield FieldError(f"{path}.operator", quoted(row.operator), "not a valid selector operator")


def _immutable(old: ResourceQuota, new: ResourceQuota) -> Iterator[FieldError]:
    if set(old.spec.scopes) != set(new.spec.scopes):
        yield FieldError("spec.scopes", quoted(new.spec.scopes), "field is immutable")


def _shown(item: ResourceQuota, of_limits: bool) -> str:
    used = item.status.used
    rows = ((name, hard) for name, hard in sorted(item.status.hard.items()) if name.startswith("limits.") == of_limits)
    return ", ".join(f"{name}: {used.get(name, 0)}/{hard}" for name, hard in rows)


def _cells(item: ResourceQuota, now: datetime.datetime) -> tuple[object, ...]:
    made = age(item.metadata.creation_timestamp, now)
    return item.metadata.name, _shown(item, of_limits=False), _shown(item, of_limits=True), made


RESOURCE_QUOTA = Kind(
    type=ResourceQuota,
    plural="resourcequotas",
    singular="resourcequota",
    namespaced=True,
    short=("quota",),
    columns=(
        NAME,
        Column("Request", "What is taken of what may be taken, without limits."),
        Column("Limit", "What is taken of what the limits may be together."),
        AGE,
    ),
    cells=_cells,
    on_create=lambda item: replace(item, status=ResourceQuotaStatus()),
    on_update=lambda new, old: replace(new, status=old.status),
    with_status=lambda new, old: replace(old, status=new.status),
    own_rules=KindRules(_default, _check, _immutable),
)
