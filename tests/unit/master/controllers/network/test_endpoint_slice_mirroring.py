"""EndpointSlices of Endpoints that users created."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from api.core.endpoints import Endpoint, EndpointAddress, EndpointPort, Endpoints, EndpointSlice, EndpointSubset
from api.core.services import Service, ServiceSpec
from api.validation.registry import check
from master.controllers.actions import Create, Failed, ForceDelete, Update, WriteAction
from master.controllers.network.endpoint_slice_mirroring import MAX_CREATES, NOT_MIRRORED, reconcile
from tests.unit.master.action_lines import lines
from tests.unit.master.examples import meta

WEB = EndpointPort(port=80, name="", protocol="TCP")
SECURE = EndpointPort(port=443, name="s", protocol="TCP")


def made(*subsets: EndpointSubset, **rest: object) -> Endpoints:
    return Endpoints(metadata=meta("web", namespace="red", **rest), subsets=subsets)


def subset(*addresses: str, port: EndpointPort = WEB, waiting: tuple[str, ...] = ()) -> EndpointSubset:
    return EndpointSubset(
        addresses=tuple(EndpointAddress(ip=address) for address in addresses),
        not_ready_addresses=tuple(EndpointAddress(ip=ip) for ip in waiting),
        ports=(port,),
    )


def service(**spec: object) -> Service:
    return Service(metadata=meta("web", namespace="red"), spec=ServiceSpec(**spec))  # type: ignore[arg-type]


def created_slices(writes: Iterable[WriteAction | Failed]) -> list[EndpointSlice]:
    """Return the created slices, as they are stored."""
    endpoint_slices = [
        write.object for write in writes if isinstance(write, Create) and isinstance(write.object, EndpointSlice)
    ]
    return [
        replace(
            endpoint_slice,
            metadata=replace(endpoint_slice.metadata, name=f"web-{number}", uid=f"u{number}", generation=1),
        )
        for number, endpoint_slice in enumerate(endpoint_slices)
    ]


def ready(endpoint_slice: EndpointSlice) -> list[tuple[str, bool | None]]:
    return [(endpoint.addresses[0], endpoint.conditions.ready) for endpoint in endpoint_slice.endpoints]


def test_each_endpoints_subset_has_a_slice() -> None:
    source = made(subset("10.1.0.2", waiting=("10.1.0.3",)), subset("10.1.0.4", port=SECURE), labels={"mine": "kept"})
    first, second = created_slices(reconcile([service()], [source], []))
    assert ready(first) == [("10.1.0.2", True), ("10.1.0.3", False)]
    assert (ready(second), second.ports[0].port) == ([("10.1.0.4", True)], 443)
    assert first.metadata.labels == {
        "mine": "kept",
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io",
    }
    assert [owner.kind for owner in first.metadata.owner_references] == ["Endpoints"]
    assert not [*check(first), *check(second)]
    assert list(reconcile([service()], [source], [first, second])) == []


def test_mirrored_slice_follows_its_endpoints() -> None:
    old = created_slices(reconcile([service()], [made(subset("10.1.0.2"))], []))
    (write,) = reconcile([service()], [made(subset("10.1.0.9"))], old)
    assert isinstance(write, Update)
    assert isinstance(write.object, EndpointSlice)
    assert (write.object.metadata.generation, ready(write.object)) == (2, [("10.1.0.9", True)])
    other = [type(write) for write in reconcile([service()], [made(subset("10.1.0.2", port=SECURE))], old)]
    assert other == [Create, ForceDelete]


def test_endpoints_of_selector_services_are_not_mirrored() -> None:
    source = made(subset("10.1.0.2"))
    old = created_slices(reconcile([service()], [source], []))
    removed = ["- EndpointSlice web-0"]
    assert lines(reconcile([service(selector={"app": "web"})], [source], old)) == removed
    assert lines(reconcile([], [source], old)) == removed
    assert lines(reconcile([service()], [], old)) == removed
    assert lines(reconcile([service()], [made(subset("10.1.0.2"), labels=NOT_MIRRORED)], old)) == removed
    foreign = EndpointSlice(metadata=meta("x", namespace="red"), address_type="IPv4", endpoints=(Endpoint(),))
    assert lines(reconcile([service()], [], [foreign])) == []


def test_slices_of_many_subsets_are_created_in_several_passes_and_matched_once() -> None:
    subsets = [subset("10.1.0.2", port=EndpointPort(port=number + 1, protocol="TCP")) for number in range(5_000)]
    source, mirrored = made(*subsets), list[EndpointSlice]()
    for count in range(1, 4):
        created = created_slices(reconcile([service()], [source], mirrored))
        assert len(created) == MAX_CREATES
        mirrored += [
            replace(obj, metadata=replace(obj.metadata, name=f"web-{count}-{number}"))
            for number, obj in enumerate(created)
        ]
        assert len({endpoint_slice.ports for endpoint_slice in mirrored}) == count * MAX_CREATES
