"""EndpointSlices for Endpoints that users wrote: service proxies read slices only. Pure.

Endpoints of a service without a selector are mirrored, unless a label excludes them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from api.core.endpoints import (
    MAX_ENDPOINTS_PER_SLICE,
    SERVICE_LABEL,
    Endpoint,
    EndpointAddress,
    EndpointConditions,
    Endpoints,
    EndpointSlice,
    EndpointSubset,
    slice_ports,
)
from api.core.services import Service
from api.meta.types import ObjectMeta
from master.controllers.actions import Action, Create, Failed, ForceDelete, Update, WriteAction, isolate_errors
from master.controllers.context import Lister
from master.controllers.network.endpoints import MANAGED_BY_LABEL, SlicePorts
from master.resources.metadata import controller_reference

CONTROLLER_NAME = "endpointslicemirroring-controller.k8s.io"
MAX_CREATES = 100
"""Slices created for one Endpoints object in one pass."""

NOT_MIRRORED = {"endpointslice.kubernetes.io/skip-mirror": "true"}
"""The label that excludes Endpoints."""


def reconcile(
    services: Iterable[Service], endpoints: Iterable[Endpoints], slices: Iterable[EndpointSlice]
) -> Iterator[WriteAction | Failed]:
    """Yield the creates, updates and deletes of mirrored slices."""
    without_selector = {
        _key(service.metadata, service.metadata.name) for service in services if not service.spec.selector
    }
    slices_by_service: dict[tuple[str, str], list[EndpointSlice]] = defaultdict(list)
    for endpoint_slice in slices:
        if endpoint_slice.metadata.labels.get(MANAGED_BY_LABEL) == CONTROLLER_NAME:
            slices_by_service[
                _key(endpoint_slice.metadata, endpoint_slice.metadata.labels.get(SERVICE_LABEL, ""))
            ].append(endpoint_slice)

    def mirror(service_endpoints: Endpoints) -> Iterator[WriteAction]:
        key = _key(service_endpoints.metadata, service_endpoints.metadata.name)
        if key in without_selector and not NOT_MIRRORED.items() <= service_endpoints.metadata.labels.items():
            yield from _mirrored(service_endpoints, slices_by_service.pop(key, []))

    yield from isolate_errors(endpoints, mirror)
    for unused in slices_by_service.values():
        yield from (ForceDelete(endpoint_slice) for endpoint_slice in unused)


def _key(meta: ObjectMeta, name: str) -> tuple[str, str]:
    return meta.namespace, name


def _mirrored(endpoints: Endpoints, existing: list[EndpointSlice]) -> Iterator[WriteAction]:
    """Yield the writes of one Endpoints object: a slice for each subset. A slice stays as long as its ports are the
    same. At most MAX_CREATES slices are created; their writes trigger the next pass.
    """
    existing_by_form: dict[tuple[SlicePorts, str], deque[EndpointSlice]] = defaultdict(deque)
    for endpoint_slice in existing:
        existing_by_form[endpoint_slice.ports, endpoint_slice.address_type].append(endpoint_slice)
    creates = 0
    for desired in (_slice(endpoints, subset) for subset in endpoints.subsets):
        same_form = existing_by_form[desired.ports, desired.address_type]
        if not same_form:
            creates += 1
            if creates <= MAX_CREATES:
                yield Create(desired)
            continue
        old = same_form.popleft()
        new = replace(old, endpoints=desired.endpoints, metadata=replace(old.metadata, labels=desired.metadata.labels))
        if new != old:
            yield Update(replace(new, metadata=replace(new.metadata, generation=old.metadata.generation + 1)), old)
    yield from (ForceDelete(unused) for same_form in existing_by_form.values() for unused in same_form)


def _slice(endpoints: Endpoints, subset: EndpointSubset) -> EndpointSlice:
    addresses = [
        *((address, True) for address in subset.addresses),
        *((address, False) for address in subset.not_ready_addresses),
    ]
    return EndpointSlice(
        metadata=ObjectMeta(
            generate_name=f"{endpoints.metadata.name}-",
            namespace=endpoints.metadata.namespace,
            labels={
                **endpoints.metadata.labels,
                SERVICE_LABEL: endpoints.metadata.name,
                MANAGED_BY_LABEL: CONTROLLER_NAME,
            },
            owner_references=(controller_reference(endpoints),),
        ),
        address_type="IPv6" if addresses and ":" in addresses[0][0].ip else "IPv4",
        endpoints=tuple(_endpoint(address, ready) for address, ready in addresses[:MAX_ENDPOINTS_PER_SLICE]),
        ports=slice_ports(subset.ports),
    )


def _endpoint(address: EndpointAddress, ready: bool) -> Endpoint:
    return Endpoint(
        addresses=(address.ip,),
        conditions=EndpointConditions(ready=ready),
        hostname=address.hostname or None,
        node_name=address.node_name,
        target_ref=address.target_ref,
    )


def sync_mirrored_endpoint_slices(lister: Lister) -> Iterable[Action]:
    """Write the EndpointSlices of Endpoints that were made by hand."""
    return reconcile(lister.list(Service), lister.list(Endpoints), lister.list(EndpointSlice))
