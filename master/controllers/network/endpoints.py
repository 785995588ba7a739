"""Endpoints and EndpointSlices of services: the pods behind a service, and which of them are ready. Pure.

A pod belongs to a service of its namespace when it has an address and the labels, until it has ended. A named port is
looked up in each pod; pods with different numbers are listed apart. Objects are annotated with the time of the change
that triggered them, so that clients can measure the delay. Only services that events concern are reconciled.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from api.core.endpoints import (
    SERVICE_LABEL,
    Endpoint,
    EndpointAddress,
    EndpointConditions,
    EndpointPort,
    Endpoints,
    EndpointSlice,
    EndpointSubset,
    SlicePort,
    slice_ports,
)
from api.core.pod import FINAL_PHASES, Pod
from api.core.resources import all_containers
from api.core.services import EXTERNAL_NAME, Service, ServicePort, is_headless
from api.meta.types import Object, ObjectMeta, ObjectReference
from api.network.addresses import out_of_reach
from master.controllers.actions import Action, Create, ForceDelete, Update, WriteAction
from master.controllers.context import Lister
from master.resources.metadata import controller_reference
from master.resources.pods import is_pod_ready
from master.storage.interface import WatchEvent

MANAGED_BY_LABEL = "endpointslice.kubernetes.io/managed-by"
CONTROLLER_NAME = "endpointslice-controller.k8s.io"
OVER_CAPACITY_ANNOTATION = "endpoints.kubernetes.io/over-capacity"
TRIGGER_TIME_ANNOTATION = "endpoints.kubernetes.io/last-change-trigger-time"
HEADLESS_LABEL = "service.kubernetes.io/headless"
MAX_ADDRESSES_PER_ENDPOINTS = 1000
MAX_ENDPOINTS_PER_SLICE = 100


@dataclass(frozen=True, slots=True)
class Backend:
    """A pod behind a service, and how it is."""

    pod: Pod
    ready: bool
    serving: bool
    terminating: bool


Ports = tuple[EndpointPort, ...]
SlicePorts = tuple[SlicePort, ...]


def reconcile(
    services: Iterable[Service],
    pods: Iterable[Pod],
    endpoints: Iterable[Endpoints],
    slices: Iterable[EndpointSlice],
    now: datetime.datetime,
) -> Iterator[WriteAction]:
    """Everything that is to be written. Endpoints that people made for services without a selector stay."""
    labelled: dict[tuple[str, str, str], list[Pod]] = defaultdict(list)
    for pod in pods:
        for label in pod.metadata.labels.items():
            labelled[(pod.metadata.namespace, *label)].append(pod)
    known = {(item.metadata.namespace, item.metadata.name): item for item in endpoints}
    mine: dict[tuple[str, str], list[EndpointSlice]] = defaultdict(list)
    for item in slices:
        if item.metadata.labels.get(MANAGED_BY_LABEL) == CONTROLLER_NAME:
            mine[(item.metadata.namespace, item.metadata.labels.get(SERVICE_LABEL, ""))].append(item)
    for service in services:
        key = (service.metadata.namespace, service.metadata.name)
        own = mine.pop(key, [])
        if service.spec.selector and service.spec.type != EXTERNAL_NAME and not service.metadata.deletion_timestamp:
            label = min(service.spec.selector.items())
            found = backends(service, labelled.get((service.metadata.namespace, *label), ()))
            yield from _endpoints(service, found, known.get(key), now)
            yield from _slices(service, found, own, now)
        else:
            yield from (ForceDelete(item) for item in own)
    for left in mine.values():
        yield from (ForceDelete(item) for item in left)


def backends(service: Service, pods: Iterable[Pod]) -> dict[Ports, list[Backend]]:
    """The pods behind a service, by the ports at which they serve it, in the order of their names."""
    found: dict[Ports, list[Backend]] = defaultdict(list)
    wanted = service.spec.selector.items()
    behind = (
        pod
        for pod in pods
        if wanted <= pod.metadata.labels.items()
        and pod.status.phase not in FINAL_PHASES
        and not out_of_reach(pod.status.pod_ip)
    )
    for pod in sorted(behind, key=lambda one: one.metadata.name):
        ports = tuple(port for each in service.spec.ports if (port := _port_at(each, pod)) is not None)
        found[ports].append(_backend(service, pod))
    return dict(found)


def _backend(service: Service, pod: Pod) -> Backend:
    terminating = pod.metadata.deletion_timestamp is not None
    serving = is_pod_ready(pod)
    return Backend(pod, (serving and not terminating) or service.spec.publish_not_ready_addresses, serving, terminating)


def _port_at(port: ServicePort, pod: Pod) -> EndpointPort | None:
    number = port.target_port or port.port
    if isinstance(number, str):
        named = (row for one in all_containers(pod) for row in one.ports if row.name == number)
        row = next((row for row in named if (row.protocol or "TCP") == port.protocol), None)
        if row is None:
            return None
        number = row.container_port
    return EndpointPort(port=number, name=port.name, protocol=port.protocol, app_protocol=port.app_protocol)


def _target(pod: Pod) -> ObjectReference:
    return ObjectReference(
        kind=pod.KIND, namespace=pod.metadata.namespace, name=pod.metadata.name, uid=pod.metadata.uid
    )


def _hostname(service: Service, pod: Pod) -> str:
    return pod.spec.hostname if pod.spec.hostname and pod.spec.subdomain == service.metadata.name else ""


# --- Endpoints --------------------------------------------------------------------------------------------------------


def _endpoints(
    service: Service, found: Mapping[Ports, Sequence[Backend]], known: Endpoints | None, now: datetime.datetime
) -> Iterator[WriteAction]:
    left, subsets = MAX_ADDRESSES_PER_ENDPOINTS, []
    for ports, rows in sorted(found.items(), key=lambda row: tuple(port.port for port in row[0])):
        steady = [row for row in rows if not row.terminating or row.ready][:left]
        left -= len(steady)
        good = tuple(_address(service, row.pod) for row in steady if row.ready)
        bad = tuple(_address(service, row.pod) for row in steady if not row.ready)
        if good or bad:
            subsets.append(EndpointSubset(addresses=good, not_ready_addresses=bad, ports=ports))
    labels = _marked(service)
    over = sum(len(rows) for rows in found.values()) > MAX_ADDRESSES_PER_ENDPOINTS
    annotations = {OVER_CAPACITY_ANNOTATION: "truncated"} if over else {}
    stamped = annotations | _trigger(now)
    if known is None:
        meta = ObjectMeta(
            name=service.metadata.name,
            namespace=service.metadata.namespace,
            labels=labels,
            annotations=stamped,
            owner_references=(controller_reference(service),),
        )
        yield Create(Endpoints(metadata=meta, subsets=tuple(subsets)))
        return
    if known.subsets != tuple(subsets):
        annotations = stamped
    elif TRIGGER_TIME_ANNOTATION in known.metadata.annotations:
        annotations[TRIGGER_TIME_ANNOTATION] = known.metadata.annotations[TRIGGER_TIME_ANNOTATION]
    metadata = replace(known.metadata, labels=labels, annotations=annotations)
    yield from _changed(replace(known, metadata=metadata, subsets=tuple(subsets)), known)


def _changed(new: Object, old: Object) -> Iterator[Update]:
    if new != old:
        yield Update(new, old)


def _marked(service: Service) -> dict[str, str]:
    """The labels of the service, and that which tells service proxies to leave one without an address alone."""
    labels = {key: text for key, text in service.metadata.labels.items() if key != HEADLESS_LABEL}
    return labels | ({HEADLESS_LABEL: ""} if is_headless(service) else {})


def _trigger(now: datetime.datetime) -> dict[str, str]:
    return {TRIGGER_TIME_ANNOTATION: now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}


def _address(service: Service, pod: Pod) -> EndpointAddress:
    return EndpointAddress(
        ip=pod.status.pod_ip,
        hostname=_hostname(service, pod),
        node_name=pod.spec.node_name or None,
        target_ref=_target(pod),
    )


# --- EndpointSlices ---------------------------------------------------------------------------------------------------


def _slices(
    service: Service,
    found: Mapping[Ports, Sequence[Backend]],
    own: Sequence[EndpointSlice],
    now: datetime.datetime,
) -> Iterator[WriteAction]:
    """An endpoint stays in the slice that it is in; new ones fill what there is before another is made.

    A service with nothing behind it has one empty slice, by which clients see that it was looked at.
    """
    by_ports: dict[SlicePorts, list[EndpointSlice]] = defaultdict(list)
    for item in sorted(own, key=lambda one: one.metadata.name):
        by_ports[item.ports].append(item)
    if not found:
        yield from _placeholder(service, by_ports.pop((), []), now)
    for ports, rows in found.items():
        wanted = slice_ports(ports)
        yield from _packed(service, wanted, rows, by_ports.pop(wanted, []), now)
    for left in by_ports.values():
        yield from (ForceDelete(item) for item in left)


def _placeholder(service: Service, known: Sequence[EndpointSlice], now: datetime.datetime) -> Iterator[WriteAction]:
    if not known:
        yield Create(_made(service, (), (), now))
    for item in known[:1]:
        yield from _changed(_filled(service, item, (), now), item)
    for item in known[1:]:
        yield ForceDelete(item)


def _packed(
    service: Service,
    ports: SlicePorts,
    rows: Sequence[Backend],
    known: Sequence[EndpointSlice],
    now: datetime.datetime,
) -> Iterator[WriteAction]:
    wanted = {row.pod.metadata.uid: _endpoint(service, row) for row in rows}
    kept: list[list[Endpoint]] = []
    for item in known:
        uids = [row.target_ref.uid for row in item.endpoints if row.target_ref is not None]
        kept.append([wanted.pop(uid) for uid in uids if uid in wanted])
    waiting = list(wanted.values())
    for item, endpoints in zip(known, kept, strict=True):
        room = MAX_ENDPOINTS_PER_SLICE - len(endpoints)
        full = (*endpoints, *waiting[:room])
        waiting = waiting[room:]
        if full:
            yield from _changed(_filled(service, item, full, now), item)
        else:
            yield ForceDelete(item)
    for start in range(0, len(waiting), MAX_ENDPOINTS_PER_SLICE):
        yield Create(_made(service, ports, tuple(waiting[start : start + MAX_ENDPOINTS_PER_SLICE]), now))


def _filled(
    service: Service, item: EndpointSlice, endpoints: tuple[Endpoint, ...], now: datetime.datetime
) -> EndpointSlice:
    """The slice with these endpoints. A change of them counts up the generation."""
    metadata = replace(item.metadata, labels=_labels(service))
    if item.endpoints != endpoints:
        annotations = item.metadata.annotations | _trigger(now)
        metadata = replace(metadata, generation=metadata.generation + 1, annotations=annotations)
    return replace(item, metadata=metadata, endpoints=endpoints)


def _labels(service: Service) -> dict[str, str]:
    names = {SERVICE_LABEL: service.metadata.name, MANAGED_BY_LABEL: CONTROLLER_NAME}
    return {**_marked(service), **names}


def _made(
    service: Service, ports: SlicePorts, endpoints: tuple[Endpoint, ...], now: datetime.datetime
) -> EndpointSlice:
    return EndpointSlice(
        metadata=ObjectMeta(
            generate_name=f"{service.metadata.name}-",
            namespace=service.metadata.namespace,
            labels=_labels(service),
            annotations=_trigger(now),
            owner_references=(controller_reference(service),),
        ),
        address_type="IPv4",
        endpoints=endpoints,
        ports=ports,
    )


def _endpoint(service: Service, row: Backend) -> Endpoint:
    return Endpoint(
        addresses=(row.pod.status.pod_ip,),
        conditions=EndpointConditions(ready=row.ready, serving=row.serving, terminating=row.terminating),
        hostname=_hostname(service, row.pod) or None,
        node_name=row.pod.spec.node_name or None,
        target_ref=_target(row.pod),
    )


Name = tuple[str, str]
"""Namespace and name."""

Label = tuple[str, str, str]
"""Namespace, key and value."""

ENDPOINT_KINDS = ("Service", "Pod", "Endpoints", "EndpointSlice")


class EndpointQueue:
    """`tell` it of every event of KINDS from before the first pass on; `passes` is what there is to be written."""

    def __init__(self) -> None:
        self._filled = False
        self._waiting: set[Name] = set()
        self._services = _LabelIndex()
        self._pods = _LabelIndex()
        self._slices = _LabelIndex()

    def tell(self, event: WatchEvent) -> None:
        """Something was written or removed."""
        if self._filled:
            self._note(event.record.object, is_gone=event.type == "DELETED")

    def passes(self, lister: Lister) -> Iterator[Action]:
        """Everything that is to be written now."""
        if not self._filled:
            self._filled = True
            for kind in ENDPOINT_KINDS:
                for item in lister.list(kind):
                    self._note(item)
        for name in sorted(self._waiting):
            is_done = True
            for outcome in self._of(name, lister):
                is_done = False
                yield outcome
            if is_done:
                self._waiting.discard(name)

    def _of(self, name: Name, lister: Lister) -> Iterator[Action]:
        def found(kind: str, names: Iterable[str]) -> list[Any]:
            each = (lister.get(kind, one, name[0]) for one in sorted(names))
            return [item for item in each if item is not None]

        services, known = found("Service", [name[1]]), found("Endpoints", [name[1]])
        pods = found("Pod", self._pods.under(*(_index_label(one) for one in services)))
        slices = found("EndpointSlice", self._slices.under((*name, "")))
        yield from reconcile(services, pods, known, slices, lister.now)

    def _note(self, item: Object, *, is_gone: bool = False) -> None:
        meta = item.metadata
        name = (meta.namespace, meta.name)
        if isinstance(item, Service):
            self._services.put(name, () if is_gone or not item.spec.selector else (_index_label(item),))
            self._waiting.add(name)
        elif item.KIND == "Endpoints":
            self._waiting.add(name)
        elif item.KIND == "EndpointSlice":
            self._note_slice(name, meta.labels, is_gone=is_gone)
        else:
            labels = [(meta.namespace, *label) for label in meta.labels.items()]
            either = {*self._pods.labels(name), *labels}
            self._pods.put(name, () if is_gone else labels)
            self._waiting.update((meta.namespace, one) for one in self._services.under(*either))

    def _note_slice(self, name: Name, labels: Mapping[str, str], *, is_gone: bool) -> None:
        """One that we wrote is under its service, as a label without a value."""
        service = labels.get(SERVICE_LABEL, "")
        is_ours = labels.get(MANAGED_BY_LABEL) == CONTROLLER_NAME and not is_gone
        either = {*self._slices.labels(name), (name[0], service, "")}
        self._slices.put(name, ((name[0], service, ""),) if is_ours else ())
        self._waiting.update((namespace, one) for namespace, one, _ in either if one)


def _index_label(service: Service) -> Label:
    """The label by which the pods of a service are looked for: one of those that it selects by."""
    return (service.metadata.namespace, *min(service.spec.selector.items(), default=("", "")))


class _LabelIndex:
    """Names by label, and labels by name."""

    def __init__(self) -> None:
        self._names: defaultdict[Label, set[str]] = defaultdict(set)
        self._labels: dict[Name, tuple[Label, ...]] = {}

    def put(self, name: Name, labels: Iterable[Label]) -> None:
        for label in self._labels.pop(name, ()):
            self._names[label].discard(name[1])
            if not self._names[label]:
                del self._names[label]
        if after := tuple(labels):
            self._labels[name] = after
            for label in after:
                self._names[label].add(name[1])

    def labels(self, name: Name) -> tuple[Label, ...]:
        return self._labels.get(name, ())

    def under(self, *labels: Label) -> set[str]:
        return {name for label in labels for name in self._names.get(label, ())}
