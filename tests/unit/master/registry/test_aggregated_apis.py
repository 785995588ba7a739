"""The API versions of other servers: which requests go there, and what discovery shows."""

from __future__ import annotations

from api.meta.types import Condition, ObjectMeta
from master.registry.aggregated_apis import AggregatedAPIs, Availability, Discovered, backend_of
from master.resources.api_services import APIService, APIServiceReference, APIServiceSpec, APIServiceStatus
from tests.testbed.apiserver.api_service_store import APIServiceStore


def api(group: str = "g.io", status: str = "True", service: str = "svc", uid: str = "1") -> APIService:
    version = "v1beta1" if group == "metrics.k8s.io" else "v1"
    return APIService(
        metadata=ObjectMeta(name=f"{version}.{group}", uid=uid),
        spec=APIServiceSpec(
            service=APIServiceReference(namespace="ns", name=service, port=443) if service else None,
            group=group, version=version, group_priority_minimum=1000, version_priority=15,
        ),
        status=APIServiceStatus(conditions=(Condition(type="Available", status=status),)),
    )  # fmt: skip


def loaded(*apis: APIService) -> tuple[AggregatedAPIs, APIServiceStore]:
    store = APIServiceStore(*apis)
    found = AggregatedAPIs(store)  # type: ignore[arg-type]
    found.load()
    return found, store


def test_without_other_servers_everything_stays_here() -> None:
    apis, _ = loaded(api(service=""))
    assert (apis.at("g.io", "v1"), apis.versions(), apis.backends, list(apis.metrics())) == (None, (), {}, [])


def test_unavailable_server_keeps_its_version_unless_this_server_has_it() -> None:
    apis, store = loaded(api(status="False"), api("metrics.k8s.io", "False"))
    backend = apis.at("g.io", "v1")
    assert backend is not None
    assert not apis.is_available(backend)
    assert apis.at("metrics.k8s.io", "v1beta1") is None
    assert [version.group for version in apis.versions()] == ["g.io"]
    store.put(api("metrics.k8s.io"))
    assert apis.at("metrics.k8s.io", "v1beta1") is not None
    store.delete(api("metrics.k8s.io"))
    assert apis.at("metrics.k8s.io", "v1beta1") is None


def test_groups_of_this_server_never_leave_it_whatever_is_stored() -> None:
    apis, _ = loaded(api("apps"), api("podlane.io"))
    assert (apis.at("apps", "v1"), apis.at("podlane.io", "v1"), apis.versions()) == (None, None, ())


def test_result_for_a_former_state_is_ignored() -> None:
    apis, store = loaded(api())
    backend = backend_of(api())
    assert backend is not None
    passed = Availability(backend, "True", "Passed", "all checks passed")
    assert apis.note_check(passed, Discovered("1", b"[1]"))
    assert not apis.note_check(passed, Discovered("1", b"[1]")), "nothing new"
    assert apis.versions()[0].is_current
    for later in (api(service="other"), api(uid="2")):
        store.put(later)
        assert not apis.note_check(passed, Discovered("2", b"[2]"))
        assert (apis.versions()[0].resources, apis.versions()[0].is_current) == (b"[]", False)
    store.delete(api())
    assert not apis.note_check(passed, Discovered("2", b"[2]"))
    assert apis.availability("v1.g.io") is None


def test_version_that_was_discovered_stays_as_stale_while_its_server_fails() -> None:
    apis, _ = loaded(api())
    backend = backend_of(api())
    assert backend is not None
    apis.note_check(Availability(backend, "True", "Passed", ""), Discovered("1", b"[1]"))
    apis.note_check(Availability(backend, "False", "FailedDiscoveryCheck", "x"), None)
    (version,) = apis.versions()
    assert (version.resources, version.is_current) == (b"[1]", False)


def test_only_servers_that_may_have_objects_in_namespaces_hold_them() -> None:
    apis, _ = loaded(api(), api("custom.metrics.k8s.io"), api("cluster.io"))
    assert {backend.group for backend in apis.holders()} == {"g.io", "cluster.io"}, "nothing is known of them"
    backend = backend_of(api("cluster.io"))
    assert backend is not None
    apis.note_check(Availability(backend, "True", "Passed", ""), Discovered("1", b"[1]"))
    assert [each.group for each in apis.holders()] == ["g.io"]
