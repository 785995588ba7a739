"""RuntimeClass: requires that the RuntimeClass of a new pod exists, and adds its overhead and its nodes. Pure."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from api.core.pod import Pod
from master import errors
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.errors import StatusError
from master.resources.nodes import Overhead, RuntimeClass, Scheduling
from master.resources.pods import PODS
from master.resources.quantities import parse_all
from master.resources.scheme import group_resource
from master.storage.interface import Key, Transaction


class RuntimeClassPlugin(AdmissionPlugin):
    """Completes new pods with what their RuntimeClass says."""

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        if request.operation is not Operation.CREATE or not isinstance(obj, Pod):
            return obj
        name = obj.spec.runtime_class_name
        found = objects.get(Key(group_resource(RuntimeClass), "", name)) if name else None
        return apply_runtime_class(obj, found)


def apply_runtime_class(pod: Pod, runtime_class: RuntimeClass | None) -> Pod:
    """Return the pod with the overhead and the nodes of its RuntimeClass, None if there is none of that name.

    Raises Forbidden if there is none, and if the pod contradicts it.
    """
    spec = pod.spec
    if spec.runtime_class_name and runtime_class is None:
        raise _rejected(pod, f'pod rejected: RuntimeClass "{spec.runtime_class_name}" not found')
    of_class = runtime_class or RuntimeClass()
    overhead = (of_class.overhead or Overhead()).pod_fixed
    if spec.overhead and not overhead:
        raise _rejected(pod, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
    if spec.overhead and parse_all(spec.overhead) != parse_all(overhead):
        raise _rejected(pod, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
    scheduling = of_class.scheduling or Scheduling()
    for key, value in scheduling.node_selector.items():
        own = spec.node_selector.get(key, value)
        if own != value:
            sides = ("runtimeClass.scheduling.nodeSelector", value), ("pod.spec.nodeSelector", own)
            raise _rejected(pod, "conflict: " + "; ".join(f"{path}[{key}] = {label}" for path, label in sides))
    added = tuple(toleration for toleration in scheduling.tolerations if toleration not in spec.tolerations)
    if not (overhead or scheduling.node_selector or added):
        return pod
    completed = replace(
        spec,
        overhead=overhead,
        node_selector={**spec.node_selector, **scheduling.node_selector},
        tolerations=(*spec.tolerations, *added),
    )
    return replace(pod, spec=completed)


def _rejected(pod: Pod, reason: str) -> StatusError:
    return errors.forbidden(PODS, pod.metadata.name, reason)
