"""The `kubernetes` service, by which pods find the API server."""

from __future__ import annotations

from ipaddress import IPv4Network

from msgspec.structs import replace

from api.core.endpoints import Endpoints, EndpointSlice
from api.core.services import Service, ServiceSpec
from api.meta.types import Object, ObjectMeta
from api.validation.registry import default
from master.controllers.actions import Create, ForceDelete, Update, Warn
from master.controllers.context import ServerAddress
from master.controllers.network.kubernetes_service import reconcile
from master.resources.metadata import with_metadata
from master.resources.scheme import BY_KIND
from master.storage.interface import with_revision

NETWORK = IPv4Network("172.30.0.0/16")
SERVER = ServerAddress("10.245.2.2", 8443)


def as_stored(obj: Object) -> Object:
    """Return an object as it is stored."""
    return with_revision(default(obj, BY_KIND[obj.KIND].rules), 7)


def first() -> tuple[Service, Endpoints, EndpointSlice]:
    objects = [
        as_stored(write.object) for write in reconcile(NETWORK, SERVER, (), None, ()) if isinstance(write, Create)
    ]
    service, endpoints, endpoint_slice = objects
    assert isinstance(service, Service)
    assert isinstance(endpoints, Endpoints)
    assert isinstance(endpoint_slice, EndpointSlice)
    return service, endpoints, endpoint_slice


def test_kubernetes_service_is_created_with_the_masters_endpoint() -> None:
    service, endpoints, endpoint_slice = first()
    assert (service.spec.cluster_ip, service.spec.type) == ("172.30.0.1", "ClusterIP")
    assert [(port.name, port.port, port.target_port) for port in service.spec.ports] == [("https", 443, 8443)]
    (subset,) = endpoints.subsets
    assert [(subset.addresses[0].ip, port.name, port.port) for port in subset.ports] == [("10.245.2.2", "https", 8443)]
    assert (endpoint_slice.endpoints[0].addresses, endpoint_slice.ports[0].port) == (("10.245.2.2",), 8443)
    assert endpoint_slice.metadata.labels["kubernetes.io/service-name"] == "kubernetes"
    for obj in (service, endpoints, endpoint_slice):
        assert list(BY_KIND[obj.KIND].rules.validate(obj)) == []
    assert list(reconcile(NETWORK, SERVER, (service,), endpoints, (endpoint_slice,))) == []


def test_kubernetes_service_follows_the_masters_address() -> None:
    service, endpoints, endpoint_slice = first()
    elsewhere = ServerAddress("10.245.2.9", 9443)
    writes = list(reconcile(NETWORK, elsewhere, (service,), endpoints, (endpoint_slice,)))
    assert [type(write) for write in writes] == [Update, Update, Update]
    after = [as_stored(write.object) for write in writes if isinstance(write, Update)]
    assert list(reconcile(NETWORK, elsewhere, (after[0],), after[1], (after[2],))) == []  # type: ignore[arg-type]


def test_kubernetes_service_is_repaired_except_labels_and_annotations() -> None:
    service, endpoints, endpoint_slice = first()
    mine = with_metadata(service, labels={"mine": "1"})
    mine = replace(mine, spec=replace(mine.spec, selector={"app": "evil"}, type="NodePort"))
    (write,) = reconcile(NETWORK, SERVER, (mine,), replace(endpoints), (endpoint_slice,))
    assert isinstance(write, Update)
    assert isinstance(write.object, Service)
    assert (write.object.spec.selector, write.object.spec.type) == ({}, "ClusterIP")
    assert write.object.metadata.labels == {"mine": "1", "component": "apiserver", "provider": "kubernetes"}
    (write,) = reconcile(NETWORK, SERVER, (service,), replace(endpoints, subsets=()), (endpoint_slice,))
    assert isinstance(write, Update)


def test_kubernetes_service_gets_an_address_of_a_changed_service_network() -> None:
    service, endpoints, endpoint_slice = first()
    writes = list(reconcile(IPv4Network("172.31.0.0/16"), SERVER, (service,), endpoints, (endpoint_slice,)))
    assert [type(write) for write in writes] == [ForceDelete, Create]


def test_service_occupying_the_kubernetes_service_address_is_reported() -> None:
    taken = Service(metadata=ObjectMeta(name="web", namespace="red"), spec=ServiceSpec(cluster_ip="172.30.0.1"))
    _, endpoints, endpoint_slice = first()
    (notice,) = reconcile(NETWORK, SERVER, (taken,), endpoints, (endpoint_slice,))
    assert isinstance(notice, Warn)
    assert "service red/web has 172.30.0.1" in notice.text
