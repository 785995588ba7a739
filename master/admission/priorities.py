"""Which priority a new pod has, by the class that it names. Pure. Raises `answers.Failure`."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from api.core.pod import Pod
from master.kinds.pod import POD
from master.kinds.priority_class import LOWER, PRIORITY_CLASS, PriorityClass
from master.wire import answers


def prioritised(pod: Pod, classes: Iterable[PriorityClass]) -> Pod:
    """The pod with the priority and the policy of its class; a number of its own may only repeat them."""
    spec, known = pod.spec, {one.metadata.name: one for one in classes}
    if spec.priority_class_name and spec.priority_class_name not in known:
        why = f"no PriorityClass with name {spec.priority_class_name} was found"
        raise answers.forbidden(POD, pod.metadata.name, why)
    usual = sorted((one for one in known.values() if one.global_default), key=lambda one: one.value)
    found = known[spec.priority_class_name] if spec.priority_class_name else (usual[0] if usual else PriorityClass())
    policy = found.preemption_policy or LOWER
    for given, wanted, what in (
        (spec.priority, found.value, "integer value of priority"),
        (spec.preemption_policy, policy, "string value of PreemptionPolicy"),
    ):
        if given is not None and given != wanted:
            why = (
                f"the {what} ({given}) must not be provided in pod spec; priority admission controller computed "
                f"{wanted} from the given PriorityClass name"
            )
            raise answers.forbidden(POD, pod.metadata.name, why)
    name = spec.priority_class_name or found.metadata.name
    return replace(pod, spec=replace(spec, priority_class_name=name, priority=found.value, preemption_policy=policy))


def check_default(new: PriorityClass, others: Iterable[PriorityClass]) -> None:
    """Only one class is that of pods which name none."""
    if not new.global_default:
        return
    for other in others:
        if other.global_default and other.metadata.name != new.metadata.name:
            why = f"PriorityClass {other.metadata.name} is already marked as default. Only one default can exist"
            raise answers.forbidden(PRIORITY_CLASS, new.metadata.name, why)
