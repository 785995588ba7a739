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
from api.core.resource_requests import all_containers
from api.core.services import EXTERNAL_NAME, Service, ServicePort, is_headless
from api.meta.types import O, Object, ObjectMeta, ObjectReference
from api.network.addresses import unreachable_reason
from master.controllers.actions import Action, Create, Failed, ForceDelete, Update, WriteAction, isolate_errors
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
    """A pod behind a service, and its conditions."""

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
) -> Iterator[WriteAction | Failed]:
    """Yield the writes for these services. Endpoints that users wrote for services without a selector stay."""
    pods_by_label: dict[tuple[str, str, str], list[Pod]] = defaultdict(list)
    for pod in pods:
        for label in pod.metadata.labels.items():
            pods_by_label[(pod.metadata.namespace, *label)].append(pod)
    endpoints_by_name = {(existing.metadata.namespace, existing.metadata.name): existing for existing in endpoints}
    slices_by_service: dict[tuple[str, str], list[EndpointSlice]] = defaultdict(list)
    for endpoint_slice in slices:
        if endpoint_slice.metadata.labels.get(MANAGED_BY_LABEL) == CONTROLLER_NAME:
            slices_by_service[
                (endpoint_slice.metadata.namespace, endpoint_slice.metadata.labels.get(SERVICE_LABEL, ""))
            ].append(endpoint_slice)

    def sync_service(service: Service) -> Iterator[WriteAction]:
        key = (service.metadata.namespace, service.metadata.name)
        own_slices = slices_by_service.pop(key, [])
        if service.spec.selector and service.spec.type != EXTERNAL_NAME and not service.metadata.deletion_timestamp:
            label = min(service.spec.selector.items())
            backends_by_ports = backends(service, pods_by_label.get((service.metadata.namespace, *label), ()))
            yield from _endpoints(service, backends_by_ports, endpoints_by_name.get(key), now)
            yield from _slices(service, backends_by_ports, own_slices, now)
        else:
            yield from (ForceDelete(endpoint_slice) for endpoint_slice in own_slices)

    yield from isolate_errors(services, sync_service)
    for unused in slices_by_service.values():
        yield from (ForceDelete(endpoint_slice) for endpoint_slice in unused)


def backends(service: Service, pods: Iterable[Pod]) -> dict[Ports, list[Backend]]:
    """Return the pods behind a service by the ports at which they serve it, in the order of their names."""
    backends_by_ports: dict[Ports, list[Backend]] = defaultdict(list)
    selector = service.spec.selector.items()
    matching = (
        pod
        for pod in pods
        if selector <= pod.metadata.labels.items()
        and pod.status.phase not in FINAL_PHASES
        and not unreachable_reason(pod.status.pod_ip)
    )
    for pod in sorted(matching, key=lambda pod: pod.metadata.name):
        ports = tuple(port for service_port in service.spec.ports if (port := _port_at(service_port, pod)) is not None)
        backends_by_ports[ports].append(_backend(service, pod))
    return dict(backends_by_ports)


def _backend(service: Service, pod: Pod) -> Backend:
    terminating = pod.metadata.deletion_timestamp is not None
    serving = is_pod_ready(pod)
    return Backend(pod, (serving and not terminating) or service.spec.publish_not_ready_addresses, serving, terminating)


def _port_at(port: ServicePort, pod: Pod) -> EndpointPort | None:
    number = port.target_port or port.port
    if isinstance(number, str):
        named_ports = (
            container_port
            for container in all_containers(pod)
            for container_port in container.ports
            if container_port.name == number
        )
        container_port = next(
            (container_port for container_port in named_ports if (container_port.protocol or "TCP") == port.protocol),
            None,
        )
        if container_port is None:
            return None
        number = container_port.container_port
    return EndpointPort(port=number, name=port.name, protocol=port.protocol, app_protocol=port.app_protocol)


def _target(pod: Pod) -> ObjectReference:
    return ObjectReference(
        kind=pod.KIND, namespace=pod.metadata.namespace, name=pod.metadata.name, uid=pod.metadata.uid
    )


def _hostname(service: Service, pod: Pod) -> str:
    return pod.spec.hostname if pod.spec.hostname and pod.spec.subdomain == service.metadata.name else ""


# --- Endpoints --------------------------------------------------------------------------------------------------------


def _endpoints(
    service: Service,
    backends_by_ports: Mapping[Ports, Sequence[Backend]],
    existing: Endpoints | None,
    now: datetime.datetime,
) -> Iterator[WriteAction]:
    room, subsets = MAX_ADDRESSES_PER_ENDPOINTS, []
    for ports, backends in sorted(backends_by_ports.items(), key=lambda entry: tuple(port.port for port in entry[0])):
        included = [backend for backend in backends if not backend.terminating or backend.ready][:room]
        room -= len(included)
        ready = tuple(_address(service, backend.pod) for backend in included if backend.ready)
        not_ready = tuple(_address(service, backend.pod) for backend in included if not backend.ready)
        if ready or not_ready:
            subsets.append(EndpointSubset(addresses=ready, not_ready_addresses=not_ready, ports=ports))
    labels = _service_labels(service)
    is_truncated = sum(len(backends) for backends in backends_by_ports.values()) > MAX_ADDRESSES_PER_ENDPOINTS
    annotations = {OVER_CAPACITY_ANNOTATION: "truncated"} if is_truncated else {}
    triggered = annotations | _trigger_time(now)
    if existing is None:
        meta = ObjectMeta(
            name=service.metadata.name,
            namespace=service.metadata.namespace,
            labels=labels,
            annotations=triggered,
            owner_references=(controller_reference(service),),
        )
        yield Create(Endpoints(metadata=meta, subsets=tuple(subsets)))
        return
    if existing.subsets != tuple(subsets):
        annotations = triggered
    elif TRIGGER_TIME_ANNOTATION in existing.metadata.annotations:
        annotations[TRIGGER_TIME_ANNOTATION] = existing.metadata.annotations[TRIGGER_TIME_ANNOTATION]
    metadata = replace(existing.metadata, labels=labels, annotations=annotations)
    yield from _update_if_changed(replace(existing, metadata=metadata, subsets=tuple(subsets)), existing)


def _update_if_changed(new: Object, old: Object) -> Iterator[Update]:
    if new != old:
        yield Update(new, old)


def _service_labels(service: Service) -> dict[str, str]:
    """Return the labels of a service, and the label that tells service proxies to ignore one without a cluster IP."""
    labels = {key: value for key, value in service.metadata.labels.items() if key != HEADLESS_LABEL}
    return labels | ({HEADLESS_LABEL: ""} if is_headless(service) else {})


def _trigger_time(now: datetime.datetime) -> dict[str, str]:
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
    backends_by_ports: Mapping[Ports, Sequence[Backend]],
    own_slices: Sequence[EndpointSlice],
    now: datetime.datetime,
) -> Iterator[WriteAction]:
    """Yield the writes of slices. An endpoint stays in its slice. New endpoints fill existing slices before a new one
    is created. A service without backends has one empty slice, which shows clients that it was processed.
    """
    by_ports: dict[SlicePorts, list[EndpointSlice]] = defaultdict(list)
    for endpoint_slice in sorted(own_slices, key=lambda own_slice: own_slice.metadata.name):
        by_ports[endpoint_slice.ports].append(endpoint_slice)
    if not backends_by_ports:
        yield from _placeholder(service, by_ports.pop((), []), now)
    for ports, backends in backends_by_ports.items():
        ports_of_slice = slice_ports(ports)
        yield from _pack(service, ports_of_slice, backends, by_ports.pop(ports_of_slice, []), now)
    for unused in by_ports.values():
        yield from (ForceDelete(endpoint_slice) for endpoint_slice in unused)


def _placeholder(service: Service, existing: Sequence[EndpointSlice], now: datetime.datetime) -> Iterator[WriteAction]:
    if not existing:
        yield Create(_new_slice(service, (), (), now))
    for endpoint_slice in existing[:1]:
        yield from _update_if_changed(_with_endpoints(service, endpoint_slice, (), now), endpoint_slice)
    for endpoint_slice in existing[1:]:
        yield ForceDelete(endpoint_slice)


def _pack(
    service: Service,
    ports: SlicePorts,
    backends: Sequence[Backend],
    existing: Sequence[EndpointSlice],
    now: datetime.datetime,
) -> Iterator[WriteAction]:
    pending = {backend.pod.metadata.uid: _endpoint(service, backend) for backend in backends}
    remaining: list[list[Endpoint]] = []
    for endpoint_slice in existing:
        uids = [endpoint.target_ref.uid for endpoint in endpoint_slice.endpoints if endpoint.target_ref is not None]
        remaining.append([pending.pop(uid) for uid in uids if uid in pending])
    waiting = list(pending.values())
    for endpoint_slice, endpoints in zip(existing, remaining, strict=True):
        room = MAX_ENDPOINTS_PER_SLICE - len(endpoints)
        filled = (*endpoints, *waiting[:room])
        waiting = waiting[room:]
        if filled:
            yield from _update_if_changed(_with_endpoints(service, endpoint_slice, filled, now), endpoint_slice)
        else:
            yield ForceDelete(endpoint_slice)
    for start in range(0, len(waiting), MAX_ENDPOINTS_PER_SLICE):
        yield Create(_new_slice(service, ports, tuple(waiting[start : start + MAX_ENDPOINTS_PER_SLICE]), now))


def _with_endpoints(
    service: Service, endpoint_slice: EndpointSlice, endpoints: tuple[Endpoint, ...], now: datetime.datetime
) -> EndpointSlice:
    """Return a slice with these endpoints. A change of them increments its generation."""
    metadata = replace(endpoint_slice.metadata, labels=_slice_labels(service))
    if endpoint_slice.endpoints != endpoints:
        annotations = endpoint_slice.metadata.annotations | _trigger_time(now)
        metadata = replace(metadata, generation=metadata.generation + 1, annotations=annotations)
    return replace(endpoint_slice, metadata=metadata, endpoints=endpoints)


def _slice_labels(service: Service) -> dict[str, str]:
    names = {SERVICE_LABEL: service.metadata.name, MANAGED_BY_LABEL: CONTROLLER_NAME}
    return {**_service_labels(service), **names}


def _new_slice(
    service: Service, ports: SlicePorts, endpoints: tuple[Endpoint, ...], now: datetime.datetime
) -> EndpointSlice:
    return EndpointSlice(
        metadata=ObjectMeta(
            generate_name=f"{service.metadata.name}-",
            namespace=service.metadata.namespace,
            labels=_slice_labels(service),
            annotations=_trigger_time(now),
            owner_references=(controller_reference(service),),
        ),
        address_type="IPv4",
        endpoints=endpoints,
        ports=ports,
    )


def _endpoint(service: Service, backend: Backend) -> Endpoint:
    return Endpoint(
        addresses=(backend.pod.status.pod_ip,),
        conditions=EndpointConditions(ready=backend.ready, serving=backend.serving, terminating=backend.terminating),
        hostname=_hostname(service, backend.pod) or None,
        node_name=backend.pod.spec.node_name or None,
        target_ref=_target(backend.pod),
    )


Name = tuple[str, str]
"""Namespace and name."""

Label = tuple[str, str, str]
"""Namespace, key and value."""

ENDPOINT_KINDS = ("Service", "Pod", "Endpoints", "EndpointSlice")


class EndpointQueue:
    """The services to reconcile after events. It observes every event of ENDPOINT_KINDS before the first pass and
    after.
    """

    def __init__(self) -> None:
        self._is_initialized = False
        self._pending: set[Name] = set()
        self._services = _LabelIndex()
        self._pods = _LabelIndex()
        self._slices = _LabelIndex()

    def observe(self, event: WatchEvent) -> None:
        """Index an object that was written or deleted."""
        if self._is_initialized:
            self._index(event.record.object, is_deleted=event.type == "DELETED")

    def reconcile(self, lister: Lister) -> Iterator[Action]:
        """Yield the writes of all pending services."""
        if not self._is_initialized:
            self._is_initialized = True
            for kind in ENDPOINT_KINDS:
                for obj in lister.list_kind(kind):
                    self._index(obj)
        for name in sorted(self._pending):
            is_done = True
            for action in self._reconcile_service(name, lister):
                is_done = False
                yield action
            if is_done:
                self._pending.discard(name)

    def _reconcile_service(self, name: Name, lister: Lister) -> Iterator[Action]:
        def get_all(kind: type[O], names: Iterable[str]) -> list[O]:
            objects = (lister.get(kind, object_name, name[0]) for object_name in sorted(names))
            return [obj for obj in objects if obj is not None]

        services, endpoints = get_all(Service, [name[1]]), get_all(Endpoints, [name[1]])
        pods = get_all(Pod, self._pods.under(*(_index_label(service) for service in services)))
        slices = get_all(EndpointSlice, self._slices.under((*name, "")))
        yield from reconcile(services, pods, endpoints, slices, lister.now)

    def _index(self, obj: Object, *, is_deleted: bool = False) -> None:
        meta = obj.metadata
        name = (meta.namespace, meta.name)
        if isinstance(obj, Service):
            self._services.put(name, () if is_deleted or not obj.spec.selector else (_index_label(obj),))
            self._pending.add(name)
        elif obj.KIND == "Endpoints":
            self._pending.add(name)
        elif obj.KIND == "EndpointSlice":
            self._index_slice(name, meta.labels, is_deleted=is_deleted)
        else:
            labels = [(meta.namespace, *label) for label in meta.labels.items()]
            affected_labels = {*self._pods.labels(name), *labels}
            self._pods.put(name, () if is_deleted else labels)
            self._pending.update((meta.namespace, service) for service in self._services.under(*affected_labels))

    def _index_slice(self, name: Name, labels: Mapping[str, str], *, is_deleted: bool) -> None:
        """Index a slice of this controller under its service, as a label without a value."""
        service = labels.get(SERVICE_LABEL, "")
        is_managed = labels.get(MANAGED_BY_LABEL) == CONTROLLER_NAME and not is_deleted
        affected_labels = {*self._slices.labels(name), (name[0], service, "")}
        self._slices.put(name, ((name[0], service, ""),) if is_managed else ())
        self._pending.update((namespace, owner) for namespace, owner, _ in affected_labels if owner)


def _index_label(service: Service) -> Label:
    """Return the label by which the pods of a service are indexed: one of its selector."""
    return (service.metadata.namespace, *min(service.spec.selector.items(), default=("", "")))


class _LabelIndex:
    """An index of names by label, and of labels by name."""

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
