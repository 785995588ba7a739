"""Reduced objects lead to the same ports and names as those of the API server."""

from __future__ import annotations

from msgspec.structs import replace

from api.core.endpoints import EndpointConditions
from api.meta.types import ObjectMeta, ObjectReference, OwnerReference
from nameserver.service_store import ServiceStore, published_endpoints
from sdn.proxy.transforms import TRIGGER_TIME, reduced_pod_address, reduced_service, reduced_slice
from tests.unit.sdn.proxy.examples import HERE, LEAVING, READY, THERE, endpoint, pod, service, service_map_of, slice_of

LABELS = {"app": "web", "service.kubernetes.io/service-proxy-name": "other"}


def _metadata(plain: ObjectMeta, **labels: str) -> ObjectMeta:
    """Return metadata as an API server sends it."""
    return replace(
        plain,
        uid="0f5e1b4c",
        resource_version="7",
        labels={**plain.labels, **labels},
        annotations={TRIGGER_TIME: "2026-01-01T00:00:00Z", "note": "x"},
        owner_references=(OwnerReference("v1", "Service", "web", "0f5e1b4c"),),
    )


def test_reduced_objects_lead_to_the_same_service_ports() -> None:
    full_service = replace(service(), metadata=_metadata(service().metadata, app="web"))
    plain = slice_of("web", endpoint(HERE, READY), endpoint(THERE, LEAVING))
    full_slice = replace(plain, metadata=_metadata(plain.metadata, app="web"))
    full_pods = tuple(replace(each, metadata=_metadata(each.metadata)) for each in (pod(HERE), pod(THERE)))
    full = service_map_of(full_service, full_slice, pods=full_pods)
    reduced = service_map_of(
        reduced_service(full_service), reduced_slice(full_slice), pods=tuple(map(reduced_pod_address, full_pods))
    )
    assert full.ports == reduced.ports
    assert full.states == reduced.states
    assert full.ports


def test_reduced_objects_have_the_same_names() -> None:
    plain = slice_of("web", replace(endpoint(HERE), hostname="web-0"), endpoint(THERE, EndpointConditions(ready=False)))
    store = ServiceStore()
    store.replace((reduced_service(service()),), (reduced_slice(plain),))
    (found,) = published_endpoints(store, service())
    assert (found.addresses, found.hostname) == ((HERE,), "web-0")
    assert store.services_at(HERE) == (("red", "web"),)


def test_service_of_another_proxy_keeps_its_label() -> None:
    other = replace(service(), metadata=_metadata(service().metadata, **LABELS))
    assert set(reduced_service(other).metadata.labels) == {"service.kubernetes.io/service-proxy-name"}
    assert not service_map_of(reduced_service(other)).ports


def test_slice_keeps_its_service_and_trigger_time_only() -> None:
    plain = slice_of("web", replace(endpoint(HERE), target_ref=ObjectReference(kind="Pod", name="web-1"), zone="a"))
    reduced = reduced_slice(replace(plain, metadata=_metadata(plain.metadata, app="web")))
    assert reduced.metadata == ObjectMeta(
        name=plain.metadata.name,
        namespace=plain.metadata.namespace,
        resource_version="7",
        labels=plain.metadata.labels,
        annotations={TRIGGER_TIME: "2026-01-01T00:00:00Z"},
    )
    assert reduced.endpoints[0].target_ref is None
    assert reduced.endpoints[0].zone is None


def test_equal_conditions_exist_once() -> None:
    endpoints = (endpoint(HERE, EndpointConditions(ready=True)), endpoint(THERE, EndpointConditions(ready=True)))
    first, second = reduced_slice(slice_of("web", *endpoints)).endpoints
    assert first.conditions is second.conditions
