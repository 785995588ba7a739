"""Usage of ResourceQuotas, recounted. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from master.admission.resource_quota import ListObjects, recount, with_used
from master.controllers.actions import Action, Failed, Update, isolate_errors
from master.controllers.context import Lister
from master.resources.quotas import ResourceQuota


def reconcile(
    quotas: Iterable[ResourceQuota], list_objects: ListObjects, now: datetime.datetime
) -> Iterator[Update | Failed]:
    """Yield the quotas whose recorded usage differs from the actual usage."""

    def recount_quota(quota: ResourceQuota) -> Iterator[Update]:
        recounted = with_used(quota, recount(quota, list_objects, now))
        if recounted.status != quota.status:
            yield Update(recounted, quota)

    return isolate_errors(quotas, recount_quota)


def sync_quotas(lister: Lister) -> Iterable[Action]:
    """Recount the usage of all quotas."""
    quotas = lister.list(ResourceQuota)
    return reconcile(quotas, lister.list_resource, lister.now) if quotas else ()
