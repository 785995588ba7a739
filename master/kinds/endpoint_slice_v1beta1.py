"""EndpointSlice of discovery.k8s.io/v1beta1, as the components of Kubernetes before 1.21 ask for it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from api.core import endpoints as newer
from api.core.endpoints import EndpointConditions, SlicePort
from api.meta.schema import FieldError
from api.meta.types import Object, ObjectReference, Value
from api.validation.registry import KindRules
from api.validation.services import check_slice, immutable_slice
from master.kinds.endpoint_slice import ENDPOINT_SLICE
from master.kinds.kind import Conversion, Kind

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
"""Keys of `topology` for what later forms have fields for."""


class Endpoint(Value, frozen=True):
    """One of the addresses; `topology` says where it is, by labels of its node."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    hostname: str | None = None
    target_ref: ObjectReference | None = None
    topology: dict[str, str] = {}
    node_name: str | None = None


class EndpointSlice(Object, frozen=True):
    """Some of the endpoints of the service that its label names."""

    API_VERSION = "discovery.k8s.io/v1beta1"
    KIND = "EndpointSlice"

    address_type: str = ""
    endpoints: tuple[Endpoint, ...] = ()
    ports: tuple[SlicePort, ...] = ()


def _older(row: newer.Endpoint) -> Endpoint:
    places = {HOST: row.node_name, ZONE: row.zone}
    return Endpoint(
        addresses=row.addresses,
        conditions=row.conditions,
        hostname=row.hostname,
        target_ref=row.target_ref,
        topology=row.deprecated_topology | {key: value for key, value in places.items() if value is not None},
        node_name=row.node_name,
    )


def _newer(row: Endpoint) -> newer.Endpoint:
    host = row.topology.get(HOST)
    return newer.Endpoint(
        addresses=row.addresses,
        conditions=row.conditions,
        hostname=row.hostname,
        node_name=host if row.node_name is None else row.node_name,
        zone=row.topology.get(ZONE),
        target_ref=row.target_ref,
        deprecated_topology={key: value for key, value in row.topology.items() if key not in (HOST, ZONE)},
    )


def _seen(item: newer.EndpointSlice) -> EndpointSlice:
    rows = tuple(_older(row) for row in item.endpoints)
    return EndpointSlice(metadata=item.metadata, address_type=item.address_type, endpoints=rows, ports=item.ports)


def _kept(item: EndpointSlice) -> newer.EndpointSlice:
    rows = tuple(_newer(row) for row in item.endpoints)
    return newer.EndpointSlice(metadata=item.metadata, address_type=item.address_type, endpoints=rows, ports=item.ports)


def _check(item: EndpointSlice) -> Iterator[FieldError]:
    yield from check_slice(_kept(item))


def _immutable(old: EndpointSlice, new: EndpointSlice) -> Iterator[FieldError]:
    yield from immutable_slice(_kept(old), _kept(new))


def _default(item: EndpointSlice) -> EndpointSlice:
    return replace(item, ports=ENDPOINT_SLICE.rules.default(_kept(item)).ports)


ENDPOINT_SLICE_V1BETA1 = Kind(
    type=EndpointSlice,
    plural=ENDPOINT_SLICE.plural,
    singular=ENDPOINT_SLICE.singular,
    namespaced=True,
    columns=ENDPOINT_SLICE.columns,
    cells=lambda item, now: ENDPOINT_SLICE.cells(_kept(item), now),
    spec=lambda item: (item.endpoints, item.ports),
    own_rules=KindRules(default=_default, check=_check, immutable=_immutable),
    conversion=Conversion(ENDPOINT_SLICE, _seen, _kept),
)
