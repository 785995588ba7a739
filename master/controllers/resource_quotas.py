"""Usage of ResourceQuotas, recounted. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from master.admission.resource_quota import ListObjects, recount, with_used
from master.controllers.actions import Action, Update
from master.controllers.context import Lister
from master.resources.quotas import ResourceQuota


def reconcile(quotas: Iterable[ResourceQuota], list_objects: ListObjects, now: datetime.datetime) -> Iterator[Update]:
    """Yield the quotas whose recorded usage differs from the actual usage."""
    for quota in quotas:
        recounted = with_used(quota, recount(quota, list_objects, now))
        if recounted.status != quota.status:
            yield Update(recounted, quota)


def sync_quotas(lister: Lister) -> Iterable[Action]:
    """Recount the usage of all quotas."""
    quotas = lister.list(ResourceQuota)
    return reconcile(quotas, lister.list_resource, lister.now) if quotas else ()
