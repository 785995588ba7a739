"""LimitRanger: default requests and limits of containers, and their bounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from api.core.pod import Container, Pod
from api.core.storage import PersistentVolumeClaim
from api.meta.quantity import Amount
from api.validation.registry import default
from master import errors
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.resources import quantities
from master.resources.metadata import with_metadata
from master.resources.pods import PODS, RESIZE
from master.resources.quantities import Quantities, RawQuantities
from master.resources.quotas import CLAIM_LIMIT, CONTAINER_LIMIT, POD_LIMIT, LimitRange, LimitRangeItem
from master.resources.resource import AnyResource
from master.resources.scheme import group_resource
from master.storage.interface import Transaction

LIMIT_RANGER_ANNOTATION = "kubernetes.io/limit-ranger"
"""Annotation of a pod with the requests and limits that were set by default."""


class LimitRanger(AdmissionPlugin):
    """Completes new pods with default requests and limits; rejects pods and claims beyond the bounds."""

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        if request.operation is not Operation.CREATE or not isinstance(obj, Pod):
            return obj
        completed = apply_limit_range(obj, objects.list(group_resource(LimitRange), obj.metadata.namespace))
        if completed is obj:
            return obj
        return default(completed, PODS.rules)

    def reserve(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        """Check a resized pod here, because `validate` sees the body of a subresource and not its result."""
        if isinstance(obj, Pod) and request.subresource == RESIZE:
            ranges = objects.list(group_resource(LimitRange), obj.metadata.namespace)
            check_limit_ranges(request.resource, obj, ranges)
        return obj

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        if request.operation is Operation.DELETE or request.subresource:
            return
        is_new_pod = isinstance(obj, Pod) and request.operation is Operation.CREATE
        if is_new_pod or isinstance(obj, PersistentVolumeClaim):
            ranges = objects.list(group_resource(LimitRange), obj.metadata.namespace)
            check_limit_ranges(request.resource, obj, ranges)


def apply_limit_range(pod: Pod, ranges: Iterable[LimitRange]) -> Pod:
    """Return the pod with default requests and limits of its containers."""
    for limit_range in ranges:
        pod = _with_defaults(pod, [limit for limit in limit_range.spec.limits if limit.type == CONTAINER_LIMIT])
    return pod


def _with_defaults(pod: Pod, items: Iterable[LimitRangeItem]) -> Pod:
    requests = {name: text for limit in items for name, text in limit.default_request.items()}
    limits = {name: text for limit in items for name, text in limit.default.items()}
    notes: list[str] = []
    completed = []
    for container_type, containers in (
        ("container", pod.spec.containers),
        ("init container", pod.spec.init_containers),
    ):
        for container in containers:
            for amount_type, amounts, defaults in (
                ("request", container.resources.requests, requests),
                ("limit", container.resources.limits, limits),
            ):
                if missing := sorted(set(defaults) - set(amounts)):
                    notes.append(f"{', '.join(missing)} {amount_type} for {container_type} {container.name}")
        completed.append(tuple(_with_amounts(container, requests, limits) for container in containers))
    if not notes:
        return pod
    annotations = {**pod.metadata.annotations, LIMIT_RANGER_ANNOTATION: "LimitRanger plugin set: " + "; ".join(notes)}
    spec = replace(pod.spec, containers=completed[0], init_containers=completed[1])
    return with_metadata(replace(pod, spec=spec), annotations=annotations)


def _with_amounts(container: Container, requests: RawQuantities, limits: RawQuantities) -> Container:
    old = container.resources
    merged = replace(old, requests={**requests, **old.requests}, limits={**limits, **old.limits})
    return replace(container, resources=merged)


def check_limit_ranges(resource: AnyResource, obj: Any, ranges: Iterable[LimitRange]) -> None:
    """Require that a pod or a claim is within the bounds of every LimitRange. Raises Forbidden."""
    for limit_range in ranges:
        problems = list(
            dict.fromkeys(problem for bounds in limit_range.spec.limits for problem in _limit_problems(obj, bounds))
        )
        if problems:
            reason = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
            raise errors.forbidden(resource, obj.metadata.name, reason)


def _limit_problems(obj: Any, bounds: LimitRangeItem) -> Iterator[str]:
    if isinstance(obj, Pod) and bounds.type == CONTAINER_LIMIT:
        for container in (*obj.spec.containers, *obj.spec.init_containers):
            resources = container.resources
            yield from _bound_problems(
                bounds, quantities.parse_all(resources.requests), quantities.parse_all(resources.limits)
            )
    elif isinstance(obj, Pod) and bounds.type == POD_LIMIT:
        spec = obj.spec
        yield from _bound_problems(
            bounds, quantities.pod_total(spec, quantities.requests), quantities.pod_total(spec, quantities.limits)
        )
    elif isinstance(obj, PersistentVolumeClaim) and bounds.type == CLAIM_LIMIT:
        requests = quantities.parse_all(obj.spec.resources.requests)
        yield from _min_problem(bounds, requests, {})
        for name, maximum in sorted(quantities.parse_all(bounds.max).items()):
            yield from _max_problem(
                f"maximum {name} usage per {bounds.type} is {maximum}", "request", requests.get(name), maximum
            )


def _bound_problems(bounds: LimitRangeItem, requests: Quantities, limits: Quantities) -> Iterator[str]:
    yield from _min_problem(bounds, requests, limits)
    for name, maximum in sorted(quantities.parse_all(bounds.max).items()):
        message, limit, request = (
            f"maximum {name} usage per {bounds.type} is {maximum}",
            limits.get(name),
            requests.get(name),
        )
        limit_problems = list(_max_problem(message, "limit", limit, maximum))
        yield from limit_problems or (_max_problem(message, "request", request, maximum) if request is not None else ())
    for name, ratio in sorted(quantities.parse_all(bounds.max_limit_request_ratio).items()):
        yield from _ratio_problem(
            f"{name} max limit to request ratio per {bounds.type} is {ratio}", name, ratio, requests, limits
        )


def _min_problem(bounds: LimitRangeItem, requests: Quantities, limits: Quantities) -> Iterator[str]:
    for name, minimum in sorted(quantities.parse_all(bounds.min).items()):
        message, request, limit = (
            f"minimum {name} usage per {bounds.type} is {minimum}",
            requests.get(name),
            limits.get(name),
        )
        if request is None:
            yield f"{message}.  No request is specified"
        elif request.milli < minimum.milli:
            yield f"{message}, but request is {request}"
        elif limit is not None and limit.milli < minimum.milli:
            yield f"{message}, but limit is {limit}"


def _max_problem(message: str, amount_type: str, amount: Amount | None, maximum: Amount) -> Iterator[str]:
    if amount is None:
        yield f"{message}.  No {amount_type} is specified"
    elif amount.milli > maximum.milli:
        yield f"{message}, but {amount_type} is {amount}"


def _ratio_problem(message: str, name: str, ratio: Amount, requests: Quantities, limits: Quantities) -> Iterator[str]:
    request, limit = requests.get(name, Amount()), limits.get(name, Amount())
    if not request.milli:
        yield f"{message}, but no request is specified or request is 0"
    elif not limit.milli:
        yield f"{message}, but no limit is specified or limit is 0"
    elif limit.milli * 1000 > ratio.milli * request.milli:
        yield f"{message}, but provided ratio is {limit.ratio_to(request):.6f}"
