"""APIServices: one for each version that this server has, and the condition Available of all of them. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec.structs import replace

from api.meta.types import Condition, ObjectMeta
from master.controllers.actions import Action, Create, Delete, Failed, Update, WriteAction, isolate_errors
from master.controllers.context import Lister
from master.registry.aggregated_apis import Availability, backend_of
from master.resources.api_services import (
    AVAILABLE,
    TAKEN_OVER_GROUPS,
    APIService,
    APIServiceSpec,
    APIServiceStatus,
    local_group_versions,
)
from master.resources.metadata import format_time

CONTROLLER_NAME = "apiservice-controller"

MANAGED_LABEL = "kube-aggregator.kubernetes.io/automanaged"
BUILTIN, CUSTOM = "onstart", "true"
"""Values of the label: of versions that the server always has, and of those of custom resources."""

CUSTOM_PRIORITIES = 1000, 100
PRIORITIES: Mapping[str, int] = {
    "": 18000,
    "apps": 17800,
    "events.k8s.io": 17750,
    "authentication.k8s.io": 17700,
    "authorization.k8s.io": 17600,
    "autoscaling": 17500,
    "batch": 17400,
    "certificates.k8s.io": 17300,
    "networking.k8s.io": 17200,
    "policy": 17100,
    "rbac.authorization.k8s.io": 17000,
    "storage.k8s.io": 16800,
    "apiextensions.k8s.io": 16700,
    "admissionregistration.k8s.io": 16700,
    "scheduling.k8s.io": 16600,
    "coordination.k8s.io": 16500,
    "node.k8s.io": 16300,
    "discovery.k8s.io": 16200,
    "flowcontrol.apiserver.k8s.io": 16100,
    "resource.k8s.io": 15900,
}
"""Priorities of the groups of Kubernetes. They are shown only: the master has an order of its own."""

OTHER_PRIORITY, VERSION_PRIORITY, OLD_VERSION_PRIORITY = 9900, 15, 9

Checked = Callable[[str], Availability | None]
"""Returns what the last check of an APIService has found."""


def local_apis(custom: Iterable[tuple[str, str]]) -> dict[str, tuple[str, APIServiceSpec]]:
    """Return the label and the spec of each version that this server has, by the name of its APIService.

    `custom` are group and version of custom resources. Groups that another server may take over have none: whoever
    installs that server owns the object.
    """
    found = {
        f"{version}.{group}": (CUSTOM, _spec(group, version, *CUSTOM_PRIORITIES)) for group, version in sorted(custom)
    }
    for group, version in sorted(local_group_versions()):
        if group not in TAKEN_OVER_GROUPS:
            priority = OLD_VERSION_PRIORITY if "beta" in version or not group else VERSION_PRIORITY
            spec = _spec(group, version, PRIORITIES.get(group, OTHER_PRIORITY), priority)
            found[f"{version}.{group}"] = (BUILTIN, spec)
    return found


def _spec(group: str, version: str, group_priority: int, version_priority: int) -> APIServiceSpec:
    return APIServiceSpec(
        group=group, version=version, group_priority_minimum=group_priority, version_priority=version_priority
    )


def reconcile(
    apis: Iterable[APIService],
    local: Mapping[str, tuple[str, APIServiceSpec]],
    checked: Checked,
    now: datetime.datetime,
) -> Iterator[WriteAction | Failed]:
    """Yield the writes of APIServices: missing ones of this server, those of versions that are gone, and conditions.

    An APIService without the label is its author's: only its condition is written.
    """
    apis = tuple(apis)
    known = {api.metadata.name for api in apis}
    for name, (label, spec) in local.items():
        if name not in known:
            yield Create(APIService(metadata=ObjectMeta(name=name, labels={MANAGED_LABEL: label}), spec=spec))

    def sync(api: APIService) -> Iterator[WriteAction]:
        if api.metadata.deletion_timestamp is not None:
            return
        desired = local.get(api.metadata.name)
        spec = api.spec
        if MANAGED_LABEL in api.metadata.labels and api.spec.service is None:
            if desired is None:
                yield Delete(api)
                return
            spec = desired[1]
        status = _with_condition(api, _condition(api, checked), now)
        new = replace(api, spec=spec, status=status)
        if new != api:
            yield Update(new, api)

    yield from isolate_errors(apis, sync)


def _condition(api: APIService, checked: Checked) -> tuple[str, str, str] | None:
    """Return status, reason and message; None if nothing is known yet."""
    backend = backend_of(api)
    if backend is None:
        return "True", "Local", "Local APIServices are always available"
    found = checked(api.metadata.name)
    # A check of a former state says nothing about this one.
    return None if found is None or found.backend != backend else (found.status, found.reason, found.message)


def _with_condition(api: APIService, found: tuple[str, str, str] | None, now: datetime.datetime) -> APIServiceStatus:
    old = api.available
    if found is None or (old is not None and (old.status, old.reason, old.message) == found):
        return api.status
    status, reason, message = found
    since = old.last_transition_time if old is not None and old.status == status else format_time(now)
    condition = Condition(type=AVAILABLE, status=status, reason=reason, message=message, last_transition_time=since)
    others = tuple(each for each in api.status.conditions if each.type != AVAILABLE)
    return replace(api.status, conditions=(*others, condition))


def sync_api_services(lister: Lister) -> Iterable[Action]:
    """Register what this server has, and write what the checks have found."""
    custom = {(resource.group, resource.version) for kind in lister.custom_kinds for resource in kind.versions}
    aggregated = lister.context.aggregated_apis
    checked: Checked = (lambda _: None) if aggregated is None else aggregated.availability
    return reconcile(lister.list(APIService), local_apis(custom), checked, lister.now)
