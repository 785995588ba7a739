"""Usage of ResourceQuotas, recounted. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from master.admission.resource_quota import ListObjects, recount, with_used
from master.controllers.actions import Action, Update
from master.controllers.context import Lister
from master.resources.quotas import ResourceQuota

# --- what there is ----------------------------------------------------------------------------------------------------


def reconcile(quotas: Iterable[ResourceQuota], objects: ListObjects, now: datetime.datetime) -> Iterator[Update]:
    """The quotas that have used something else than they say."""
    for quota in quotas:
        found = with_used(quota, recount(quota, objects, now))
        if found.status != quota.status:
            yield Update(found, quota)


def sync_quotas(lister: Lister) -> Iterable[Action]:
    """Recount the usage of all quotas."""
    found = lister.list("ResourceQuota")
    return reconcile(found, lister.list, lister.now) if found else ()
