"""Records of the addresses of services."""

from __future__ import annotations

from msgspec.structs import replace

from api.core.services import Service, ServiceSpec
from api.meta.types import ObjectMeta
from master.controllers.actions import Create
from master.controllers.network.ip_addresses import reconcile
from master.resources.services import IPAddress, IPAddressSpec, ParentReference
from tests.unit.master.action_lines import lines
from tests.unit.master.examples import meta


def service(name: str, *addresses: str) -> Service:
    spec = ServiceSpec(cluster_ip=addresses[0] if addresses else "", cluster_ips=addresses)
    return Service(metadata=meta(name, namespace="red"), spec=spec)


def test_each_address_of_a_service_has_one_record() -> None:
    services = [service("web", "10.0.0.5", "fd00::5"), service("headless", "None"), service("external")]
    made = [action.object for action in reconcile(services, []) if isinstance(action, Create)]
    assert all(isinstance(record, IPAddress) for record in made)
    assert [record.metadata.name for record in made] == ["10.0.0.5", "fd00::5"]
    assert [record.metadata.labels["ipaddress.kubernetes.io/ip-family"] for record in made] == ["IPv4", "IPv6"]
    owner = ParentReference(resource="services", namespace="red", name="web")
    assert {record.spec.parent_ref for record in made if isinstance(record, IPAddress)} == {owner}
    assert not list(reconcile(services, made))  # type: ignore[arg-type]


def test_record_of_a_removed_service_is_deleted_and_one_of_another_client_stays() -> None:
    (action,) = reconcile([service("web", "10.0.0.5")], [])
    assert isinstance(action, Create)
    record = action.object
    assert isinstance(record, IPAddress)
    assert lines(reconcile([], [record])) == ["- IPAddress 10.0.0.5"]
    other = service("other", "10.0.0.5")
    assert lines(reconcile([other], [record])) == ["- IPAddress 10.0.0.5"], "it is written when the old one is gone"
    assert lines(reconcile([other], [])) == ["+ IPAddress 10.0.0.5"]
    foreign = IPAddress(metadata=ObjectMeta(name="10.0.0.9"), spec=IPAddressSpec(parent_ref=record.spec.parent_ref))
    assert not lines(reconcile([], [foreign]))
    assert not lines(reconcile([service("web", "10.0.0.5")], [replace(record, metadata=record.metadata)]))
