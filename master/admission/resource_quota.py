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
from master.resources.quantities import Quantities
from master.resources.quotas import (
    AFFINITY_SCOPE,
    BEST_EFFORT_SCOPE,
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
from master.storage.interface import Transaction

REQUIRED = frozenset(f"{part}{name}" for part in ("", "requests.", "limits.") for name in ("cpu", "memory"))
"""Resources that every container must name where there is a quota of them."""

SERVICE_RESOURCES = ("services", "services.nodeports", "services.loadbalancers")
CLAIM_RESOURCES = ("persistentvolumeclaims", "requests.storage")
STORAGE_CLASS_SUFFIX = ".storageclass.storage.k8s.io/"
CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
COUNTED_PLURALS = ("configmaps", "secrets", "replicationcontrollers", "resourcequotas")
CHARGED_ON_UPDATE = ("Service", "PersistentVolumeClaim")
"""Kinds whose objects may take more after an update than before."""

COUNTED_KINDS = tuple(resource for resource in BUILTIN if resource.namespaced and resource.stored_as is None)

ListObjects = Callable[[GroupResource, str], Iterable[Any]]
"""Return the objects of a resource in a namespace."""


def count_resource(resource: AnyResource) -> str:
    """The resource that is the number of objects of a kind."""
    return f"count/{resource.plural}.{resource.group}" if resource.group else f"count/{resource.plural}"


def is_counted_by(resource: AnyResource, name: str) -> bool:
    """Return whether a quota of this name limits objects of a resource."""
    if name == count_resource(resource):
        return True
    if resource.kind == Pod.KIND:
        by_name = name.startswith(("hugepages-", "requests.hugepages-"))
        return name in POD_RESOURCES or by_name or (name.startswith("requests.") and "/" in name)
    if resource.kind == Service.KIND:
        return name in SERVICE_RESOURCES
    if resource.kind == PersistentVolumeClaim.KIND:
        return name in CLAIM_RESOURCES or name.endswith(
            tuple(STORAGE_CLASS_SUFFIX + claim_resource for claim_resource in CLAIM_RESOURCES)
        )
    return not resource.group and name == resource.plural and name in COUNTED_PLURALS


# --- what one object takes --------------------------------------------------------------------------------------------


def usage(resource: AnyResource, item: Any, now: datetime.datetime) -> dict[str, Amount]:
    """What an object takes of each resource."""
    found = {count_resource(resource): ONE}
    if isinstance(item, Pod):
        return found | _pod_usage(item) if _is_charged(item, now) else found
    if isinstance(item, Service):
        return found | _service_usage(item)
    if isinstance(item, PersistentVolumeClaim):
        return found | _claim_usage(item)
    return found | ({resource.plural: ONE} if not resource.group and resource.plural in COUNTED_PLURALS else {})


def _is_charged(pod: Pod, now: datetime.datetime) -> bool:
    """A pod that has ended, or that nobody ends although its time is over, keeps others from nothing."""
    end = parse_time(pod.metadata.deletion_timestamp)
    grace = datetime.timedelta(seconds=pod.metadata.deletion_grace_period_seconds or 0)
    return pod.status.phase not in FINAL_PHASES and (end is None or now <= end + grace)


def _pod_usage(pod: Pod) -> dict[str, Amount]:
    found = {"pods": ONE}
    for name, amount in quantities.pod_total(pod.spec, quantities.requests).items():
        found[f"requests.{name}"] = amount
        if "/" not in name:
            found[name] = amount
    for name, amount in quantities.pod_total(pod.spec, quantities.limits).items():
        found[f"limits.{name}"] = amount
    return found


def _service_usage(service: Service) -> dict[str, Amount]:
    kind = service.spec.type
    ports = len(service.spec.ports) if kind in ("NodePort", "LoadBalancer") else 0
    balancers = ONE if kind == "LoadBalancer" else Amount()
    return {"services": ONE, "services.nodeports": Amount(1000 * ports), "services.loadbalancers": balancers}


def _claim_usage(claim: PersistentVolumeClaim) -> dict[str, Amount]:
    size = quantities.parse_all(claim.spec.resources.requests).get("storage", Amount())
    found = {"persistentvolumeclaims": ONE, "requests.storage": Amount(-(-size.milli // 1000) * 1000, size.binary)}
    of_class = claim.metadata.annotations.get(CLASS_ANNOTATION) or claim.spec.storage_class_name
    return found | (
        {f"{of_class}{STORAGE_CLASS_SUFFIX}{name}": amount for name, amount in found.items()} if of_class else {}
    )


# --- scopes -----------------------------------------------------------------------------------------------------------


def matches_scopes(quota: ResourceQuota, item: Any) -> bool:
    """Whether a quota is about an object: one with scopes only about the pods that are in all of them."""
    return all(isinstance(item, Pod) and _matches_scope(row, item) for row in scope_requirements(quota.spec))


def _matches_scope(row: ScopedResourceSelectorRequirement, pod: Pod) -> bool:
    spec = pod.spec
    if row.scope_name in (TERMINATING_SCOPE, NOT_TERMINATING_SCOPE):
        return (spec.active_deadline_seconds is not None) == (row.scope_name == TERMINATING_SCOPE)
    if row.scope_name in (BEST_EFFORT_SCOPE, NOT_BEST_EFFORT_SCOPE):
        silent = qos_class((*spec.init_containers, *spec.containers)) == "BestEffort"
        return silent == (row.scope_name == BEST_EFFORT_SCOPE)
    if row.scope_name == AFFINITY_SCOPE:
        return _has_cross_namespace_affinity(spec.affinity)
    labels = {PRIORITY_CLASS_SCOPE: spec.priority_class_name} if spec.priority_class_name else {}
    operator = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}[row.operator]
    return Selector((Requirement(PRIORITY_CLASS_SCOPE, operator, frozenset(row.values)),)).matches(labels)


def _has_cross_namespace_affinity(affinity: Affinity | None) -> bool:
    """Whether a pod wants or shuns pods of other projects."""
    for wish in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity else ():
        if wish is not None:
            preferred = (row.pod_affinity_term for row in wish.preferred_during_scheduling_ignored_during_execution)
            for term in (*wish.required_during_scheduling_ignored_during_execution, *preferred):
                if term.namespaces or term.namespace_selector is not None:
                    return True
    return False


class ResourceQuotaPlugin(AdmissionPlugin):
    """Charges the quotas of the namespace with new objects, and with what an update takes more."""

    def reserve(self, request: AdmissionRequest, item: Any, objects: Transaction) -> Any:
        resource = request.resource
        if resource.namespaced:
            stored = resource.to_stored(item)
            before = None if request.old is None else resource.to_stored(request.old)
            quotas = objects.list(group_resource(ResourceQuota), item.metadata.namespace)
            for quota in charge(resource, stored, before, quotas, objects.list, request.now):
                objects.put(group_resource(ResourceQuota), quota)
        return item


# --- what is new ------------------------------------------------------------------------------------------------------


def charge(
    resource: AnyResource,
    new: Any,
    old: Any,
    quotas: Iterable[ResourceQuota],
    objects: ListObjects,
    now: datetime.datetime,
) -> list[ResourceQuota]:
    """The quotas with a new object on their account, or with what an update takes more. `old` is None for a new one."""
    if old is not None and resource.kind not in CHARGED_ON_UPDATE:
        return []
    concerned = [
        quota for quota in sorted(quotas, key=lambda one: one.metadata.name) if _applies_to(quota, resource, new)
    ]
    if isinstance(new, Pod):
        for quota in concerned:
            _check_required(resource, new, quota)
    asked = usage(resource, new, now) if concerned else {}
    before = usage(resource, old, now) if old is not None and concerned else {}
    for name, amount in before.items():
        more = asked.get(name, Amount()).milli - amount.milli
        asked[name] = Amount(max(0, more), amount.binary)
    found = (_charge_quota(resource, new, asked, quota, objects, now) for quota in concerned)
    return [quota for quota in found if quota is not None]


def _applies_to(quota: ResourceQuota, resource: AnyResource, item: Any) -> bool:
    return any(is_counted_by(resource, name) for name in quota.spec.hard) and matches_scopes(quota, item)


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
    item: Any,
    asked: Quantities,
    quota: ResourceQuota,
    objects: ListObjects,
    now: datetime.datetime,
) -> ResourceQuota | None:
    hard = quantities.parse_all(quota.spec.hard)
    asked = {name: amount for name, amount in asked.items() if amount.milli and name in hard}
    if not asked:
        return None
    used: Quantities = quantities.parse_all(quota.status.used)
    if quota.status.hard != quota.spec.hard or _exceeded(used, asked, hard):
        used = recount(quota, objects, now)
    if over := _exceeded(used, asked, hard):
        name = quota.metadata.name
        rows = (("requested", asked), ("used", used), ("limited", hard))
        why = f"exceeded quota: {name}, " + ", ".join(
            f"{words}: {_format_amounts(found, over)}" for words, found in rows
        )
        raise errors.forbidden(resource, item.metadata.name, why)
    return with_used(quota, quantities.plus(used, asked))


def _exceeded(used: Quantities, asked: Quantities, hard: Quantities) -> list[str]:
    return sorted(
        name for name, more in asked.items() if used.get(name, Amount()).milli + more.milli > hard[name].milli
    )


def _format_amounts(found: Quantities, names: Iterable[str]) -> str:
    return ",".join(f"{name}={found.get(name, Amount())}" for name in names)


def recount(quota: ResourceQuota, objects: ListObjects, now: datetime.datetime) -> dict[str, Amount]:
    """What all objects of the quota's project take of it together."""
    total = dict.fromkeys(quota.spec.hard, Amount())
    for resource in COUNTED_KINDS:
        names = [name for name in total if is_counted_by(resource, name)]
        for item in objects(resource.group_resource, quota.metadata.namespace) if names else ():
            if matches_scopes(quota, item):
                found = usage(resource, item, now)
                total |= {name: total[name].add(found.get(name, Amount())) for name in names}
    return total


def with_used(quota: ResourceQuota, used: Quantities) -> ResourceQuota:
    """Return the quota with these amounts as its usage."""
    known = {name: used.get(name, Amount()) for name in quota.spec.hard}
    return replace(quota, status=ResourceQuotaStatus(hard=quota.spec.hard, used=quantities.format_all(known)))
