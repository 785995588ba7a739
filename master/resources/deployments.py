"""Deployment, ReplicaSet and ReplicationController. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec.structs import replace

from api.meta.schema import FORBIDDEN, MISSING, NOT_SUPPORTED, FieldError, quoted
from api.meta.selectors import LabelSelector, check_selector, format_selector
from api.meta.types import ATOMIC, Condition, Object, Value, merge_keys
from api.meta.values import Int32, IntOrString, Time
from api.validation.registry import KindRules
from master.resources.pod_template import (
    REPLICA_COLUMNS,
    TEMPLATE_COLUMNS,
    PodTemplateSpec,
    ReplicasStatus,
    default_template,
    template_columns,
    validate_int_or_percent,
    validate_replicas,
    validate_required_selector,
    validate_template,
)
from master.resources.printing import AGE, NAME, none_if_empty
from master.resources.resource import Column, Resource, Scale


class ReplicaSetSpec(Value, frozen=True):
    """The desired state of a ReplicaSet. A pod counts as available when it has been ready for `min_ready_seconds`."""

    replicas: Int32 | None = None
    min_ready_seconds: Int32 = 0
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()


class ReplicaSet(Object, frozen=True):
    """Keeps `replicas` pods that are made from `template`."""

    API_VERSION = "apps/v1"
    KIND = "ReplicaSet"
    PLURAL = "replicasets"
    NAMESPACED = True

    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicasStatus = ReplicasStatus()


def _default_replica_set(replica_set: ReplicaSet) -> ReplicaSet:
    spec = replica_set.spec
    replicas = 1 if spec.replicas is None else spec.replicas
    return replace(replica_set, spec=replace(spec, replicas=replicas, template=default_template(spec.template)))


def _validate_replica_set(replica_set: ReplicaSet) -> Iterator[FieldError]:
    spec = replica_set.spec
    yield from validate_replicas(spec.replicas)
    yield from validate_required_selector(spec.selector)
    bad = list(check_selector("spec.selector", spec.selector or LabelSelector()))
    yield from bad
    yield from validate_template(spec.template, None if bad else spec.selector)


def _validate_replica_set_update(old: ReplicaSet, new: ReplicaSet) -> Iterator[FieldError]:
    if old.spec.selector != new.spec.selector:
        yield FieldError("spec.selector", quoted(new.spec.selector), "field is immutable", FORBIDDEN)


REPLICA_SETS = Resource(
    type=ReplicaSet,
    short_names=("rs",),
    categories=("all",),
    columns=(NAME, *REPLICA_COLUMNS, AGE, *TEMPLATE_COLUMNS),
    selectable_fields=lambda replica_set: {"status.replicas": str(replica_set.status.replicas)},
    spec=lambda replica_set: replica_set.spec,
    scale=Scale(
        replicas=lambda replica_set: replica_set.spec.replicas or 0,
        status_replicas=lambda replica_set: replica_set.status.replicas,
        selector=lambda replica_set: format_selector(replica_set.spec.selector),
        with_replicas=lambda replica_set, replicas: replace(
            replica_set, spec=replace(replica_set.spec, replicas=replicas)
        ),
    ),
    rules=KindRules(
        default=_default_replica_set, validate=_validate_replica_set, validate_update=_validate_replica_set_update
    ),
    acted_on_by="the replica set controller of the master",
)

ROLLING_UPDATE, RECREATE = "RollingUpdate", "Recreate"
QUARTER = "25%"
DEFAULT_HISTORY_LIMIT, DEFAULT_PROGRESS_DEADLINE_SECONDS = 10, 600


class RollingUpdateDeployment(Value, frozen=True):
    """The number or percentage of pods that may be missing during an update, and that may exist in addition."""

    max_unavailable: IntOrString | None = None
    max_surge: IntOrString | None = None


class DeploymentStrategy(Value, frozen=True):
    """The way in which pods are replaced. `type` is RollingUpdate or Recreate."""

    type: str = ""
    rolling_update: RollingUpdateDeployment | None = None


class DeploymentSpec(Value, frozen=True):
    """The desired state of a Deployment. `paused` delays the effect of a change of the template."""

    replicas: Int32 | None = None
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()
    strategy: DeploymentStrategy = DeploymentStrategy()
    min_ready_seconds: Int32 = 0
    revision_history_limit: Int32 | None = None
    paused: bool = False
    progress_deadline_seconds: Int32 | None = None


class DeploymentCondition(Condition, frozen=True):
    """A condition of a Deployment. `type` is Available, Progressing or ReplicaFailure."""

    last_update_time: Time | None = None


class DeploymentStatus(Value, frozen=True):
    """The sums over its replica sets. `collision_count` makes the names of replica sets different after a collision."""

    observed_generation: int = 0
    replicas: Int32 = 0
    updated_replicas: Int32 = 0
    ready_replicas: Int32 = 0
    available_replicas: Int32 = 0
    unavailable_replicas: Int32 = 0
    conditions: Annotated[tuple[DeploymentCondition, ...], merge_keys("type")] = ()
    collision_count: Int32 | None = None


class Deployment(Object, frozen=True):
    """Keeps `replicas` pods. A new `template` replaces the pods step by step, and the change can be undone."""

    API_VERSION = "apps/v1"
    KIND = "Deployment"
    PLURAL = "deployments"
    NAMESPACED = True

    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


def _default_deployment(deployment: Deployment) -> Deployment:
    spec = deployment.spec
    strategy = replace(spec.strategy, type=spec.strategy.type or ROLLING_UPDATE)
    if strategy.type == ROLLING_UPDATE:
        rolling = strategy.rolling_update or RollingUpdateDeployment()
        unavailable = QUARTER if rolling.max_unavailable is None else rolling.max_unavailable
        surge = QUARTER if rolling.max_surge is None else rolling.max_surge
        strategy = replace(
            strategy, rolling_update=RollingUpdateDeployment(max_unavailable=unavailable, max_surge=surge)
        )
    deadline = spec.progress_deadline_seconds
    spec = replace(
        spec,
        replicas=1 if spec.replicas is None else spec.replicas,
        template=default_template(spec.template),
        strategy=strategy,
        revision_history_limit=DEFAULT_HISTORY_LIMIT
        if spec.revision_history_limit is None
        else spec.revision_history_limit,
        progress_deadline_seconds=DEFAULT_PROGRESS_DEADLINE_SECONDS if deadline is None else deadline,
    )
    return replace(deployment, spec=spec)


def _validate_deployment(deployment: Deployment) -> Iterator[FieldError]:
    spec = deployment.spec
    yield from validate_replicas(spec.replicas)
    yield from validate_required_selector(spec.selector)
    bad = list(check_selector("spec.selector", spec.selector or LabelSelector()))
    yield from bad
    yield from validate_template(spec.template, None if bad else spec.selector)
    yield from _validate_strategy(spec.strategy)
    fields = (("minReadySeconds", spec.min_ready_seconds), ("revisionHistoryLimit", spec.revision_history_limit))
    for name, value in (*fields, ("progressDeadlineSeconds", spec.progress_deadline_seconds)):
        if value is not None and value < 0:
            yield FieldError(f"spec.{name}", quoted(value), "must be greater than or equal to 0")
    if spec.progress_deadline_seconds is not None and spec.progress_deadline_seconds <= spec.min_ready_seconds:
        text = quoted(spec.progress_deadline_seconds)
        yield FieldError("spec.progressDeadlineSeconds", text, "must be greater than minReadySeconds")


def _validate_strategy(strategy: DeploymentStrategy) -> Iterator[FieldError]:
    if strategy.type not in ("", ROLLING_UPDATE, RECREATE):
        accepted = f"{ROLLING_UPDATE} and {RECREATE} are accepted"
        yield FieldError("spec.strategy.type", quoted(strategy.type), accepted, NOT_SUPPORTED)
    rolling = strategy.rolling_update
    if rolling is None:
        return
    if strategy.type == RECREATE:
        reason = f"may not be specified when strategy `type` is '{RECREATE}'"
        yield FieldError("spec.strategy.rollingUpdate", "given", reason, FORBIDDEN)
    path = "spec.strategy.rollingUpdate"
    yield from validate_int_or_percent(f"{path}.maxUnavailable", rolling.max_unavailable)
    yield from validate_int_or_percent(f"{path}.maxSurge", rolling.max_surge)
    if rolling.max_unavailable in (0, "0%") and rolling.max_surge in (0, "0%"):
        reason = "may not be 0 when `maxSurge` is 0"
        yield FieldError(f"{path}.maxUnavailable", quoted(rolling.max_unavailable), reason)


def _validate_deployment_update(old: Deployment, new: Deployment) -> Iterator[FieldError]:
    if old.spec.selector != new.spec.selector:
        yield FieldError("spec.selector", quoted(new.spec.selector), "field is immutable", FORBIDDEN)


DEPLOYMENTS = Resource(
    type=Deployment,
    short_names=("deploy",),
    categories=("all",),
    columns=(
        NAME,
        Column(
            "Ready",
            "Number of ready pods and of desired pods.",
            lambda deployment, _: f"{deployment.status.ready_replicas}/{deployment.spec.replicas or 0}",
        ),
        Column(
            "Up-to-date",
            "Number of pods of the newest template.",
            lambda deployment, _: deployment.status.updated_replicas,
        ),
        Column(
            "Available",
            "Number of pods that have been ready for minReadySeconds.",
            lambda deployment, _: deployment.status.available_replicas,
        ),
        AGE,
        *TEMPLATE_COLUMNS,
    ),
    spec=lambda deployment: deployment.spec,
    scale=Scale(
        replicas=lambda deployment: deployment.spec.replicas or 0,
        status_replicas=lambda deployment: deployment.status.replicas,
        selector=lambda deployment: format_selector(deployment.spec.selector),
        with_replicas=lambda deployment, replicas: replace(
            deployment, spec=replace(deployment.spec, replicas=replicas)
        ),
    ),
    rules=KindRules(
        default=_default_deployment, validate=_validate_deployment, validate_update=_validate_deployment_update
    ),
    acted_on_by="the deployment controller of the master",
)


class ReplicationControllerSpec(Value, frozen=True):
    """The desired state of a ReplicationController.

    A pod counts as available when it has been ready for `min_ready_seconds`.
    """

    replicas: Int32 | None = None
    min_ready_seconds: Int32 = 0
    selector: Annotated[dict[str, str], ATOMIC] = {}
    template: PodTemplateSpec | None = None


class ReplicationController(Object, frozen=True):
    """Keeps `replicas` pods that are made from `template`."""

    API_VERSION = "v1"
    KIND = "ReplicationController"
    PLURAL = "replicationcontrollers"
    NAMESPACED = True

    spec: ReplicationControllerSpec = ReplicationControllerSpec()
    status: ReplicasStatus = ReplicasStatus()


def _default_replication_controller(controller: ReplicationController) -> ReplicationController:
    spec, template = controller.spec, controller.spec.template
    labels = template.metadata.labels if template else {}
    spec = replace(
        spec,
        replicas=1 if spec.replicas is None else spec.replicas,
        selector=spec.selector or labels,
        template=None if template is None else default_template(template),
    )
    return replace(
        controller, metadata=replace(controller.metadata, labels=controller.metadata.labels or labels), spec=spec
    )


def _validate_replication_controller(controller: ReplicationController) -> Iterator[FieldError]:
    spec = controller.spec
    yield from validate_replicas(spec.replicas)
    if spec.template is None:
        yield FieldError("spec.template", "null", "a template is required", MISSING)
        return
    selector = LabelSelector(match_labels=spec.selector or spec.template.metadata.labels)
    if not selector.match_labels:
        yield FieldError("spec.selector", "{}", "a selector, or labels of the template, are required", MISSING)
    yield from check_selector("spec", selector)
    yield from validate_template(spec.template, selector)


def _selector_text(controller: ReplicationController) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(controller.spec.selector.items()))


REPLICATION_CONTROLLERS = Resource(
    type=ReplicationController,
    short_names=("rc",),
    categories=("all",),
    columns=(
        NAME,
        *REPLICA_COLUMNS,
        AGE,
        *template_columns(
            lambda controller: controller.spec.template or PodTemplateSpec(),
            lambda controller: none_if_empty(_selector_text(controller)),
        ),
    ),
    selectable_fields=lambda controller: {"status.replicas": str(controller.status.replicas)},
    spec=lambda controller: controller.spec,
    scale=Scale(
        replicas=lambda controller: controller.spec.replicas or 0,
        status_replicas=lambda controller: controller.status.replicas,
        selector=_selector_text,
        with_replicas=lambda controller, replicas: replace(
            controller, spec=replace(controller.spec, replicas=replicas)
        ),
    ),
    rules=KindRules(default=_default_replication_controller, validate=_validate_replication_controller),
    orphans_dependents=True,
    acted_on_by="the replication controller of the master",
)
