"""LimitRanger: default requests and limits of containers, and their bounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from api.core.pod import Container, Pod
from api.core.storage import PersistentVolumeClaim
from api.meta.quantity import Amount
from api.validation.registry import check, default
from master import errors
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.resources import quantities
from master.resources.metadata import with_metadata
from master.resources.pods import PODS
from master.resources.quantities import Quantities, RawQuantities
from master.resources.quotas import CLAIM_LIMIT, CONTAINER_LIMIT, POD_LIMIT, LimitRange, LimitRangeItem
from master.resources.resource import AnyResource
from master.resources.scheme import group_resource
from master.storage.interface import Transaction

LIMIT_RANGER_ANNOTATION = "kubernetes.io/limit-ranger"
"""Annotation of a pod: what was filled in."""


class LimitRanger(AdmissionPlugin):
    """Completes new pods with default requests and limits; rejects pods and claims beyond the bounds."""

    def mutate(self, request: AdmissionRequest, item: Any, objects: Transaction) -> Any:
        if request.operation is not Operation.CREATE or not isinstance(item, Pod):
            return item
        completed = apply_limit_range(item, objects.list(group_resource(LimitRange), item.metadata.namespace))
        if completed is item:
            return item
        completed = default(completed, PODS.rules)
        if problems := list(check(completed, PODS.rules)):
            raise errors.invalid(PODS, item.metadata.name, problems)
        return completed

    def validate(self, request: AdmissionRequest, item: Any, objects: Transaction) -> None:
        if request.operation is Operation.DELETE or request.subresource:
            return
        is_new_pod = isinstance(item, Pod) and request.operation is Operation.CREATE
        if is_new_pod or isinstance(item, PersistentVolumeClaim):
            ranges = objects.list(group_resource(LimitRange), item.metadata.namespace)
            check_limit_ranges(request.resource, item, ranges)


def apply_limit_range(pod: Pod, ranges: Iterable[LimitRange]) -> Pod:
    """The pod with the requests and limits that its containers do not name."""
    for one in ranges:
        pod = _with_defaults(pod, [row for row in one.spec.limits if row.type == CONTAINER_LIMIT])
    return pod


def _with_defaults(pod: Pod, rows: Iterable[LimitRangeItem]) -> Pod:
    requests = {name: text for row in rows for name, text in row.default_request.items()}
    limits = {name: text for row in rows for name, text in row.default.items()}
    notes: list[str] = []
    parts = []
    for words, found in (("container", pod.spec.containers), ("init container", pod.spec.init_containers)):
        for container in found:
            for part, given, defaults in (
                ("request", container.resources.requests, requests),
                ("limit", container.resources.limits, limits),
            ):
                if missing := sorted(set(defaults) - set(given)):
                    notes.append(f"{', '.join(missing)} {part} for {words} {container.name}")
        parts.append(tuple(_with_amounts(container, requests, limits) for container in found))
    if not notes:
        return pod
    annotations = {**pod.metadata.annotations, LIMIT_RANGER_ANNOTATION: "LimitRanger plugin set: " + "; ".join(notes)}
    spec = replace(pod.spec, containers=parts[0], init_containers=parts[1])
    return with_metadata(replace(pod, spec=spec), annotations=annotations)


def _with_amounts(container: Container, requests: RawQuantities, limits: RawQuantities) -> Container:
    old = container.resources
    merged = replace(old, requests={**requests, **old.requests}, limits={**limits, **old.limits})
    return replace(container, resources=merged)


def check_limit_ranges(resource: AnyResource, item: Any, ranges: Iterable[LimitRange]) -> None:
    """Raise the refusal of the first LimitRange whose bounds a pod or a claim leaves."""
    for one in ranges:
        found = list(dict.fromkeys(problem for row in one.spec.limits for problem in _limit_problems(item, row)))
        if found:
            why = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
            raise errors.forbidden(resource, item.metadata.name, why)


def _limit_problems(item: Any, row: LimitRangeItem) -> Iterator[str]:
    if isinstance(item, Pod) and row.type == CONTAINER_LIMIT:
        for container in (*item.spec.containers, *item.spec.init_containers):
            resources = container.resources
            yield from _bound_problems(
                row, quantities.parse_all(resources.requests), quantities.parse_all(resources.limits)
            )
    elif isinstance(item, Pod) and row.type == POD_LIMIT:
        spec = item.spec
        yield from _bound_problems(
            row, quantities.pod_total(spec, quantities.requests), quantities.pod_total(spec, quantities.limits)
        )
    elif isinstance(item, PersistentVolumeClaim) and row.type == CLAIM_LIMIT:
        asked = quantities.parse_all(item.spec.resources.requests)
        yield from _min_problem(row, asked, {})
        for name, most in sorted(quantities.parse_all(row.max).items()):
            yield from _max_problem(f"maximum {name} usage per {row.type} is {most}", "request", asked.get(name), most)


def _bound_problems(row: LimitRangeItem, requests: Quantities, limits: Quantities) -> Iterator[str]:
    yield from _min_problem(row, requests, limits)
    for name, most in sorted(quantities.parse_all(row.max).items()):
        words, limit, request = f"maximum {name} usage per {row.type} is {most}", limits.get(name), requests.get(name)
        over = list(_max_problem(words, "limit", limit, most))
        yield from over or (_max_problem(words, "request", request, most) if request is not None else ())
    for name, ratio in sorted(quantities.parse_all(row.max_limit_request_ratio).items()):
        yield from _ratio_problem(
            f"{name} max limit to request ratio per {row.type} is {ratio}", name, ratio, requests, limits
        )


def _min_problem(row: LimitRangeItem, requests: Quantities, limits: Quantities) -> Iterator[str]:
    for name, least in sorted(quantities.parse_all(row.min).items()):
        words, request, limit = f"minimum {name} usage per {row.type} is {least}", requests.get(name), limits.get(name)
        if request is None:
            yield f"{words}.  No request is specified"
        elif request.milli < least.milli:
            yield f"{words}, but request is {request}"
        elif limit is not None and limit.milli < least.milli:
            yield f"{words}, but limit is {limit}"


def _max_problem(words: str, part: str, found: Amount | None, most: Amount) -> Iterator[str]:
    if found is None:
        yield f"{words}.  No {part} is specified"
    elif found.milli > most.milli:
        yield f"{words}, but {part} is {found}"


def _ratio_problem(words: str, name: str, ratio: Amount, requests: Quantities, limits: Quantities) -> Iterator[str]:
    request, limit = requests.get(name, Amount()), limits.get(name, Amount())
    if not request.milli:
        yield f"{words}, but no request is specified or request is 0"
    elif not limit.milli:
        yield f"{words}, but no limit is specified or limit is 0"
    elif limit.milli * 1000 > ratio.milli * request.milli:
        yield f"{words}, but provided ratio is {limit.ratio_to(request):.6f}"
