"""StatefulSet and ControllerRevision. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from msgspec.structs import replace

from api.core.pod import PodSpec
from api.core.storage import PENDING, PersistentVolumeClaim, persistent_volume_claim_defaults
from api.core.volumes import PersistentVolumeClaimVolumeSource, Volume
from api.meta import names
from api.meta.schema import FORBIDDEN, MISSING, NOT_SUPPORTED, TOO_MANY, FieldError, quoted, without_nulls
from api.meta.selectors import LabelSelector, check_selector, format_selector
from api.meta.types import Condition, Json, Object, Value, merge_keys
from api.meta.values import Int32
from api.validation.registry import KindRules
from master.resources.metadata import controller_of
from master.resources.pod_template import (
    TEMPLATE_COLUMNS,
    PodTemplateSpec,
    default_template,
    validate_replicas,
    validate_required_selector,
    validate_template,
)
from master.resources.printing import AGE, NAME
from master.resources.resource import Column, Resource, Scale
from master.resources.validation import immutable, minimum

ROLLING_UPDATE, ON_DELETE = "RollingUpdate", "OnDelete"
ORDERED, PARALLEL = "OrderedReady", "Parallel"
RETAIN, DELETE = "Retain", "Delete"
DEFAULT_HISTORY_LIMIT = 10
MAX_SET_NAME_LENGTH, MAX_ORDINAL = 52, (1 << 31) - 1
MUTABLE_FIELDS = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)


class RollingUpdateStatefulSetStrategy(Value, frozen=True):
    """The part of the pods that an update replaces. Pods with an ordinal below `partition` keep the old template."""

    partition: Int32 | None = None


class StatefulSetUpdateStrategy(Value, frozen=True):
    """The way in which pods are replaced after a change of the template.

    `type` is RollingUpdate, or OnDelete: a pod is replaced when a client deletes it.
    """

    type: str = ""
    rolling_update: RollingUpdateStatefulSetStrategy | None = None


class StatefulSetPersistentVolumeClaimRetentionPolicy(Value, frozen=True):
    """The treatment of claims when the set is deleted, or when it is scaled below the ordinal of their pod: Retain or
    Delete."""

    when_deleted: str = ""
    when_scaled: str = ""


class StatefulSetOrdinals(Value, frozen=True):
    """The ordinal of the first pod."""

    start: Int32 = 0


class StatefulSetSpec(Value, frozen=True):
    """The desired state of a StatefulSet.

    Pods are named after the set and an ordinal. Each pod has a claim of its own for each of `volume_claim_templates`.
    `pod_management_policy` is OrderedReady, one after the other, or Parallel. `service_name` is the headless service
    that gives the pods their DNS names.
    """

    replicas: Int32 | None = None
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()
    volume_claim_templates: tuple[PersistentVolumeClaim, ...] = ()
    service_name: str = ""
    pod_management_policy: str = ""
    update_strategy: StatefulSetUpdateStrategy = StatefulSetUpdateStrategy()
    revision_history_limit: Int32 | None = None
    min_ready_seconds: Int32 = 0
    persistent_volume_claim_retention_policy: StatefulSetPersistentVolumeClaimRetentionPolicy = (
        StatefulSetPersistentVolumeClaimRetentionPolicy()
    )
    ordinals: StatefulSetOrdinals | None = None


class StatefulSetStatus(Value, frozen=True, omit_defaults=False):
    """The numbers of pods that exist, that are ready, that are available, and that are of the template before and after
    a change."""

    observed_generation: int = 0
    replicas: Int32 = 0
    ready_replicas: Int32 = 0
    current_replicas: Int32 = 0
    updated_replicas: Int32 = 0
    current_revision: str = ""
    update_revision: str = ""
    collision_count: Int32 = 0
    conditions: Annotated[tuple[Condition, ...], merge_keys("type")] = ()
    available_replicas: Int32 = 0


class StatefulSet(Object, frozen=True):
    """Keeps `replicas` pods, each with an ordinal that stays the same."""

    API_VERSION = "apps/v1"
    KIND = "StatefulSet"
    PLURAL = "statefulsets"
    NAMESPACED = True

    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()


def with_claims(spec: PodSpec, claims: Iterable[tuple[str, str]]) -> PodSpec:
    """Return the pod with a volume for each (template name, claim name), which replaces a volume of that name."""
    own = dict(claims)
    volumes = (
        Volume(name=name, persistent_volume_claim=PersistentVolumeClaimVolumeSource(claim_name=claim))
        for name, claim in own.items()
    )
    return replace(spec, volumes=(*volumes, *(volume for volume in spec.volumes if volume.name not in own)))


# --- defaults and fields that the server sets -------------------------------------------------------------------------


MAX_CLAIM_TEMPLATES = 50
"""Claims of each pod of a StatefulSet."""


def _check_claim_number(stateful_set: StatefulSet) -> Iterator[FieldError]:
    number = len(stateful_set.spec.volume_claim_templates)
    if number > MAX_CLAIM_TEMPLATES:
        accepted = f"must have at most {MAX_CLAIM_TEMPLATES} items"
        yield FieldError("spec.volumeClaimTemplates", str(number), accepted, TOO_MANY)


def _default_stateful_set(stateful_set: StatefulSet) -> StatefulSet:
    spec = stateful_set.spec
    strategy = replace(spec.update_strategy, type=spec.update_strategy.type or ROLLING_UPDATE)
    if strategy.type == ROLLING_UPDATE:
        rolling = strategy.rolling_update or RollingUpdateStatefulSetStrategy()
        strategy = replace(strategy, rolling_update=replace(rolling, partition=rolling.partition or 0))
    retention = spec.persistent_volume_claim_retention_policy
    spec = replace(
        spec,
        replicas=1 if spec.replicas is None else spec.replicas,
        template=default_template(spec.template),
        volume_claim_templates=tuple(map(_default_claim_template, spec.volume_claim_templates)),
        pod_management_policy=spec.pod_management_policy or ORDERED,
        update_strategy=strategy,
        revision_history_limit=DEFAULT_HISTORY_LIMIT
        if spec.revision_history_limit is None
        else spec.revision_history_limit,
        persistent_volume_claim_retention_policy=StatefulSetPersistentVolumeClaimRetentionPolicy(
            when_deleted=retention.when_deleted or RETAIN, when_scaled=retention.when_scaled or RETAIN
        ),
    )
    return replace(stateful_set, spec=spec)


def _default_claim_template(claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
    full = persistent_volume_claim_defaults(claim)
    status = replace(full.status, phase=full.status.phase or PENDING)
    return replace(full, api_version=full.API_VERSION, kind=full.KIND, status=status)


# --- validation -------------------------------------------------------------------------------------------------------


def _validate_stateful_set(stateful_set: StatefulSet) -> Iterator[FieldError]:
    spec = stateful_set.spec
    yield from validate_replicas(spec.replicas)
    yield from validate_required_selector(spec.selector)
    bad = list(check_selector("spec.selector", spec.selector or LabelSelector()))
    yield from bad
    claims = [(claim.metadata.name, "claim") for claim in spec.volume_claim_templates]
    template = replace(spec.template, spec=with_claims(spec.template.spec, claims))
    yield from validate_template(template, None if bad else spec.selector)
    for number, (name, _) in enumerate(claims):
        if names.dns_label_error(name):
            yield FieldError(
                f"spec.volumeClaimTemplates[{number}].metadata.name", quoted(name), names.dns_label_error(name)
            )
    yield from _validate_name_length(stateful_set)
    start = spec.ordinals.start if spec.ordinals is not None else None
    partition = spec.update_strategy.rolling_update.partition if spec.update_strategy.rolling_update else None
    yield from minimum(
        ("spec.minReadySeconds", spec.min_ready_seconds, 0),
        ("spec.revisionHistoryLimit", spec.revision_history_limit, 0),
        ("spec.ordinals.start", start, 0),
        ("spec.updateStrategy.rollingUpdate.partition", partition, 0),
    )
    yield from _validate_choices(spec)


def _validate_name_length(stateful_set: StatefulSet) -> Iterator[FieldError]:
    """Yield an error if pod names, host names or the revision label would be too long."""
    name, spec = stateful_set.metadata.name, stateful_set.spec
    start = spec.ordinals.start if spec.ordinals is not None else 0
    if start > MAX_ORDINAL or (spec.replicas or 0) > MAX_ORDINAL - start:
        yield FieldError("spec.replicas", quoted(spec.replicas), f"the numbers of pods end at {MAX_ORDINAL}")
    elif name and (len(name) > MAX_SET_NAME_LENGTH or names.dns_label_error(name)):
        accepted = f"a DNS label of no more than {MAX_SET_NAME_LENGTH} characters is accepted: hosts are named after it"
        yield FieldError("metadata.name", quoted(name), accepted)


def _validate_choices(spec: StatefulSetSpec) -> Iterator[FieldError]:
    retention = spec.persistent_volume_claim_retention_policy
    path = "spec.persistentVolumeClaimRetentionPolicy"
    for field_path, value, accepted in (
        ("spec.podManagementPolicy", spec.pod_management_policy, (ORDERED, PARALLEL)),
        ("spec.updateStrategy.type", spec.update_strategy.type, (ROLLING_UPDATE, ON_DELETE)),
        (f"{path}.whenDeleted", retention.when_deleted, (RETAIN, DELETE)),
        (f"{path}.whenScaled", retention.when_scaled, (RETAIN, DELETE)),
    ):
        if value not in ("", *accepted):
            yield FieldError(field_path, quoted(value), f"{' and '.join(accepted)} are accepted", NOT_SUPPORTED)
    if spec.update_strategy.type == ON_DELETE and spec.update_strategy.rolling_update is not None:
        reason = f"only allowed for updateStrategy '{ROLLING_UPDATE}'"
        yield FieldError("spec.updateStrategy.rollingUpdate", "given", reason)


def _validate_stateful_set_update(old: StatefulSet, new: StatefulSet) -> Iterator[FieldError]:
    if _immutable_part(old.spec) != _immutable_part(new.spec):
        yield FieldError("spec", "changed", MUTABLE_FIELDS, FORBIDDEN)


def _immutable_part(spec: StatefulSetSpec) -> StatefulSetSpec:
    """Return the part of the spec that is immutable."""
    return StatefulSetSpec(
        selector=spec.selector,
        volume_claim_templates=spec.volume_claim_templates,
        service_name=spec.service_name,
        pod_management_policy=spec.pod_management_policy,
    )


# --- columns ----------------------------------------------------------------------------------------------------------


STATEFUL_SETS = Resource(
    type=StatefulSet,
    short_names=("sts",),
    categories=("all",),
    columns=(
        NAME,
        Column(
            "Ready",
            "Number of ready pods and of desired pods.",
            lambda stateful_set, _: f"{stateful_set.status.ready_replicas}/{stateful_set.spec.replicas or 0}",
        ),
        AGE,
        *TEMPLATE_COLUMNS[:2],
    ),
    spec=lambda stateful_set: stateful_set.spec,
    scale=Scale(
        replicas=lambda stateful_set: stateful_set.spec.replicas or 0,
        status_replicas=lambda stateful_set: stateful_set.status.replicas,
        selector=lambda stateful_set: format_selector(stateful_set.spec.selector),
        with_replicas=lambda stateful_set, replicas: replace(
            stateful_set, spec=replace(stateful_set.spec, replicas=replicas)
        ),
    ),
    rules=KindRules(
        default=_default_stateful_set,
        validate=_validate_stateful_set,
        validate_update=_validate_stateful_set_update,
        check_numbers=_check_claim_number,
    ),
    acted_on_by="the stateful set controller of the master",
)


class ControllerRevision(Object, frozen=True):
    """A state that a controller recorded.

    `data` has a form that the controller knows; a later state has a higher `revision`.
    """

    API_VERSION = "apps/v1"
    KIND = "ControllerRevision"
    PLURAL = "controllerrevisions"
    NAMESPACED = True

    data: Json = None
    revision: int = 0


def _validate_controller_revision(revision: ControllerRevision) -> Iterator[FieldError]:
    if revision.data is None:
        yield FieldError("data", "null", "data is mandatory", MISSING)
    elif not isinstance(revision.data, dict):
        yield FieldError("data", "given", "an object is accepted")
    yield from minimum(("revision", revision.revision, 0))


def _prepare_controller_revision_for_update(new: ControllerRevision, old: ControllerRevision) -> ControllerRevision:
    """Ignore nulls in the data, because clients do not send them."""
    return replace(new, data=old.data) if without_nulls(new.data) == without_nulls(old.data) else new


def _controller_text(revision: ControllerRevision) -> str:
    owner = controller_of(revision.metadata)
    if owner is None:
        return "<none>"
    group = owner.api_version.rpartition("/")[0]
    return f"{owner.kind}{'.' if group else ''}{group}".lower() + f"/{owner.name}"


CONTROLLER_REVISIONS = Resource(
    type=ControllerRevision,
    columns=(
        NAME,
        Column("Controller", "Controller that recorded the state.", lambda revision, _: _controller_text(revision)),
        Column("Revision", "Its number among the states of its owner.", lambda revision, _: revision.revision),
        AGE,
    ),
    prepare_for_update=_prepare_controller_revision_for_update,
    rules=KindRules(
        validate=_validate_controller_revision, validate_update=lambda old, new: immutable(("data", old.data, new.data))
    ),
    acted_on_by="written by the master for daemon sets and stateful sets",
)
