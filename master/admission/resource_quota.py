"""ResourceQuota: usage of an object, quotas charged with it, and their scopes. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from api.core.placement import Affinity
from api.core.pod import FINAL_PHASES, Container, Pod
from api.core.resource_requests import qos_class
from api.core.services import Service
from api.core.storage import PersistentVolumeClaim
from api.meta.quantity import Amount
from api.meta.selectors import Requirement, Selector
from master import errors
from master.admission.plugin import AdmissionPlugin, AdmissionRequest
from master.resources import BUILTIN, quantities
from master.resources.group_resource import GroupResource
from master.resources.metadata import parse_time
from master.resources.pods import PODS, RESIZE
from master.resources.quantities import Quantities
from master.resources.quotas import (
    AFFINITY_SCOPE,
    ATTRIBUTES_CLASS_SCOPE,
    BEST_EFFORT_SCOPE,
    CLAIM_RESOURCES,
    NOT_BEST_EFFORT_SCOPE,
    NOT_TERMINATING_SCOPE,
    ONE,
    POD_RESOURCES,
    PRIORITY_CLASS_SCOPE,
    TERMINATING_SCOPE,
    ResourceQuota,
    ResourceQuotaStatus,
    ScopedResourceSelectorRequirement,
    scope_requirements,
)
from master.resources.resource import AnyResource
from master.resources.scheme import group_resource
from master.resources.volumes import claim_class
from master.storage.interface import Transaction

REQUIRED = frozenset(f"{part}{name}" for part in ("", "requests.", "limits.") for name in ("cpu", "memory"))
"""Resources that every container must request or limit if a quota limits them."""

SERVICE_RESOURCES = ("services", "services.nodeports", "services.loadbalancers")
STORAGE_CLASS_SUFFIX = ".storageclass.storage.k8s.io/"
COUNTED_PLURALS = ("configmaps", "secrets", "replicationcontrollers", "resourcequotas")
CHARGED_ON_UPDATE = (Service, PersistentVolumeClaim, Pod)
"""Kinds whose objects may use more after an update. That of a pod is its resize."""

COUNTED_KINDS = tuple(resource for resource in BUILTIN if resource.namespaced and resource.stored_as is None)

ListObjects = Callable[[GroupResource, str], Iterable[Any]]
"""Return the objects of a resource in a namespace."""


def count_resource(resource: AnyResource) -> str:
    """Return the quota resource that counts the objects of a resource."""
    return f"count/{resource.plural}.{resource.group}" if resource.group else f"count/{resource.plural}"


def is_counted_by(resource: AnyResource, name: str) -> bool:
    """Return whether a quota of this name limits objects of a resource."""
    if name == count_resource(resource):
        return True
    if resource.is_stored_as(Pod):
        by_name = name.startswith(("hugepages-", "requests.hugepages-"))
        return name in POD_RESOURCES or by_name or (name.startswith("requests.") and "/" in name)
    if resource.is_stored_as(Service):
        return name in SERVICE_RESOURCES
    if resource.is_stored_as(PersistentVolumeClaim):
        return name in CLAIM_RESOURCES or name.endswith(
            tuple(STORAGE_CLASS_SUFFIX + claim_resource for claim_resource in CLAIM_RESOURCES)
        )
    return not resource.group and name == resource.plural and name in COUNTED_PLURALS


# --- usage of an object -----------------------------------------------------------------------------------------------


def usage(resource: AnyResource, obj: Any, now: datetime.datetime) -> dict[str, Amount]:
    """Return the amounts of quota resources that an object uses."""
    amounts = {count_resource(resource): ONE}
    if isinstance(obj, Pod):
        return amounts | _pod_usage(obj) if _is_charged(obj, now) else amounts
    if isinstance(obj, Service):
        return amounts | _service_usage(obj)
    if isinstance(obj, PersistentVolumeClaim):
        return amounts | _claim_usage(obj)
    return amounts | ({resource.plural: ONE} if not resource.group and resource.plural in COUNTED_PLURALS else {})


def _is_charged(pod: Pod, now: datetime.datetime) -> bool:
    """Return whether a pod counts: it is neither terminated nor stuck in deletion.

    deletionTimestamp includes the grace period. A pod counts for one more grace period, as in Kubernetes.
    """
    end = parse_time(pod.metadata.deletion_timestamp)
    grace = datetime.timedelta(seconds=pod.metadata.deletion_grace_period_seconds or 0)
    return pod.status.phase not in FINAL_PHASES and (end is None or now <= end + grace)


def _pod_usage(pod: Pod) -> dict[str, Amount]:
    amounts = {"pods": ONE}
    overhead = quantities.parse_all(pod.spec.overhead)
    for name, amount in quantities.plus(quantities.pod_total(pod.spec, quantities.requests), overhead).items():
        amounts[f"requests.{name}"] = amount
        if "/" not in name:
            amounts[name] = amount
    for name, amount in quantities.pod_total(pod.spec, quantities.limits).items():
        # The overhead alone limits nothing.
        amounts[f"limits.{name}"] = amount.add(overhead.get(name, Amount())) if amount.milli else amount
    return amounts


def _service_usage(service: Service) -> dict[str, Amount]:
    kind = service.spec.type
    ports = len(service.spec.ports) if kind in ("NodePort", "LoadBalancer") else 0
    balancers = ONE if kind == "LoadBalancer" else Amount()
    return {"services": ONE, "services.nodeports": Amount(1000 * ports), "services.loadbalancers": balancers}


def _claim_usage(claim: PersistentVolumeClaim) -> dict[str, Amount]:
    size = quantities.parse_all(claim.spec.resources.requests).get("storage", Amount())
    amounts = {"persistentvolumeclaims": ONE, "requests.storage": Amount(-(-size.milli // 1000) * 1000, size.binary)}
    of_class = claim_class(claim)
    return amounts | (
        {f"{of_class}{STORAGE_CLASS_SUFFIX}{name}": amount for name, amount in amounts.items()} if of_class else {}
    )


# --- scopes -----------------------------------------------------------------------------------------------------------


def matches_scopes(quota: ResourceQuota, obj: Any) -> bool:
    """Return whether the scopes of a quota select an object. A quota with scopes counts pods or claims only."""
    return all(_is_in_scope(requirement, obj) for requirement in scope_requirements(quota.spec))


def _is_in_scope(requirement: ScopedResourceSelectorRequirement, obj: Any) -> bool:
    if requirement.scope_name == ATTRIBUTES_CLASS_SCOPE:
        if not isinstance(obj, PersistentVolumeClaim):
            return False
        of_class = obj.spec.volume_attributes_class_name
        return _selector(requirement).matches({ATTRIBUTES_CLASS_SCOPE: of_class} if of_class else {})
    return isinstance(obj, Pod) and _matches_scope(requirement, obj)


def _matches_scope(requirement: ScopedResourceSelectorRequirement, pod: Pod) -> bool:
    spec = pod.spec
    if requirement.scope_name in (TERMINATING_SCOPE, NOT_TERMINATING_SCOPE):
        return (spec.active_deadline_seconds is not None) == (requirement.scope_name == TERMINATING_SCOPE)
    if requirement.scope_name in (BEST_EFFORT_SCOPE, NOT_BEST_EFFORT_SCOPE):
        is_best_effort = qos_class((*spec.init_containers, *spec.containers)) == "BestEffort"
        return is_best_effort == (requirement.scope_name == BEST_EFFORT_SCOPE)
    if requirement.scope_name == AFFINITY_SCOPE:
        return _has_cross_namespace_affinity(spec.affinity)
    labels = {PRIORITY_CLASS_SCOPE: spec.priority_class_name} if spec.priority_class_name else {}
    return _selector(requirement).matches(labels)


def _selector(requirement: ScopedResourceSelectorRequirement) -> Selector:
    operator = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}[requirement.operator]
    return Selector((Requirement(requirement.scope_name, operator, frozenset(requirement.values)),))


def _has_cross_namespace_affinity(affinity: Affinity | None) -> bool:
    """Return whether a pod affinity or anti-affinity refers to pods of other namespaces."""
    for pod_affinity in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity else ():
        if pod_affinity is not None:
            preferred = (
                preference.pod_affinity_term
                for preference in pod_affinity.preferred_during_scheduling_ignored_during_execution
            )
            for term in (*pod_affinity.required_during_scheduling_ignored_during_execution, *preferred):
                if term.namespaces or term.namespace_selector is not None:
                    return True
    return False


class ResourceQuotaPlugin(AdmissionPlugin):
    """Charges the quotas of the namespace with new objects, and with the increase of an update.

    A deletion gives nothing back. The controller of resource quotas (`master/controllers/resource_quotas.py`) counts
    again after deletions.
    """

    def reserve(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        resource = request.resource
        is_other_pod_update = resource is PODS and request.old is not None and request.subresource != RESIZE
        if resource.namespaced and not is_other_pod_update:
            stored = resource.to_stored(obj)
            before = None if request.old is None else resource.to_stored(request.old)
            quotas = objects.list(group_resource(ResourceQuota), obj.metadata.namespace)
            for quota in charge(resource.stored_resource, stored, before, quotas, objects.list, request.now):
                objects.put(group_resource(ResourceQuota), quota)
        return obj


# --- charging ---------------------------------------------------------------------------------------------------------


def charge(
    resource: AnyResource,
    new: Any,
    old: Any,
    quotas: Iterable[ResourceQuota],
    list_objects: ListObjects,
    now: datetime.datetime,
) -> list[ResourceQuota]:
    """Return the quotas that change, with the usage of the object or its increase. `old` is None for a create.

    Raises Forbidden if a quota is exceeded.
    """
    if old is not None and resource.type not in CHARGED_ON_UPDATE:
        return []
    applicable = [
        quota for quota in sorted(quotas, key=lambda quota: quota.metadata.name) if _applies_to(quota, resource, new)
    ]
    if isinstance(new, Pod):
        for quota in applicable:
            _check_required(resource, new, quota)
    requested = usage(resource, new, now) if applicable else {}
    before = usage(resource, old, now) if old is not None and applicable else {}
    for name, amount in before.items():
        increase = requested.get(name, Amount()).milli - amount.milli
        requested[name] = Amount(max(0, increase), amount.binary)
    charged = (_charge_quota(resource, new, requested, quota, list_objects, now) for quota in applicable)
    return [quota for quota in charged if quota is not None]


def _applies_to(quota: ResourceQuota, resource: AnyResource, obj: Any) -> bool:
    return any(is_counted_by(resource, name) for name in quota.spec.hard) and matches_scopes(quota, obj)


def _check_required(resource: AnyResource, pod: Pod, quota: ResourceQuota) -> None:
    missing: dict[str, set[str]] = {}
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        for name in REQUIRED & set(quota.spec.hard) - _named_resources(container):
            missing.setdefault(name, set()).add(container.name)
    if missing:
        listed = "; ".join(f"{name} for: {','.join(sorted(missing[name]))}" for name in sorted(missing))
        raise errors.forbidden(
            resource, pod.metadata.name, f"failed quota: {quota.metadata.name}: must specify {listed}"
        )


def _named_resources(container: Container) -> set[str]:
    requests, limits = quantities.requests(container), quantities.limits(container)
    return {*requests, *(f"requests.{name}" for name in requests), *(f"limits.{name}" for name in limits)}


def _charge_quota(
    resource: AnyResource,
    obj: Any,
    requested: Quantities,
    quota: ResourceQuota,
    list_objects: ListObjects,
    now: datetime.datetime,
) -> ResourceQuota | None:
    hard = quantities.parse_all(quota.spec.hard)
    requested = {name: amount for name, amount in requested.items() if amount.milli and name in hard}
    if not requested:
        return None
    used: Quantities = quantities.parse_all(quota.status.used)
    if quota.status.hard != quota.spec.hard or _exceeded(used, requested, hard):
        used = recount(quota, list_objects, now)
    if exceeded := _exceeded(used, requested, hard):
        name = quota.metadata.name
        sections = (("requested", requested), ("used", used), ("limited", hard))
        reason = f"exceeded quota: {name}, " + ", ".join(
            f"{label}: {_format_amounts(amounts, exceeded)}" for label, amounts in sections
        )
        raise errors.forbidden(resource, obj.metadata.name, reason)
    return with_used(quota, quantities.plus(used, requested))


def _exceeded(used: Quantities, requested: Quantities, hard: Quantities) -> list[str]:
    return sorted(
        name for name, amount in requested.items() if used.get(name, Amount()).milli + amount.milli > hard[name].milli
    )


def _format_amounts(amounts: Quantities, names: Iterable[str]) -> str:
    return ",".join(f"{name}={amounts.get(name, Amount())}" for name in names)


def recount(quota: ResourceQuota, list_objects: ListObjects, now: datetime.datetime) -> dict[str, Amount]:
    """Return the usage of a quota by all objects of its namespace."""
    total = dict.fromkeys(quota.spec.hard, Amount())
    for resource in COUNTED_KINDS:
        names = [name for name in total if is_counted_by(resource, name)]
        for obj in list_objects(resource.group_resource, quota.metadata.namespace) if names else ():
            if matches_scopes(quota, obj):
                amounts = usage(resource, obj, now)
                total |= {name: total[name].add(amounts.get(name, Amount())) for name in names}
    for name in total:
        if (custom := _custom_resource(name)) is not None and not quota.spec.scopes:
            count = sum(1 for _ in list_objects(custom, quota.metadata.namespace))
            total[name] = Amount(1000 * count)
    return total


def _custom_resource(name: str) -> GroupResource | None:
    """Return the resource whose objects a quota of this name counts, if it is not built in."""
    plural, _, group = name.removeprefix("count/").partition(".")
    resource = GroupResource(group, plural)
    is_count = name.startswith("count/") and bool(group)
    return resource if is_count and resource not in _COUNTED_RESOURCES else None


_COUNTED_RESOURCES = frozenset(resource.group_resource for resource in COUNTED_KINDS)


def with_used(quota: ResourceQuota, used: Quantities) -> ResourceQuota:
    """Return the quota with these amounts as its usage."""
    known = {name: used.get(name, Amount()) for name in quota.spec.hard}
    return replace(quota, status=ResourceQuotaStatus(hard=quota.spec.hard, used=quantities.format_all(known)))
