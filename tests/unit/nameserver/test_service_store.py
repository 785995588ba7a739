"""Changes of services and their slices."""

from __future__ import annotations

from nameserver.service_store import ServiceStore
from tests.unit.nameserver.examples import addresses, answer_text, endpoint, names, service, slice_of


def test_single_changes_lead_to_the_same_store_as_a_full_replace(directory: ServiceStore) -> None:
    stepwise = ServiceStore()
    stepwise.replace([], [])
    stepwise.put_slice(("red", "db-1"), slice_of("db", "red", endpoint("10.128.9.9")))
    stepwise.put_service(("red", "db"), service("red", "db", '{"clusterIP": "172.30.0.77"}'))
    assert answer_text(names(stepwise), "77.0.30.172.in-addr.arpa", "PTR")[0] == "NOERROR"
    stepwise.put_service(("red", "db"), service("red", "db", '{"clusterIP": "None"}'))
    assert answer_text(names(stepwise), "77.0.30.172.in-addr.arpa", "PTR")[0] == "NXDOMAIN"
    assert answer_text(names(stepwise), "9.9.128.10.in-addr.arpa", "PTR")[0] == "NOERROR"
    stepwise.put_slice(("red", "db-1"), slice_of("db", "red", endpoint("10.128.0.2", hostname="db-0")))
    assert answer_text(names(stepwise), "9.9.128.10.in-addr.arpa", "PTR")[0] == "NXDOMAIN"
    assert addresses(stepwise, "db.red.svc.cluster.local") == ["NOERROR", "10.128.0.2"]
    stepwise.put_slice(("red", "db-1"), None)
    assert addresses(stepwise, "db.red.svc.cluster.local") == ["NOERROR"]
    stepwise.put_service(("red", "db"), None)
    assert addresses(stepwise, "db.red.svc.cluster.local") == ["NXDOMAIN"]
    assert vars(stepwise) == vars(ServiceStore()) | {"ready": True, "revision": stepwise.revision}


def test_slice_without_a_service_or_of_another_family_is_ignored() -> None:
    service_store = ServiceStore()
    service_store.replace([service("red", "db", '{"clusterIP": "None"}')], [])
    service_store.put_slice(("red", "x"), slice_of("", "red", endpoint("10.128.0.2")))
    assert addresses(service_store, "db.red.svc.cluster.local") == ["NOERROR"]
