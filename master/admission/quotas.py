"""What a project has used of its quotas, and whether something new fits in. Pure. Raises `answers.Failure`.

What is new is charged in the write that makes it, so what is used is never less than what there is; the controller
counts again when something goes. A quota that seems used up is counted on the spot before anybody is refused.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from api.core.placement import Affinity
from api.core.pod import FINAL_PHASES, Container, Pod
from api.core.resources import qos_class
from api.core.services import Service
from api.core.storage import PersistentVolumeClaim
from api.meta.quantity import Quantity
from api.meta.selectors import Requirement, Selector
from master.kinds import ALL, amounts
from master.kinds.amounts import Amounts
from master.kinds.kind import AnyKind, parse_time
from master.kinds.limit_range import ONE
from master.kinds.resource_quota import (
    AFFINITY,
    BEST_EFFORT,
    NOT_BEST_EFFORT,
    NOT_TERMINATING,
    OF_PODS,
    PRIORITY,
    TERMINATING,
    ResourceQuota,
    ResourceQuotaStatus,
    ScopedResourceSelectorRequirement,
    scopes,
)
from master.wire import answers
from master.writing.outcomes import Change

REQUIRED = frozenset(f"{part}{name}" for part in ("", "requests.", "limits.") for name in ("cpu", "memory"))
"""Resources that every container must name where there is a quota of them."""

OF_SERVICES = ("services", "services.nodeports", "services.loadbalancers")
OF_CLAIMS = ("persistentvolumeclaims", "requests.storage")
BY_CLASS = ".storageclass.storage.k8s.io/"
CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
PLAIN = ("configmaps", "secrets", "replicationcontrollers", "resourcequotas")
CHANGING = ("Service", "PersistentVolumeClaim")
"""Kinds whose objects may take more after an update than before."""

COUNTABLE = tuple(kind for kind in ALL if kind.namespaced and kind.conversion is None)

Objects = Callable[[str, str], Iterable[Any]]
"""The objects of a kind in a namespace."""


def counted_as(kind: AnyKind) -> str:
    """The resource that is the number of objects of a kind."""
    return f"count/{kind.plural}.{kind.group}" if kind.group else f"count/{kind.plural}"


def concerns(kind: AnyKind, resource: str) -> bool:
    """Whether objects of this kind take some of the resource."""
    if resource == counted_as(kind):
        return True
    if kind.name == Pod.KIND:
        by_name = resource.startswith(("hugepages-", "requests.hugepages-"))
        return resource in OF_PODS or by_name or (resource.startswith("requests.") and "/" in resource)
    if kind.name == Service.KIND:
        return resource in OF_SERVICES
    if kind.name == PersistentVolumeClaim.KIND:
        return resource in OF_CLAIMS or resource.endswith(tuple(BY_CLASS + name for name in OF_CLAIMS))
    return not kind.group and resource == kind.plural and resource in PLAIN


# --- what one object takes --------------------------------------------------------------------------------------------


def usage(kind: AnyKind, item: Any, now: datetime.datetime) -> dict[str, Quantity]:
    """What an object takes of each resource."""
    found = {counted_as(kind): ONE}
    if isinstance(item, Pod):
        return found | _of_pod(item) if _is_charged(item, now) else found
    if isinstance(item, Service):
        return found | _of_service(item)
    if isinstance(item, PersistentVolumeClaim):
        return found | _of_claim(item)
    return found | ({kind.plural: ONE} if not kind.group and kind.plural in PLAIN else {})


def _is_charged(pod: Pod, now: datetime.datetime) -> bool:
    """A pod that has ended, or that nobody ends although its time is over, keeps others from nothing."""
    end = parse_time(pod.metadata.deletion_timestamp)
    grace = datetime.timedelta(seconds=pod.metadata.deletion_grace_period_seconds or 0)
    return pod.status.phase not in FINAL_PHASES and (end is None or now <= end + grace)


def _of_pod(pod: Pod) -> dict[str, Quantity]:
    found = {"pods": ONE}
    for name, amount in amounts.of_pod(pod.spec, amounts.requests).items():
        found[f"requests.{name}"] = amount
        if "/" not in name:
            found[name] = amount
    for name, amount in amounts.of_pod(pod.spec, amounts.limits).items():
        found[f"limits.{name}"] = amount
    return found


def _of_service(service: Service) -> dict[str, Quantity]:
    kind = service.spec.type
    ports = len(service.spec.ports) if kind in ("NodePort", "LoadBalancer") else 0
    balancers = ONE if kind == "LoadBalancer" else Quantity()
    return {"services": ONE, "services.nodeports": Quantity(1000 * ports), "services.loadbalancers": balancers}


def _of_claim(claim: PersistentVolumeClaim) -> dict[str, Quantity]:
    size = amounts.read(claim.spec.resources.requests).get("storage", Quantity())
    found = {"persistentvolumeclaims": ONE, "requests.storage": Quantity(-(-size.milli // 1000) * 1000, size.binary)}
    of_class = claim.metadata.annotations.get(CLASS_ANNOTATION) or claim.spec.storage_class_name
    return found | ({f"{of_class}{BY_CLASS}{name}": amount for name, amount in found.items()} if of_class else {})


# --- scopes -----------------------------------------------------------------------------------------------------------


def in_scopes(quota: ResourceQuota, item: Any) -> bool:
    """Whether a quota is about an object: one with scopes only about the pods that are in all of them."""
    return all(isinstance(item, Pod) and _in_scope(row, item) for row in scopes(quota.spec))


def _in_scope(row: ScopedResourceSelectorRequirement, pod: Pod) -> bool:
    spec = pod.spec
    if row.scope_name in (TERMINATING, NOT_TERMINATING):
        return (spec.active_deadline_seconds is not None) == (row.scope_name == TERMINATING)
    if row.scope_name in (BEST_EFFORT, NOT_BEST_EFFORT):
        silent = qos_class((*spec.init_containers, *spec.containers)) == "BestEffort"
        return silent == (row.scope_name == BEST_EFFORT)
    if row.scope_name == AFFINITY:
        return _reaches_out(spec.affinity)
    labels = {PRIORITY: spec.priority_class_name} if spec.priority_class_name else {}
    operator = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}[row.operator]
    return Selector((Requirement(PRIORITY, operator, frozenset(row.values)),)).matches(labels)


def _reaches_out(affinity: Affinity | None) -> bool:
    """Whether a pod wants or shuns pods of other projects."""
    for wish in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity else ():
        if wish is not None:
            preferred = (row.pod_affinity_term for row in wish.preferred_during_scheduling_ignored_during_execution)
            for term in (*wish.required_during_scheduling_ignored_during_execution, *preferred):
                if term.namespaces or term.namespace_selector is not None:
                    return True
    return False


# --- what is new ------------------------------------------------------------------------------------------------------


def charged(
    kind: AnyKind, new: Any, old: Any, quotas: Iterable[ResourceQuota], objects: Objects, now: datetime.datetime
) -> list[ResourceQuota]:
    """The quotas with a new object on their account, or with what an update takes more. `old` is None for a new one."""
    if old is not None and kind.name not in CHANGING:
        return []
    concerned = [quota for quota in sorted(quotas, key=lambda one: one.metadata.name) if _is_about(quota, kind, new)]
    if isinstance(new, Pod):
        for quota in concerned:
            _check_required(kind, new, quota)
    asked = usage(kind, new, now) if concerned else {}
    before = usage(kind, old, now) if old is not None and concerned else {}
    for name, amount in before.items():
        more = asked.get(name, Quantity()).milli - amount.milli
        asked[name] = Quantity(max(0, more), amount.binary)
    found = (_charged(kind, new, asked, quota, objects, now) for quota in concerned)
    return [quota for quota in found if quota is not None]


def _is_about(quota: ResourceQuota, kind: AnyKind, item: Any) -> bool:
    return any(concerns(kind, name) for name in quota.spec.hard) and in_scopes(quota, item)


def _check_required(kind: AnyKind, pod: Pod, quota: ResourceQuota) -> None:
    missing: dict[str, set[str]] = {}
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        for name in REQUIRED & set(quota.spec.hard) - _named(container):
            missing.setdefault(name, set()).add(container.name)
    if missing:
        listed = "; ".join(f"{name} for: {','.join(sorted(missing[name]))}" for name in sorted(missing))
        raise answers.forbidden(kind, pod.metadata.name, f"failed quota: {quota.metadata.name}: must specify {listed}")


def _named(container: Container) -> set[str]:
    requests, limits = amounts.requests(container), amounts.limits(container)
    return {*requests, *(f"requests.{name}" for name in requests), *(f"limits.{name}" for name in limits)}


def _charged(
    kind: AnyKind, item: Any, asked: Amounts, quota: ResourceQuota, objects: Objects, now: datetime.datetime
) -> ResourceQuota | None:
    hard = amounts.read(quota.spec.hard)
    asked = {name: amount for name, amount in asked.items() if amount.milli and name in hard}
    if not asked:
        return None
    used: Amounts = amounts.read(quota.status.used)
    if quota.status.hard != quota.spec.hard or _over(used, asked, hard):
        used = counted(quota, objects, now)
    if over := _over(used, asked, hard):
        name = quota.metadata.name
        rows = (("requested", asked), ("used", used), ("limited", hard))
        why = f"exceeded quota: {name}, " + ", ".join(f"{words}: {_shown(found, over)}" for words, found in rows)
        raise answers.forbidden(kind, item.metadata.name, why)
    return _with(quota, amounts.plus(used, asked))


def _over(used: Amounts, asked: Amounts, hard: Amounts) -> list[str]:
    return sorted(
        name for name, more in asked.items() if used.get(name, Quantity()).milli + more.milli > hard[name].milli
    )


def _shown(found: Amounts, names: Iterable[str]) -> str:
    return ",".join(f"{name}={found.get(name, Quantity())}" for name in names)


# --- what there is ----------------------------------------------------------------------------------------------------


def passes(quotas: Iterable[ResourceQuota], objects: Objects, now: datetime.datetime) -> Iterator[Change]:
    """The quotas that have used something else than they say."""
    for quota in quotas:
        found = _with(quota, counted(quota, objects, now))
        if found.status != quota.status:
            yield Change(found, quota)


def counted(quota: ResourceQuota, objects: Objects, now: datetime.datetime) -> dict[str, Quantity]:
    """What all objects of the quota's project take of it together."""
    total = dict.fromkeys(quota.spec.hard, Quantity())
    for kind in COUNTABLE:
        names = [name for name in total if concerns(kind, name)]
        for item in objects(kind.name, quota.metadata.namespace) if names else ():
            if in_scopes(quota, item):
                found = usage(kind, item, now)
                total |= {name: total[name].plus(found.get(name, Quantity())) for name in names}
    return total


def _with(quota: ResourceQuota, used: Amounts) -> ResourceQuota:
    known = {name: used.get(name, Quantity()) for name in quota.spec.hard}
    return replace(quota, status=ResourceQuotaStatus(hard=quota.spec.hard, used=amounts.written(known)))
