"""Reduces Services, EndpointSlices and pod addresses to what the proxy and cluster DNS read. Pure.

An endpoint as the API server sends it takes 1 KB: a reference to its pod, zone, hints, and conditions of its own. There
are hundreds of thousands of them. What is left takes a third; equal parts exist once.
"""

from __future__ import annotations

import sys
from functools import lru_cache

from msgspec.structs import replace

from api.core.endpoints import SERVICE_LABEL, Endpoint, EndpointConditions, EndpointSlice
from api.core.services import Service
from api.meta.types import ObjectMeta
from api.network.types import PodAddress
from sdn.proxy.service_ports import IGNORED_LABELS

TRIGGER_TIME = "endpoints.kubernetes.io/last-change-trigger-time"
"""Annotation of an EndpointSlice: when the pod or the service changed because of which the slice was written."""

_NONE: dict[str, str] = {}
_SLICE_LABELS = frozenset((SERVICE_LABEL,))
_SLICE_ANNOTATIONS = frozenset((TRIGGER_TIME,))


def reduced_service(service: Service) -> Service:
    """Return a service with name, uid, age, the labels that concern proxies, and its spec without the selector."""
    metadata = service.metadata
    return Service(
        metadata=ObjectMeta(
            name=metadata.name,
            namespace=sys.intern(metadata.namespace),
            uid=metadata.uid,
            resource_version=metadata.resource_version,
            creation_timestamp=metadata.creation_timestamp,
            labels=_selected(metadata.labels, IGNORED_LABELS),
            annotations=_NONE,
        ),
        spec=replace(service.spec, selector=_NONE, cluster_ips=(), ip_families=(), ip_family_policy=""),
        status=service.status,
    )


def reduced_slice(endpoint_slice: EndpointSlice) -> EndpointSlice:
    """Return a slice with the name of its service, its trigger time, and endpoints without references to pods."""
    metadata = endpoint_slice.metadata
    return replace(
        endpoint_slice,
        metadata=ObjectMeta(
            name=metadata.name,
            namespace=sys.intern(metadata.namespace),
            resource_version=metadata.resource_version,
            labels=_selected(metadata.labels, _SLICE_LABELS),
            annotations=_selected(metadata.annotations, _SLICE_ANNOTATIONS),
        ),
        endpoints=tuple(map(_reduced_endpoint, endpoint_slice.endpoints)),
    )


def reduced_pod_address(pod: PodAddress) -> PodAddress:
    """Return a pod address with the name of its pod only."""
    metadata = pod.metadata
    name = ObjectMeta(
        name=metadata.name,
        namespace=sys.intern(metadata.namespace),
        resource_version=metadata.resource_version,
        labels=_NONE,
        annotations=_NONE,
    )
    return PodAddress(metadata=name, phase=sys.intern(pod.phase), ip=pod.ip, host_network=pod.host_network)


def _reduced_endpoint(endpoint: Endpoint) -> Endpoint:
    conditions, node = endpoint.conditions, endpoint.node_name
    return Endpoint(
        addresses=endpoint.addresses,
        conditions=_shared_conditions(conditions.ready, conditions.serving, conditions.terminating),
        hostname=endpoint.hostname,
        node_name=sys.intern(node) if node is not None else None,
        deprecated_topology=_NONE,
    )


@lru_cache
def _shared_conditions(ready: bool | None, serving: bool | None, terminating: bool | None) -> EndpointConditions:
    return EndpointConditions(ready, serving, terminating)


def _selected(entries: dict[str, str], keys: frozenset[str]) -> dict[str, str]:
    """Return the entries with these keys. There is only one empty result, and each key exists once."""
    return {key: entries[key] for key in keys if key in entries} or _NONE
