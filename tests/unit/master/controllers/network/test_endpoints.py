"""Endpoints and EndpointSlices of services."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from api.core.endpoints import EndpointSlice
from api.core.pod import ContainerPort, Pod, PodStatus
from api.core.services import Service
from api.meta.types import Condition
from api.validation.registry import check, decode, default
from master.controllers.actions import Create, ForceDelete, Update
from master.controllers.network import endpoints
from tests.unit.master.action_lines import NOW
from tests.unit.master.examples import meta, pod, service

# --- endpoints --------------------------------------------------------------------------------------------------------


def backend(number: int, ready: bool = True, port: int = 8080, **metadata: Any) -> Pod:
    made = pod(f"p{number}", node="node-1")
    container = replace(made.spec.containers[0], ports=(ContainerPort(container_port=port, name="http"),))
    condition = Condition(type="Ready", status=str(ready))
    return replace(
        made,
        metadata=replace(made.metadata, labels={"app": "web"}, **metadata),
        spec=replace(made.spec, containers=(container,)),
        status=PodStatus(phase="Running", pod_ip=f"10.128.0.{number}", conditions=(condition,)),
    )


def of(chosen: Service, pods: list[Pod], slices: list[EndpointSlice] | None = None) -> list[Any]:
    chosen = replace(chosen, metadata=meta("web", namespace="red"))
    return list(endpoints.reconcile([chosen], pods, [], slices or [], NOW))


def made_slices(writes: list[Any]) -> list[EndpointSlice]:
    return [write.object for write in writes if isinstance(write, Create) and isinstance(write.object, EndpointSlice)]


def test_ready_pods_are_endpoints_and_others_not_ready_addresses() -> None:
    web = service(selector={"app": "web"}, ports=[{"port": 80, "targetPort": "http"}])
    writes = of(web, [backend(1), backend(2, ready=False), pod("other")])
    (subset,) = writes[0].object.subsets
    assert [address.ip for address in subset.addresses] == ["10.128.0.1"]
    assert [not_ready_address.ip for not_ready_address in subset.not_ready_addresses] == ["10.128.0.2"]
    assert [port.port for port in subset.ports] == [8080]
    (piece,) = made_slices(writes)
    assert [(endpoint.addresses[0], endpoint.conditions.ready) for endpoint in piece.endpoints] == [
        ("10.128.0.1", True),
        ("10.128.0.2", False),
    ]
    for endpoint_slice in (writes[0].object, replace(piece, metadata=replace(piece.metadata, name="web-x"))):
        assert not list(check(endpoint_slice))


def test_slice_port_name_is_set_even_when_empty() -> None:
    """Service proxies leave out one that does not."""
    (piece,) = made_slices(of(service(selector={"app": "web"}), [backend(1)]))
    assert msgspec.json.decode(msgspec.json.encode(piece))["ports"] == [{"port": 80, "name": "", "protocol": "TCP"}]
    document = {"metadata": {"name": "s", "namespace": "red"}, "addressType": "IPv4", "ports": [{"port": 80}]}
    endpoint_slice, problems, _ = decode(EndpointSlice, document)
    assert not problems
    assert endpoint_slice is not None
    assert default(endpoint_slice).ports == piece.ports


def test_service_without_pods_has_one_empty_slice() -> None:
    web = service(selector={"app": "web"})
    (empty,) = made_slices(of(web, []))
    assert (empty.ports, empty.endpoints, empty.address_type) == ((), (), "IPv4")
    known = replace(empty, metadata=replace(empty.metadata, name="web-1"))
    another = replace(empty, metadata=replace(empty.metadata, name="web-2"))
    assert [type(write) for write in of(web, [], [known, another])] == [Create, ForceDelete]
    writes = of(web, [backend(1)], [known])
    assert [write.object.metadata.name for write in writes if isinstance(write, ForceDelete)] == ["web-1"]
    assert len(made_slices(writes)) == 1


def test_pods_with_different_named_port_numbers_have_separate_subsets() -> None:
    web = service(selector={"app": "web"}, ports=[{"port": 80, "targetPort": "http"}])
    writes = of(web, [backend(1), backend(2, port=9090)])
    assert [[port.port for port in subset.ports] for subset in writes[0].object.subsets] == [[8080], [9090]]
    assert len(made_slices(writes)) == 2


def test_terminating_pod_is_still_serving() -> None:
    web = service(selector={"app": "web"})
    (piece,) = made_slices(of(web, [backend(1, deletion_timestamp="2026-01-01T00:00:30Z")]))
    conditions = piece.endpoints[0].conditions
    assert (conditions.ready, conditions.serving, conditions.terminating) == (False, True, True)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "169.254.169.254", "::ffff:127.0.0.1", "localhost"])
def test_pod_without_an_own_address_is_no_endpoint(address: str) -> None:
    pod = backend(1)
    lies = replace(pod, status=replace(pod.status, pod_ip=address))
    wanted = service()
    assert [len(backends) for backends in endpoints.backends(wanted, [pod]).values()] == [1]
    assert endpoints.backends(wanted, [lies]) == {}


def test_publish_not_ready_addresses_includes_unready_pods() -> None:
    web = service(selector={"app": "web"}, publishNotReadyAddresses=True)
    assert len(of(web, [backend(1, ready=False)])[0].object.subsets[0].addresses) == 1


def test_slice_holds_a_hundred_endpoints_and_keeps_their_placement() -> None:
    web = service(selector={"app": "web"})
    pods = [backend(number) for number in range(100, 250)]
    first = made_slices(of(web, pods))
    assert [len(piece.endpoints) for piece in first] == [100, 50]
    known = [replace(piece, metadata=replace(piece.metadata, name=f"web-{n}")) for n, piece in enumerate(first)]
    changes = [write for write in of(web, pods[1:], known) if isinstance(write, Update)]
    assert [change.before for change in changes] == [known[0]]
    force_deletes = [write for write in of(web, pods[:100], known) if isinstance(write, ForceDelete)]
    assert [drop.object for drop in force_deletes] == [known[1]]


def test_endpoints_of_a_service_without_selector_are_kept() -> None:
    assert of(service(), [backend(1)]) == []


def test_headless_service_endpoints_are_labelled() -> None:
    writes = of(service(selector={"app": "web"}, clusterIP="None"), [backend(1)])
    assert all(write.object.metadata.labels["service.kubernetes.io/headless"] == "" for write in writes)


def test_endpoints_have_the_last_change_trigger_time() -> None:
    web = replace(service(selector={"app": "web"}), metadata=meta("web", namespace="red"))
    first: list[Any] = [write.object for write in endpoints.reconcile([web], [backend(1)], [], [], NOW)]
    assert {endpoint_slice.metadata.annotations[endpoints.TRIGGER_TIME_ANNOTATION] for endpoint_slice in first} == {
        "2026-01-01T12:00:00.000000Z"
    }
    there, piece = first[0], replace(first[1], metadata=replace(first[1].metadata, name="web-1"))
    later = NOW + datetime.timedelta(milliseconds=250)
    assert list(endpoints.reconcile([web], [backend(1)], [there], [piece], later)) == []
    marked = replace(web, metadata=replace(web.metadata, labels={"a": "b"}))
    second = list(endpoints.reconcile([marked], [backend(1)], [there], [piece], later))
    assert [write.object.metadata.labels["a"] for write in second] == ["b", "b"]
    assert {write.object.metadata.annotations[endpoints.TRIGGER_TIME_ANNOTATION] for write in second} == {
        "2026-01-01T12:00:00.000000Z"
    }
    third = list(endpoints.reconcile([web], [backend(1, ready=False)], [there], [piece], later))
    assert [type(write) for write in third] == [Update, Update]
    assert {write.object.metadata.annotations[endpoints.TRIGGER_TIME_ANNOTATION] for write in third} == {
        "2026-01-01T12:00:00.250000Z"
    }


def test_published_unready_endpoint_is_not_serving() -> None:
    web = service(selector={"app": "web"}, publishNotReadyAddresses=True)
    (piece,) = made_slices(of(web, [backend(1, ready=False)]))
    conditions = piece.endpoints[0].conditions
    assert (conditions.ready, conditions.serving, conditions.terminating) == (True, False, False)
