"""EndpointSlices for Endpoints that users wrote: service proxies read slices only. Pure.

Endpoints of a service without a selector are mirrored, unless a label excludes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from api.core.endpoints import (
    MOST_IN_A_SLICE,
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
from master.controllers.actions import Create, ForceDelete, Update, WriteAction
from master.controllers.network.endpoints import MANAGED_BY_LABEL
from master.resources.metadata import controller_reference

CONTROLLER_NAME = "endpointslicemirroring-controller.k8s.io"
NOT_MIRRORED = {"endpointslice.kubernetes.io/skip-mirror": "true"}


def reconcile(
    services: Iterable[Service], endpoints: Iterable[Endpoints], slices: Iterable[EndpointSlice]
) -> Iterator[WriteAction]:
    """Everything that is to be written."""
    without = {_key(one.metadata, one.metadata.name) for one in services if not one.spec.selector}
    mine: dict[tuple[str, str], list[EndpointSlice]] = defaultdict(list)
    for item in slices:
        if item.metadata.labels.get(MANAGED_BY_LABEL) == CONTROLLER_NAME:
            mine[_key(item.metadata, item.metadata.labels.get(SERVICE_LABEL, ""))].append(item)
    for one in endpoints:
        key = _key(one.metadata, one.metadata.name)
        if key in without and not NOT_MIRRORED.items() <= one.metadata.labels.items():
            yield from _mirrored(one, mine.pop(key, []))
    for left in mine.values():
        yield from (ForceDelete(item) for item in left)


def _key(meta: ObjectMeta, name: str) -> tuple[str, str]:
    return meta.namespace, name


def _mirrored(item: Endpoints, known: list[EndpointSlice]) -> Iterator[WriteAction]:
    """A slice for each subset; one that there is stays, with other addresses, as long as its ports are the same."""
    for wanted in (_slice(item, subset) for subset in item.subsets):
        old = next((one for one in known if (one.ports, one.address_type) == (wanted.ports, wanted.address_type)), None)
        if old is None:
            yield Create(wanted)
            continue
        known.remove(old)
        new = replace(old, endpoints=wanted.endpoints, metadata=replace(old.metadata, labels=wanted.metadata.labels))
        if new != old:
            yield Update(replace(new, metadata=replace(new.metadata, generation=old.metadata.generation + 1)), old)
    yield from (ForceDelete(left) for left in known)


def _slice(item: Endpoints, subset: EndpointSubset) -> EndpointSlice:
    rows = [*((row, True) for row in subset.addresses), *((row, False) for row in subset.not_ready_addresses)]
    return EndpointSlice(
        metadata=ObjectMeta(
            generate_name=f"{item.metadata.name}-",
            namespace=item.metadata.namespace,
            labels={**item.metadata.labels, SERVICE_LABEL: item.metadata.name, MANAGED_BY_LABEL: CONTROLLER_NAME},
            owner_references=(controller_reference(item),),
        ),
        address_type="IPv6" if rows and ":" in rows[0][0].ip else "IPv4",
        endpoints=tuple(_endpoint(row, ready) for row, ready in rows[:MOST_IN_A_SLICE]),
        ports=slice_ports(subset.ports),
    )


def _endpoint(row: EndpointAddress, ready: bool) -> Endpoint:
    return Endpoint(
        addresses=(row.ip,),
        conditions=EndpointConditions(ready=ready),
        hostname=row.hostname or None,
        node_name=row.node_name,
        target_ref=row.target_ref,
    )


MIRRORED_KINDS = ("Service", "Endpoints", "EndpointSlice")
