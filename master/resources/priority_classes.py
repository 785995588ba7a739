"""PriorityClass. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from api.meta.schema import FORBIDDEN, FieldError, quoted, unsupported_values
from api.meta.types import Object, ObjectMeta
from api.meta.values import Int32
from api.validation.registry import KindRules
from master.resources.printing import AGE, NAME
from master.resources.resource import Column, Resource

PREEMPT_LOWER_PRIORITY, PREEMPT_NEVER = "PreemptLowerPriority", "Never"
SYSTEM_PREFIX = "system-"
MAX_USER_PRIORITY = 1_000_000_000
MIN_PRIORITY = -(1 << 31)


class PriorityClass(Object, frozen=True):
    """A priority for pods.

    `value` is the priority of pods that name the class, with `globalDefault` also of pods that name none.
    `preemptionPolicy` is PreemptLowerPriority or Never.
    """

    API_VERSION = "scheduling.k8s.io/v1"
    KIND = "PriorityClass"
    PLURAL = "priorityclasses"
    NAMESPACED = False

    value: Int32 = 0
    global_default: bool = False
    description: str = ""
    preemption_policy: str | None = None


def _system_class(name: str, value: int, description: str) -> PriorityClass:
    return PriorityClass(
        metadata=ObjectMeta(name=name), value=value, description=description, preemption_policy=PREEMPT_LOWER_PRIORITY
    )


SYSTEM_CLASSES = (
    _system_class("system-cluster-critical", 2_000_000_000, "For pods that the cluster needs; they may move."),
    _system_class("system-node-critical", 2_000_001_000, "For pods that their node needs; they stay."),
)
"""The classes that are always there."""


def _default_priority_class(priority_class: PriorityClass) -> PriorityClass:
    return replace(priority_class, preemption_policy=priority_class.preemption_policy or PREEMPT_LOWER_PRIORITY)


def _validate_priority_class(priority_class: PriorityClass) -> Iterator[FieldError]:
    name = priority_class.metadata.name
    if name.startswith(SYSTEM_PREFIX):
        known = {system_class.metadata.name: system_class.value for system_class in SYSTEM_CLASSES}
        if known.get(name) != priority_class.value or priority_class.global_default:
            reason = "priority class names with 'system-' prefix are reserved for system use only"
            yield FieldError("metadata.name", quoted(name), reason, FORBIDDEN)
    elif priority_class.value > MAX_USER_PRIORITY:
        reason = f"maximum allowed value of a user defined priority is {MAX_USER_PRIORITY}"
        yield FieldError("value", quoted(priority_class.value), reason, FORBIDDEN)
    if priority_class.value < MIN_PRIORITY:
        yield FieldError("value", quoted(priority_class.value), f"must be greater than or equal to {MIN_PRIORITY}")
    yield from unsupported_values(
        ("preemptionPolicy", priority_class.preemption_policy or "", (PREEMPT_LOWER_PRIORITY, PREEMPT_NEVER))
    )


def _validate_priority_class_update(old: PriorityClass, new: PriorityClass) -> Iterator[FieldError]:
    if old.value != new.value:
        yield FieldError("value", quoted(new.value), "may not be changed in an update.", FORBIDDEN)
    if old.preemption_policy != new.preemption_policy:
        yield FieldError("preemptionPolicy", quoted(new.preemption_policy), "field is immutable")


PRIORITY_CLASSES = Resource(
    type=PriorityClass,
    short_names=("pc",),
    columns=(
        NAME,
        Column("Value", "The priority of its pods.", lambda priority_class, _: priority_class.value, type="integer"),
        Column(
            "Global-Default",
            "True if pods that name no class have this one.",
            lambda priority_class, _: priority_class.global_default,
            type="boolean",
        ),
        AGE,
        Column(
            "PreemptionPolicy",
            "PreemptLowerPriority or Never.",
            lambda priority_class, _: priority_class.preemption_policy,
        ),
    ),
    spec=lambda priority_class: priority_class.value,
    rules=KindRules(_default_priority_class, _validate_priority_class, _validate_priority_class_update),
    acted_on_by="the master, when a pod is created, and its scheduler; two system classes always exist",
)
