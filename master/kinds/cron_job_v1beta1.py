"""CronJob of batch/v1beta1, as the components of Kubernetes before 1.21 ask for it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from api.meta.schema import FieldError
from api.meta.types import Object
from api.validation.registry import KindRules
from master.kinds import cron_job
from master.kinds.cron_job import CRON_JOB, CronJobSpec, CronJobStatus
from master.kinds.kind import Conversion, Kind


class CronJob(Object, frozen=True):
    """Makes jobs at the times of its schedule."""

    API_VERSION = "batch/v1beta1"
    KIND = "CronJob"

    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()


def _seen(item: cron_job.CronJob) -> CronJob:
    return CronJob(metadata=item.metadata, spec=item.spec, status=item.status)


def _kept(item: CronJob) -> cron_job.CronJob:
    return cron_job.CronJob(metadata=item.metadata, spec=item.spec, status=item.status)


def _default(item: CronJob) -> CronJob:
    return replace(item, spec=CRON_JOB.rules.default(_kept(item)).spec)


def _check(item: CronJob) -> Iterator[FieldError]:
    yield from CRON_JOB.rules.check(_kept(item))


CRON_JOB_V1BETA1 = Kind(
    type=CronJob,
    plural=CRON_JOB.plural,
    singular=CRON_JOB.singular,
    namespaced=True,
    short=CRON_JOB.short,
    columns=CRON_JOB.columns,
    cells=lambda item, now: CRON_JOB.cells(_kept(item), now),
    on_create=lambda item: replace(item, status=CronJobStatus()),
    on_update=lambda new, old: replace(new, status=old.status),
    with_status=lambda new, old: replace(old, status=new.status),
    spec=lambda item: item.spec,
    own_rules=KindRules(default=_default, check=_check),
    conversion=Conversion(CRON_JOB, _seen, _kept),
)
