"""PodTemplate, and the pod template that all workloads share: its defaults, validation and columns. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from msgspec.structs import replace

from api.core.pod import Pod, PodSpec
from api.meta.schema import MISSING, FieldError, quoted
from api.meta.selectors import LabelSelector, compile_selector, format_selector
from api.meta.types import Condition, Object, ObjectMeta, Value, merge_keys
from api.validation import pod
from api.validation.defaults import spec_defaults
from api.validation.pod_limits import check_numbers
from api.validation.registry import KindRules
from master.resources.printing import NAME
from master.resources.resource import Column, Resource

_PERCENT = re.compile(r"(\d{1,9})%", re.ASCII)

REPLICA_FAILURE = "ReplicaFailure"
"""The condition of an owner that does not get its pods."""


class PodTemplateSpec(Value, frozen=True):
    """The template of a pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class ReplicasStatus(Value, frozen=True, omit_defaults=False):
    """The numbers of pods that exist, that have all labels of the template, that are ready, and that are available."""

    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    observed_generation: int = 0
    conditions: Annotated[tuple[Condition, ...], merge_keys("type")] = ()


REPLICA_COLUMNS = (
    Column("Desired", "Number of desired pods.", lambda obj, _: obj.spec.replicas or 0, type="integer"),
    Column("Current", "Number of existing pods.", lambda obj, _: obj.status.replicas, type="integer"),
    Column("Ready", "Number of ready pods.", lambda obj, _: obj.status.ready_replicas, type="integer"),
)


def _container_names(template: PodTemplateSpec) -> str:
    return ",".join(container.name for container in template.spec.containers)


def _container_images(template: PodTemplateSpec) -> str:
    return ",".join(container.image for container in template.spec.containers)


def template_columns(
    template: Callable[[Any], PodTemplateSpec], selector: Callable[[Any], str]
) -> tuple[Column, Column, Column]:
    """Return the wide columns of a resource with a pod template, which `template` and `selector` read."""
    return (
        Column(
            "Containers",
            "The names of the template's containers.",
            lambda obj, _: _container_names(template(obj)),
            wide=True,
        ),
        Column(
            "Images",
            "The images of the template's containers.",
            lambda obj, _: _container_images(template(obj)),
            wide=True,
        ),
        Column("Selector", "Which pods belong to it.", lambda obj, _: selector(obj), wide=True),
    )


TEMPLATE_COLUMNS = template_columns(lambda obj: obj.spec.template, lambda obj: format_selector(obj.spec.selector))
"""The wide columns of a resource with `spec.template` and a label selector in `spec.selector`."""


def default_template(template: PodTemplateSpec) -> PodTemplateSpec:
    """Return the template with every default of its pods set."""
    return replace(template, spec=spec_defaults(template.spec))


def validate_template(
    template: PodTemplateSpec, selector: LabelSelector | None, policies: tuple[str, ...] = ("Always",)
) -> Iterator[FieldError]:
    """Yield every error of `spec.template`. `policies` are the accepted restart policies."""
    for problem in pod.check_pod(Pod(metadata=template.metadata, spec=template.spec)):
        yield problem._replace(path=f"spec.template.{problem.path}")
    policy = template.spec.restart_policy
    if policy and policy not in policies:
        accepted = f"{' or '.join(policies)} is accepted"
        yield FieldError("spec.template.spec.restartPolicy", quoted(policy), accepted)
    if selector is not None and not compile_selector(selector).matches(template.metadata.labels):
        labels = quoted(template.metadata.labels)
        yield FieldError("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")


def int_or_percent(value: int | str | None, of: int, up: bool) -> int:
    """Return a number of pods; a percentage of `of` is rounded up or down."""
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is not None:
        part = int(match[1]) * of
        return -(-part // 100) if up else part // 100
    return value if isinstance(value, int) else 0


def is_zero_share(value: int | str | None) -> bool:
    """Return whether the value means no pods, whatever the total is."""
    return int_or_percent(value, 100, up=True) == 0


def validate_int_or_percent(path: str, value: int | str | None) -> Iterator[FieldError]:
    """Yield an error unless the value is a number of at least 0 or a percentage."""
    good = value >= 0 if isinstance(value, int) else value is None or _PERCENT.fullmatch(value) is not None
    if not good:
        yield FieldError(path, quoted(value), 'a number from 0 on, or a part such as "25%", is accepted')


def validate_replicas(replicas: int | None) -> Iterator[FieldError]:
    """Yield an error if the number of pods is negative."""
    if replicas is not None and replicas < 0:
        yield FieldError("spec.replicas", quoted(replicas), "must be greater than or equal to 0")


def validate_required_selector(selector: LabelSelector | None) -> Iterator[FieldError]:
    """Yield an error if the selector is missing or empty."""
    if selector is None:
        yield FieldError("spec.selector", "null", "a selector is required", MISSING)
    elif not selector.match_labels and not selector.match_expressions:
        yield FieldError("spec.selector", "{}", "empty selector is invalid: it would select every pod")


class PodTemplate(Object, frozen=True):
    """A stored template of pods. No controller creates pods from it."""

    API_VERSION = "v1"
    KIND = "PodTemplate"
    PLURAL = "podtemplates"
    NAMESPACED = True

    template: PodTemplateSpec = PodTemplateSpec()


def _validate_pod_template(pod_template: PodTemplate) -> Iterator[FieldError]:
    for problem in pod.check_pod(Pod(metadata=pod_template.template.metadata, spec=pod_template.template.spec)):
        yield problem._replace(path=f"template.{problem.path}")


def _labels_text(pod_template: PodTemplate) -> str:
    labels = pod_template.template.metadata.labels
    return ",".join(f"{key}={labels[key]}" for key in sorted(labels)) or "<none>"


POD_TEMPLATES = Resource(
    type=PodTemplate,
    columns=(
        NAME,
        Column(
            "Containers",
            "The names of its containers.",
            lambda pod_template, _: _container_names(pod_template.template),
        ),
        Column(
            "Images", "The images of its containers.", lambda pod_template, _: _container_images(pod_template.template)
        ),
        Column(
            "Pod Labels", "The labels that the pods would have.", lambda pod_template, _: _labels_text(pod_template)
        ),
    ),
    spec=lambda pod_template: pod_template.template,
    rules=KindRules(
        default=lambda pod_template: replace(pod_template, template=default_template(pod_template.template)),
        validate=_validate_pod_template,
    ),
)


def template_of(obj: Any) -> PodTemplateSpec | None:
    """Return the pod template of a workload or a PodTemplate; None for other objects."""
    return _template_and_path(obj)[0]


def check_pod_numbers(obj: Any) -> Iterator[FieldError]:
    """Yield the errors of a pod, or of an object with a pod template, that has too many items; see `pod_limits`."""
    if isinstance(obj, Pod):
        yield from check_numbers("spec", obj.spec)
        return
    template, path = _template_and_path(obj)
    if template is not None:
        yield from check_numbers(f"{path}.spec", template.spec)


def _template_and_path(obj: Any) -> tuple[PodTemplateSpec | None, str]:
    if isinstance(obj, PodTemplate):
        return obj.template, "template"
    spec = getattr(obj, "spec", None)
    job = getattr(spec, "job_template", None)
    template = getattr(spec if job is None else job.spec, "template", None)
    path = "spec.template" if job is None else "spec.jobTemplate.spec.template"
    return (template, path) if isinstance(template, PodTemplateSpec) else (None, "")
