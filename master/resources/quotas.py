"""ResourceQuota and LimitRange. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from api.meta import names
from api.meta.quantity import Amount
from api.meta.schema import DUPLICATE, FORBIDDEN, MISSING, FieldError, quoted
from api.meta.types import Object, Value
from api.meta.values import Quantity
from api.validation.registry import KindRules
from master.resources.printing import AGE, NAME
from master.resources.quantities import Quantities, RawQuantities, canonical, parse_all
from master.resources.resource import Column, Resource
from master.resources.validation import quantities_at_least_zero

TERMINATING_SCOPE, NOT_TERMINATING_SCOPE = "Terminating", "NotTerminating"
BEST_EFFORT_SCOPE, NOT_BEST_EFFORT_SCOPE = "BestEffort", "NotBestEffort"
PRIORITY_CLASS_SCOPE, AFFINITY_SCOPE = "PriorityClass", "CrossNamespacePodAffinity"
ATTRIBUTES_CLASS_SCOPE = "VolumeAttributesClass"
"""The only scope of claims; the others are of pods."""

QUOTA_SCOPES = (
    TERMINATING_SCOPE,
    NOT_TERMINATING_SCOPE,
    BEST_EFFORT_SCOPE,
    NOT_BEST_EFFORT_SCOPE,
    PRIORITY_CLASS_SCOPE,
    AFFINITY_SCOPE,
    ATTRIBUTES_CLASS_SCOPE,
)
CONFLICTING_SCOPES = ({BEST_EFFORT_SCOPE, NOT_BEST_EFFORT_SCOPE}, {TERMINATING_SCOPE, NOT_TERMINATING_SCOPE})
EXISTS_ONLY_SCOPES = (
    BEST_EFFORT_SCOPE,
    NOT_BEST_EFFORT_SCOPE,
    TERMINATING_SCOPE,
    NOT_TERMINATING_SCOPE,
    AFFINITY_SCOPE,
)

INTEGER_RESOURCES = (
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

CLAIM_RESOURCES = ("persistentvolumeclaims", "requests.storage")
"""Resources that only claims take."""

POD_RESOURCES = (
    "pods",
    "cpu",
    "memory",
    "ephemeral-storage",
    *(f"{part}.{name}" for part in ("requests", "limits") for name in ("cpu", "memory", "ephemeral-storage")),
)
"""Resources that only pods take, so that a quota of them may be for some pods only."""

STANDARD_QUOTA_RESOURCES = frozenset((*INTEGER_RESOURCES, *POD_RESOURCES, "requests.storage"))


class ScopedResourceSelectorRequirement(Value, frozen=True):
    """A requirement on the scope of a pod or a claim. `operator` is In, NotIn, Exists or DoesNotExist."""

    scope_name: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class ScopeSelector(Value, frozen=True):
    """Requirements that must all be met."""

    match_expressions: tuple[ScopedResourceSelectorRequirement, ...] = ()


class ResourceQuotaSpec(Value, frozen=True):
    """The limits of a project.

    `hard` is the maximum of each resource. With scopes, only pods, or claims, that are in all of them count.
    """

    hard: dict[str, Quantity] = {}
    scopes: tuple[str, ...] = ()
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(Value, frozen=True):
    """`hard`: limits in force. `used`: current usage of each."""

    hard: dict[str, Quantity] = {}
    used: dict[str, Quantity] = {}


class ResourceQuota(Object, frozen=True):
    """Limits the total resources and objects of a project."""

    API_VERSION = "v1"
    KIND = "ResourceQuota"
    PLURAL = "resourcequotas"
    NAMESPACED = True

    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


def scope_requirements(spec: ResourceQuotaSpec) -> tuple[ScopedResourceSelectorRequirement, ...]:
    """Return the requirements of every scope of a quota."""
    plain = tuple(ScopedResourceSelectorRequirement(scope_name=name, operator="Exists") for name in spec.scopes)
    return (*plain, *(spec.scope_selector.match_expressions if spec.scope_selector else ()))


def _default_quota(quota: ResourceQuota) -> ResourceQuota:
    return replace(quota, spec=replace(quota.spec, hard=canonical(quota.spec.hard)))


def _validate_quota(quota: ResourceQuota) -> Iterator[FieldError]:
    for part, amounts in (
        ("spec.hard", quota.spec.hard), ("status.hard", quota.status.hard), ("status.used", quota.status.used)
    ):  # fmt: skip
        yield from _validate_hard(part, amounts)
    yield from _validate_scopes("spec.scopes", quota.spec.scopes, quota.spec)
    if quota.spec.scope_selector is not None:
        requirements = quota.spec.scope_selector.match_expressions
        yield from _validate_scopes(
            "spec.scopeSelector.matchExpressions", [requirement.scope_name for requirement in requirements], quota.spec
        )
        for requirement in requirements:
            yield from _validate_scope_selector("spec.scopeSelector.matchExpressions", requirement)


def _validate_hard(path: str, hard: RawQuantities) -> Iterator[FieldError]:
    for name in hard:
        if names.label_key_error(name):
            yield FieldError(f"{path}[{name}]", quoted(name), names.label_key_error(name))
        elif (
            "/" not in name
            and name not in STANDARD_QUOTA_RESOURCES
            and not name.startswith(("hugepages-", "requests.hugepages-"))
        ):
            yield FieldError(f"{path}[{name}]", quoted(name), "must be a standard resource for quota")
    bad = list(quantities_at_least_zero(path, hard))
    yield from bad
    if not bad:
        for name, text in canonical(hard).items():
            if (name in INTEGER_RESOURCES or name.startswith("count/")) and str(text).endswith("m"):
                yield FieldError(f"{path}[{name}]", quoted(text), "must be an integer")


def _validate_scopes(path: str, scopes: Iterable[str], spec: ResourceQuotaSpec) -> Iterator[FieldError]:
    scopes = tuple(scopes)
    for scope in scopes:
        if scope not in QUOTA_SCOPES:
            yield FieldError(path, quoted(scopes), "unsupported scope")
        elif any("/" not in name and not _scope_allows(scope, name) for name in spec.hard):
            yield FieldError(path, quoted(scopes), "unsupported scope applied to resource")
    if any(pair <= set(scopes) for pair in CONFLICTING_SCOPES):
        yield FieldError(path, quoted(scopes), "conflicting scopes")


def _scope_allows(scope: str, resource: str) -> bool:
    if scope == BEST_EFFORT_SCOPE:
        return resource == "pods"
    if scope == ATTRIBUTES_CLASS_SCOPE:
        return resource in CLAIM_RESOURCES
    return resource in POD_RESOURCES or resource.startswith(("hugepages-", "requests.hugepages-"))


def _validate_scope_selector(path: str, requirement: ScopedResourceSelectorRequirement) -> Iterator[FieldError]:
    if requirement.scope_name in EXISTS_ONLY_SCOPES and requirement.operator != "Exists":
        reason = f"must be 'Exist' only operator when scope is any of {', '.join(EXISTS_ONLY_SCOPES)}"
        yield FieldError(f"{path}.operator", quoted(requirement.operator), reason)
    if requirement.operator in ("In", "NotIn"):
        if not requirement.values:
            reason = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
            yield FieldError(f"{path}.values", "[]", reason, MISSING)
    elif requirement.operator in ("Exists", "DoesNotExist"):
        if requirement.values:
            reason = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
            yield FieldError(f"{path}.values", quoted(requirement.values), reason)
    else:
        yield FieldError(f"{path}.operator", quoted(requirement.operator), "not a valid selector operator")


def _validate_quota_update(old: ResourceQuota, new: ResourceQuota) -> Iterator[FieldError]:
    if set(old.spec.scopes) != set(new.spec.scopes):
        yield FieldError("spec.scopes", quoted(new.spec.scopes), "field is immutable")


def _usage_text(quota: ResourceQuota, of_limits: bool) -> str:
    used = quota.status.used
    limits = (
        (name, hard) for name, hard in sorted(quota.status.hard.items()) if name.startswith("limits.") == of_limits
    )
    return ", ".join(f"{name}: {used.get(name, 0)}/{hard}" for name, hard in limits)


RESOURCE_QUOTAS = Resource(
    type=ResourceQuota,
    short_names=("quota",),
    columns=(
        NAME,
        Column(
            "Request",
            "Usage and maximum of each resource, except limits.",
            lambda quota, _: _usage_text(quota, of_limits=False),
        ),
        Column(
            "Limit",
            "Usage and maximum of the sum of limits.",
            lambda quota, _: _usage_text(quota, of_limits=True),
        ),
        AGE,
    ),
    rules=KindRules(_default_quota, _validate_quota, _validate_quota_update),
    acted_on_by="the master, when an object is created or updated; a controller counts again after deletions",
)

CONTAINER_LIMIT, POD_LIMIT, CLAIM_LIMIT = "Container", "Pod", "PersistentVolumeClaim"
LIMIT_TYPES = (POD_LIMIT, CONTAINER_LIMIT, CLAIM_LIMIT)
ONE = Amount(1000)


class LimitRangeItem(Value, frozen=True):
    """Bounds for one type of object.

    `type` is Container, Pod or PersistentVolumeClaim; the other fields are amounts by the name of the resource.
    `default` are the limits and `defaultRequest` the requests of containers that name none. `maxLimitRequestRatio` is
    the maximum ratio of limit to request.
    """

    type: str = ""
    max: dict[str, Quantity] = {}
    min: dict[str, Quantity] = {}
    default: dict[str, Quantity] = {}
    default_request: dict[str, Quantity] = {}
    max_limit_request_ratio: dict[str, Quantity] = {}


class LimitRangeSpec(Value, frozen=True):
    """The bounds, with at most one item of each type."""

    limits: tuple[LimitRangeItem, ...] = ()


class LimitRange(Object, frozen=True):
    """Bounds and defaults for the resources of pods and claims in a project."""

    API_VERSION = "v1"
    KIND = "LimitRange"
    PLURAL = "limitranges"
    NAMESPACED = True

    spec: LimitRangeSpec = LimitRangeSpec()


def _default_limit_range(limit_range: LimitRange) -> LimitRange:
    return replace(
        limit_range, spec=LimitRangeSpec(limits=tuple(_default_limit(limit) for limit in limit_range.spec.limits))
    )


def _default_limit(limit: LimitRangeItem) -> LimitRangeItem:
    if limit.type == CONTAINER_LIMIT:
        default = {**limit.max, **limit.default}
        limit = replace(limit, default=default, default_request={**limit.min, **default, **limit.default_request})
    return replace(limit, **{field: canonical(amounts) for field, amounts in _limit_fields(limit).items()})


def _limit_fields(limit: LimitRangeItem) -> dict[str, RawQuantities]:
    return {
        "max": limit.max,
        "min": limit.min,
        "default": limit.default,
        "default_request": limit.default_request,
        "max_limit_request_ratio": limit.max_limit_request_ratio,
    }


_JSON_NAMES = {"default_request": "defaultRequest", "max_limit_request_ratio": "maxLimitRequestRatio"}


def _validate_limit_range(limit_range: LimitRange) -> Iterator[FieldError]:
    seen: set[str] = set()
    for number, limit in enumerate(limit_range.spec.limits):
        path = f"spec.limits[{number}]"
        if limit.type not in LIMIT_TYPES and ("/" not in limit.type or names.label_key_error(limit.type)):
            yield FieldError(f"{path}.type", quoted(limit.type), "must be a standard limit type or fully qualified")
        if limit.type in seen:
            yield FieldError(f"{path}.type", quoted(limit.type), "must be unique", DUPLICATE)
        seen.add(limit.type)
        yield from _validate_limit(path, limit)


def _validate_limit(path: str, limit: LimitRangeItem) -> Iterator[FieldError]:
    bad = False
    for field, amounts in _limit_fields(limit).items():
        field_path = f"{path}.{_JSON_NAMES.get(field, field)}"
        for problem in (
            *_validate_resource_names(field_path, amounts, limit.type),
            *quantities_at_least_zero(field_path, amounts),
        ):
            bad = True
            yield problem
    if limit.type == POD_LIMIT:
        for name, amounts in (("default", limit.default), ("defaultRequest", limit.default_request)):
            if amounts:
                yield FieldError(f"{path}.{name}", "given", "may not be specified when `type` is 'Pod'", FORBIDDEN)
    if limit.type == CLAIM_LIMIT and not {"storage"} & {*limit.min, *limit.max}:
        reason = "either minimum or maximum storage value is required, but neither was provided"
        yield FieldError(f"{path}.limits", "{}", reason, MISSING)
    if not bad:
        yield from _validate_limit_order(path, _default_limit(limit))


def _validate_resource_names(path: str, amounts: RawQuantities, kind: str) -> Iterator[FieldError]:
    for name in amounts:
        field_path = f"{path}[{name}]"
        if names.label_key_error(name):
            yield FieldError(field_path, quoted(name), names.label_key_error(name))
        elif kind in (POD_LIMIT, CONTAINER_LIMIT) and "/" not in name and not _is_standard_resource(name):
            yield FieldError(field_path, quoted(name), "must be a standard resource for containers")


def _is_standard_resource(name: str) -> bool:
    return name in ("cpu", "memory", "ephemeral-storage") or name.startswith("hugepages-")


def _validate_limit_order(path: str, limit: LimitRangeItem) -> Iterator[FieldError]:
    fields = {field: parse_all(amounts) for field, amounts in _limit_fields(limit).items()}
    orders = (
        ("min", "min", "min value", "max", "max value"),
        ("default_request", "min", "min value", "default_request", "default request value"),
        ("default_request", "default_request", "default request value", "max", "max value"),
        ("default_request", "default_request", "default request value", "default", "default limit value"),
        ("default", "min", "min value", "default", "default value"),
        ("default", "default", "default value", "max", "max value"),
    )
    for name in sorted({name for amounts in fields.values() for name in amounts}):
        for at, low, low_words, high, high_words in orders:
            less, more = fields[low].get(name), fields[high].get(name)
            if less is not None and more is not None and less.milli > more.milli:
                text = quoted(str(fields[at].get(name, less)))
                reason = f"{low_words} {less} is greater than {high_words} {more}"
                yield FieldError(f"{path}.{_JSON_NAMES.get(at, at)}[{name}]", text, reason)
        yield from _validate_ratio(f"{path}.maxLimitRequestRatio[{name}]", name, fields)


def _validate_ratio(path: str, name: str, fields: Mapping[str, Quantities]) -> Iterator[FieldError]:
    ratio = fields["max_limit_request_ratio"].get(name)
    if ratio is None:
        return
    if ratio.milli < ONE.milli:
        yield FieldError(path, quoted(str(ratio)), f"ratio {ratio} is less than 1")
    least, most = fields["min"].get(name), fields["max"].get(name)
    if least is not None and most is not None and least.milli and ratio.milli * least.milli > most.milli * ONE.milli:
        yield FieldError(
            path, quoted(str(ratio)), f"ratio {ratio} is greater than max/min = {most.ratio_to(least):.6f}"
        )


LIMIT_RANGES = Resource(
    type=LimitRange,
    short_names=("limits",),
    columns=(
        NAME,
        Column(
            "Created At",
            "When it was made.",
            lambda limit_range, _: limit_range.metadata.creation_timestamp,
            type="date",
        ),
    ),
    rules=KindRules(_default_limit_range, _validate_limit_range),
    acted_on_by="the master, when a pod or a claim is created",
)
