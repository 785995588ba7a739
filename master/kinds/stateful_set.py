"""StatefulSet: pods with lasting names and storage of their own. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Annotated

from msgspec.structs import replace

from api.core.pod import PodSpec
from api.core.storage import PENDING, PersistentVolumeClaim, defaulted_claim
from api.core.volumes import PersistentVolumeClaimVolumeSource, Volume
from api.meta import names
from api.meta.schema import FORBIDDEN, NOT_SUPPORTED, FieldError, quoted
from api.meta.selectors import LabelSelector, check_selector, shown_selector
from api.meta.types import Condition, Object, Value, merge_keys
from api.validation.registry import KindRules
from master.kinds.checks import at_least
from master.kinds.kind import AGE, NAME, Column, Kind, Scaling, age
from master.kinds.workload import (
    WIDE,
    PodTemplateSpec,
    check_replicas,
    check_required_selector,
    check_template,
    defaulted_template,
    wide_cells,
)

ROLLING, ON_DELETE = "RollingUpdate", "OnDelete"
ORDERED, PARALLEL = "OrderedReady", "Parallel"
RETAIN, DELETE = "Retain", "Delete"
HISTORY = 10
LONGEST_NAME, HIGHEST_NUMBER = 52, (1 << 31) - 1
CHANGEABLE = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)


class RollingUpdateStatefulSetStrategy(Value, frozen=True):
    """Pods with a number below `partition` keep the old template."""

    partition: int | None = None


class StatefulSetUpdateStrategy(Value, frozen=True):
    """`type` is RollingUpdate, or OnDelete: a pod is replaced by one of the new template when somebody deletes it."""

    type: str = ""
    rolling_update: RollingUpdateStatefulSetStrategy | None = None


class StatefulSetPersistentVolumeClaimRetentionPolicy(Value, frozen=True):
    """What becomes of claims whose set is deleted, or whose pod is no longer wished for: Retain or Delete."""

    when_deleted: str = ""
    when_scaled: str = ""


class StatefulSetOrdinals(Value, frozen=True):
    """The number of the first pod."""

    start: int = 0


class StatefulSetSpec(Value, frozen=True):
    """Pods are named after the set and a number; of each of `volume_claim_templates` every one has a claim of its own.

    `pod_management_policy` is OrderedReady, one after the other, or Parallel. `service_name` is the headless service by
    which the pods have names.
    """

    replicas: int | None = None
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()
    volume_claim_templates: tuple[PersistentVolumeClaim, ...] = ()
    service_name: str = ""
    pod_management_policy: str = ""
    update_strategy: StatefulSetUpdateStrategy = StatefulSetUpdateStrategy()
    revision_history_limit: int | None = None
    min_ready_seconds: int = 0
    persistent_volume_claim_retention_policy: StatefulSetPersistentVolumeClaimRetentionPolicy = (
        StatefulSetPersistentVolumeClaimRetentionPolicy()
    )
    ordinals: StatefulSetOrdinals | None = None


class StatefulSetStatus(Value, frozen=True, omit_defaults=False):
    """How many pods there are, are ready, available, and of the template before and after a change."""

    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    current_replicas: int = 0
    updated_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    collision_count: int = 0
    conditions: Annotated[tuple[Condition, ...], merge_keys("type")] = ()
    available_replicas: int = 0


class StatefulSet(Object, frozen=True):
    """Keeps `replicas` pods, each with a number that is its own for good."""

    API_VERSION = "apps/v1"
    KIND = "StatefulSet"

    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()


def with_claims(spec: PodSpec, claims: Iterable[tuple[str, str]]) -> PodSpec:
    """With a volume for each (name of a template, name of its claim), in place of a volume of that name."""
    own = dict(claims)
    volumes = (
        Volume(name=name, persistent_volume_claim=PersistentVolumeClaimVolumeSource(claim_name=claim))
        for name, claim in own.items()
    )
    return replace(spec, volumes=(*volumes, *(volume for volume in spec.volumes if volume.name not in own)))


# --- what the server fills in -----------------------------------------------------------------------------------------


def _default(item: StatefulSet) -> StatefulSet:
    spec = item.spec
    strategy = replace(spec.update_strategy, type=spec.update_strategy.type or ROLLING)
    if strategy.type == ROLLING:
        rolling = strategy.rolling_update or RollingUpdateStatefulSetStrategy()
        strategy = replace(strategy, rolling_update=replace(rolling, partition=rolling.partition or 0))
    retention = spec.persistent_volume_claim_retention_policy
    spec = replace(
        spec,
        replicas=1 if spec.replicas is None else spec.replicas,
        template=defaulted_template(spec.template),
        volume_claim_templates=tuple(map(_defaulted_claim, spec.volume_claim_templates)),
        pod_management_policy=spec.pod_management_policy or ORDERED,
        update_strategy=strategy,
        revision_history_limit=HISTORY if spec.revision_history_limit is None else spec.revision_history_limit,
        persistent_volume_claim_retention_policy=StatefulSetPersistentVolumeClaimRetentionPolicy(
            when_deleted=retention.when_deleted or RETAIN, when_scaled=retention.when_scaled or RETAIN
        ),
    )
    return replace(item, spec=spec)


def _defaulted_claim(claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
    full = defaulted_claim(claim)
    status = replace(full.status, phase=full.status.phase or PENDING)
    return replace(full, api_version=full.API_VERSION, kind=full.KIND, status=status)


# --- what is wrong ----------------------------------------------------------------------------------------------------


def _check(item: StatefulSet) -> Iterator[FieldError]:
    spec = item.spec
    yield from check_replicas(spec.replicas)
    yield from check_required_selector(spec.selector)
    bad = list(check_selector("spec.selector", spec.selector or LabelSelector()))
    yield from bad
    claims = [(claim.metadata.name, "claim") for claim in spec.volume_claim_templates]
    template = replace(spec.template, spec=with_claims(spec.template.spec, claims))
    yield from check_template(template, None if bad else spec.selector)
    for number, (name, _) in enumerate(claims):
        if names.dns_label(name):
            yield FieldError(f"spec.volumeClaimTemplates[{number}].metadata.name", quoted(name), names.dns_label(name))
    yield from _check_name(item)
    start = spec.ordinals.start if spec.ordinals is not None else None
    partition = spec.update_strategy.rolling_update.partition if spec.update_strategy.rolling_update else None
    yield from at_least(
        ("spec.minReadySeconds", spec.min_ready_seconds, 0),
        ("spec.revisionHistoryLimit", spec.revision_history_limit, 0),
        ("spec.ordinals.start", start, 0),
        ("spec.updateStrategy.rollingUpdate.partition", partition, 0),
    )
    yield from _check_words(spec)


def _check_name(item: StatefulSet) -> Iterator[FieldError]:
    """Its pods and their hosts are named after it, and their revision is the value of a label."""
    name, spec = item.metadata.name, item.spec
    start = spec.ordinals.start if spec.ordinals is not None else 0
    if start > HIGHEST_NUMBER or (spec.replicas or 0) > HIGHEST_NUMBER - start:
        yield FieldError("spec.replicas", quoted(spec.replicas), f"the numbers of pods end at {HIGHEST_NUMBER}")
    elif name and (len(name) > LONGEST_NAME or names.dns_label(name)):
        accepted = f"a DNS label of no more than {LONGEST_NAME} characters is accepted: hosts are named after it"
        yield FieldError("metadata.name", quoted(name), accepted)


def _check_words(spec: StatefulSetSpec) -> Iterator[FieldError]:
    retention = spec.persistent_volume_claim_retention_policy
    path = "spec.persistentVolumeClaimRetentionPolicy"
    for place, value, accepted in (
        ("spec.podManagementPolicy", spec.pod_management_policy, (ORDERED, PARALLEL)),
        ("spec.updateStrategy.type", spec.update_strategy.type, (ROLLING, ON_DELETE)),
        (f"{path}.whenDeleted", retention.when_deleted, (RETAIN, DELETE)),
        (f"{path}.whenScaled", retention.when_scaled, (RETAIN, DELETE)),
    ):
        if value not in ("", *accepted):
            yield FieldError(place, quoted(value), f"{' and '.join(accepted)} are accepted", NOT_SUPPORTED)
    if spec.update_strategy.type == ON_DELETE and spec.update_strategy.rolling_update is not None:
        why = f"only allowed for updateStrategy '{ROLLING}'"
        yield FieldError("spec.updateStrategy.rollingUpdate", "given", why)


def _immutable(old: StatefulSet, new: StatefulSet) -> Iterator[FieldError]:
    if _lasting(old.spec) != _lasting(new.spec):
        yield FieldError("spec", "changed", CHANGEABLE, FORBIDDEN)


def _lasting(spec: StatefulSetSpec) -> StatefulSetSpec:
    """The part that never changes."""
    return StatefulSetSpec(
        selector=spec.selector,
        volume_claim_templates=spec.volume_claim_templates,
        service_name=spec.service_name,
        pod_management_policy=spec.pod_management_policy,
    )


# --- how it is shown --------------------------------------------------------------------------------------------------


def _cells(item: StatefulSet, now: datetime.datetime) -> tuple[object, ...]:
    containers, images, _ = wide_cells(item.spec.template, "")
    return (
        item.metadata.name,
        f"{item.status.ready_replicas}/{item.spec.replicas or 0}",
        age(item.metadata.creation_timestamp, now),
        containers,
        images,
    )


STATEFUL_SET = Kind(
    type=StatefulSet,
    plural="statefulsets",
    singular="statefulset",
    namespaced=True,
    short=("sts",),
    categories=("all",),
    columns=(NAME, Column("Ready", "How many pods are ready, of how many."), AGE, *WIDE[:2]),
    cells=_cells,
    on_create=lambda item: replace(item, status=StatefulSetStatus()),
    on_update=lambda new, old: replace(new, status=old.status),
    with_status=lambda new, old: replace(old, status=new.status),
    spec=lambda item: item.spec,
    scaling=Scaling(
        replicas=lambda item: item.spec.replicas or 0,
        current=lambda item: item.status.replicas,
        selector=lambda item: shown_selector(item.spec.selector),
        scaled=lambda item, replicas: replace(item, spec=replace(item.spec, replicas=replicas)),
    ),
    own_rules=KindRules(default=_default, check=_check, immutable=_immutable),
)
