"""Usage, scopes and rejections of ResourceQuotas."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.pod import Pod
from api.core.services import Service
from api.core.storage import PersistentVolumeClaim, PersistentVolumeClaimSpec
from api.meta import quantity
from api.meta.quantity import Amount
from api.meta.types import Object
from api.validation.registry import decode
from master.admission import resource_quota
from master.controllers import resource_quotas
from master.errors import StatusError
from master.resources.group_resource import GroupResource
from master.resources.quotas import RESOURCE_QUOTAS, ResourceQuota
from master.resources.scheme import BY_KIND, group_resource
from tests.unit.master.admission.examples import decoded, pod, quota

POD_RESOURCE = group_resource(Pod)
NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)

TEXTS = [
    ("0", "0"), ("1", "1"), ("0.5", "500m"), ("1500m", "1500m"), ("1000m", "1"), ("2000", "2k"), ("1e3", "1k"),
    ("64Mi", "64Mi"), ("1024Mi", "1Gi"), ("1.5Gi", "1536Mi"), ("512", "512"), ("0.5Ki", "512"), ("1025Ki", "1025Ki"),
    ("1M", "1M"), ("1000k", "1M"), ("100u", "1m"), ("3Ei", "3Ei"), ("4096Pi", "4Ei"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shortest"), TEXTS)
def test_quota_quantities_are_formatted_in_shortest_form(text: str, shortest: str) -> None:
    assert str(Amount.parse(text)) == shortest


@given(st.integers(0, 10**21), st.booleans())
@example(4_999_001, True)
def test_shortest_quantity_form_is_equal(milli: int, binary: bool) -> None:
    text = str(Amount(milli, binary))
    read = quantity.to_milli(text)
    assert read == milli or (binary and milli >= 1024_000 and read == -(-milli // 1000) * 1000)
    # Without a suffix nobody can tell that powers of 1024 were meant.
    assert str(Amount.parse(text)) == text or (binary and not text.endswith("i"))


def test_quota_sum_has_the_format_of_its_first_nonzero_term() -> None:
    assert str(Amount().add(Amount.parse("64Mi"))) == "64Mi"
    assert str(Amount.parse("64Mi").add(Amount.parse("64000000"))) == "128036Ki"
    assert str(Amount.parse("1G").add(Amount.parse("1Gi"))) == str(10**9 + 2**30)


def shown(obj: Object) -> dict[str, str]:
    return {name: str(amount) for name, amount in resource_quota.usage(BY_KIND[obj.KIND], obj, NOW).items()}


PODS = [
    (pod(), {"pods": "1", "count/pods": "1"}),
    (
        pod({"requests": {"cpu": "100m"}, "limits": {"memory": "64Mi"}}, {"requests": {"cpu": "1"}}),
        {"requests.cpu": "1100m", "cpu": "1100m", "limits.memory": "64Mi", "requests.memory": "64Mi", "memory": "64Mi"},
    ),
    (pod({"requests": {"cpu": "1"}}, init=({"requests": {"cpu": "3"}}, {"requests": {"cpu": "2"}})), {"cpu": "3"}),
    (pod({"requests": {"cpu": "100m"}}, initContainers=[
        {"name": "side", "image": "i:1", "restartPolicy": "Always", "resources": {"requests": {"cpu": "300m"}}},
        {"name": "init", "image": "i:1", "resources": {"requests": {"cpu": "500m"}}}]),
     {"requests.cpu": "800m", "cpu": "800m"}),
    (pod({"requests": {"example.org/gpu": "2"}, "limits": {"example.org/gpu": "2"}}),
     {"requests.example.org/gpu": "2"}),
    (pod({"limits": {"ephemeral-storage": "1Gi"}}), {"limits.ephemeral-storage": "1Gi", "ephemeral-storage": "1Gi"}),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "wanted"), PODS)
def test_quota_usage_of_pods(obj: Pod, wanted: dict[str, str]) -> None:
    assert wanted.items() <= shown(obj).items()


def test_terminated_pod_uses_object_count_quota_only() -> None:
    obj = pod({"requests": {"cpu": "1"}})
    status, meta = obj.status, obj.metadata
    for phase in ("Succeeded", "Failed"):
        assert shown(replace(obj, status=replace(status, phase=phase))) == {"count/pods": "1"}
    leaving = replace(meta, deletion_timestamp="2026-01-01T12:00:00Z", deletion_grace_period_seconds=30)
    assert shown(replace(obj, metadata=leaving))["cpu"] == "1"
    late = replace(leaving, deletion_timestamp="2026-01-01T11:59:00Z")
    assert shown(replace(obj, metadata=late)) == {"count/pods": "1"}


def test_quota_usage_of_services_and_claims() -> None:
    ports = [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}]
    rows = {"ClusterIP": ("0", "0"), "NodePort": ("2", "0"), "LoadBalancer": ("2", "1")}
    for kind, (node_ports, balancers) in rows.items():
        actual = shown(decoded(Service, spec={"ports": ports, "type": kind}))
        assert actual == {
            "services": "1", "count/services": "1",
            "services.nodeports": node_ports, "services.loadbalancers": balancers,
        }  # fmt: skip
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}, "storageClassName": "gold"}
    assert shown(decoded(PersistentVolumeClaim, spec=spec)) == {
        "count/persistentvolumeclaims": "1", "persistentvolumeclaims": "1", "requests.storage": "2Gi",
        "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
        "gold.storageclass.storage.k8s.io/requests.storage": "2Gi",
    }  # fmt: skip


@pytest.mark.parametrize("resource", resource_quota.COUNTED_KINDS, ids=lambda resource: resource.kind)
def test_object_count_quota_charges_only_its_resource(resource: Any) -> None:
    obj = resource.type()
    if resource.kind in ("Pod", "Service", "PersistentVolumeClaim"):
        return
    actual = resource_quota.usage(resource, obj, NOW)
    assert resource_quota.count_resource(resource) in actual
    assert all(resource_quota.is_counted_by(resource, name) for name in actual)


# --- scopes -----------------------------------------------------------------------------------------------------------

SILENT, ASKING = pod(), pod({"requests": {"cpu": "1"}})
SCOPES = [
    ({"scopes": ["BestEffort"]}, SILENT, ASKING),
    ({"scopes": ["NotBestEffort"]}, ASKING, SILENT),
    ({"scopes": ["Terminating"]}, pod(activeDeadlineSeconds=5), SILENT),
    ({"scopes": ["NotTerminating"]}, SILENT, pod(activeDeadlineSeconds=5)),
    ({"scopes": ["PriorityClass"]}, pod(priorityClassName="high"), SILENT),
    ({"scopes": ["BestEffort", "NotTerminating"]}, SILENT, pod(activeDeadlineSeconds=5)),
    ({"scopes": ["CrossNamespacePodAffinity"]},
     pod(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
         {"topologyKey": "zone", "namespaces": ["blue"]}]}}), SILENT),
    *(
        ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", **requirement}]}},
         pod(priorityClassName=good), pod(priorityClassName=bad))
        for requirement, good, bad in (
            ({"operator": "In", "values": ["high", "higher"]}, "high", "low"),
            ({"operator": "NotIn", "values": ["high"]}, "low", "high"),
            ({"operator": "Exists"}, "low", ""),
            ({"operator": "DoesNotExist"}, "", "low"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "inside", "outside"), SCOPES)
def test_quota_scopes_match_pods(spec: dict[str, Any], inside: Pod, outside: Pod) -> None:
    obj = quota({"pods": "1"}, **spec)
    assert resource_quota.matches_scopes(obj, inside)
    assert not resource_quota.matches_scopes(obj, outside)
    assert not resource_quota.matches_scopes(obj, decoded(Service, spec={"ports": [{"port": 80}]}))


@pytest.mark.parametrize(
    ("requirement", "inside", "outside"),
    [
        ({"operator": "In", "values": ["gold"]}, "gold", "silver"),
        ({"operator": "Exists"}, "gold", None),
        ({"operator": "DoesNotExist"}, None, "gold"),
    ],
)
def test_quota_scope_of_a_volume_attributes_class_matches_claims(
    requirement: dict[str, Any], inside: str | None, outside: str | None
) -> None:
    selector = {"matchExpressions": [{"scopeName": "VolumeAttributesClass", **requirement}]}
    obj = quota({"persistentvolumeclaims": "1", "requests.storage": "1Gi"}, scopeSelector=selector)
    for of_class, is_inside in ((inside, True), (outside, False)):
        spec = PersistentVolumeClaimSpec(volume_attributes_class_name=of_class)
        assert resource_quota.matches_scopes(obj, PersistentVolumeClaim(spec=spec)) is is_inside
    assert not resource_quota.matches_scopes(obj, SILENT)


# --- charging ---------------------------------------------------------------------------------------------------------


def nothing(resource: GroupResource, namespace: str) -> list[Any]:
    return []


def charge(obj: Any, *quotas: ResourceQuota, old: Any = None, there: Any = nothing) -> list[ResourceQuota]:
    return resource_quota.charge(BY_KIND[obj.KIND], obj, old, quotas, there, NOW)


def refusal(obj: Any, *quotas: ResourceQuota, there: Any = nothing) -> str:
    with pytest.raises(StatusError) as refused:
        charge(obj, *quotas, there=there)
    assert refused.value.status.code == 403
    return refused.value.status.message


def test_admitted_object_is_charged_to_every_matching_quota() -> None:
    first = quota({"pods": "3", "secrets": "1"}, {"pods": "2", "secrets": "1"}, "a")
    second = quota({"requests.cpu": "2"}, {"requests.cpu": "500m"}, "b")
    other = quota({"secrets": "1"}, {"secrets": "1"}, "c")
    scoped = quota({"pods": "0"}, {"pods": "0"}, "d", scopes=["BestEffort"])
    charged = charge(ASKING, first, second, other, scoped)
    assert [(charged_quota.metadata.name, charged_quota.status.used) for charged_quota in charged] == [
        ("a", {"pods": "3", "secrets": "1"}),
        ("b", {"requests.cpu": "1500m"}),
    ]


def test_quota_rejections_have_the_reference_messages() -> None:
    full = [pod(), pod()]

    def there(resource: GroupResource, namespace: str) -> list[Pod]:
        return full if resource == POD_RESOURCE else []

    assert refusal(pod(), quota({"pods": "2"}, {"pods": "2"}), there=there) == (
        'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2'
    )
    requested = pod({"requests": {"cpu": "3", "memory": "2Gi"}})
    both = quota({"cpu": "2", "requests.memory": "1Gi", "pods": "9"}, {"cpu": "0", "requests.memory": "0", "pods": "0"})
    assert refusal(requested, both).endswith(
        "exceeded quota: q, requested: cpu=3,requests.memory=2Gi, used: cpu=0,requests.memory=0, "
        "limited: cpu=2,requests.memory=1Gi"
    )
    limited = quota({"limits.cpu": "1", "cpu": "1", "requests.ephemeral-storage": "1Gi"}, {})
    assert refusal(pod({}, {"limits": {"cpu": "1"}}, init=({},)), limited).endswith(
        "failed quota: q: must specify cpu for: c0,i0; limits.cpu for: c0,i0"
    )


def test_exhausted_quota_is_recounted_before_a_rejection() -> None:
    stale = quota({"pods": "2"}, {"pods": "2"})
    (charged,) = charge(pod(), stale, there=lambda resource, _: [pod()] if resource == POD_RESOURCE else [])
    assert charged.status.used == {"pods": "2"}
    fresh = quota({"pods": "2"})
    (charged,) = charge(pod(), fresh, there=lambda resource, _: [pod()] if resource == POD_RESOURCE else [])
    assert (charged.status.hard, charged.status.used) == ({"pods": "2"}, {"pods": "2"})


def test_update_is_charged_with_its_increase() -> None:
    def service(kind: str) -> Service:
        result: Service = decoded(Service, spec={"ports": [{"port": 80}], "type": kind})
        return result

    obj = quota({"services": "1", "services.nodeports": "1"}, {"services": "1", "services.nodeports": "0"})
    (charged,) = charge(service("NodePort"), obj, old=service("ClusterIP"))
    assert charged.status.used == {"services": "1", "services.nodeports": "1"}
    assert charge(service("ClusterIP"), obj, old=service("NodePort")) == []
    assert charge(service("NodePort"), obj, old=service("NodePort")) == []
    # The requests of a pod change by a resize only.
    with pytest.raises(StatusError, match="exceeded quota: q, requested: cpu=9"):
        charge(pod({"requests": {"cpu": "9"}}), quota({"cpu": "1"}, {"cpu": "1"}), old=pod())
    small, large = pod({"requests": {"cpu": "1"}}), pod({"requests": {"cpu": "9"}})
    assert charge(small, quota({"cpu": "1"}, {"cpu": "1"}), old=large) == []


def test_quota_controller_counts_existing_objects() -> None:
    obj = quota({"pods": "9", "count/pods": "9", "requests.cpu": "9", "secrets": "9", "count/jobs.batch": "2"}, {})
    ended = replace(ASKING, status=replace(ASKING.status, phase="Failed"))
    rows = {POD_RESOURCE: [ASKING, ASKING, ended, SILENT], BY_KIND["Secret"].group_resource: [BY_KIND["Secret"].type()]}

    def there(resource: GroupResource, namespace: str) -> list[Any]:
        assert namespace == "red"
        return rows.get(resource, [])

    (change,) = resource_quotas.reconcile([obj], there, NOW)
    assert isinstance(change.object, ResourceQuota)
    assert change.object.status.used == {
        "pods": "3", "count/pods": "4", "requests.cpu": "2", "secrets": "1", "count/jobs.batch": "0",
    }  # fmt: skip
    assert not list(resource_quotas.reconcile([change.object], there, NOW))


@given(st.lists(st.tuples(st.sampled_from(["make", "end", "count"]), st.integers(1, 2000)), max_size=40))
def test_quota_is_never_exceeded_in_any_history(steps: list[tuple[str, int]]) -> None:
    obj, pods = quota({"pods": "5", "requests.cpu": "3"}), list[Pod]()

    def taken() -> int:
        return sum(quantity.to_milli(counted.spec.containers[0].resources.requests["cpu"]) for counted in pods)

    def there(resource: GroupResource, namespace: str) -> list[Pod]:
        return pods if resource == POD_RESOURCE else []

    for what, number in steps:
        if what == "make":
            new = pod({"requests": {"cpu": f"{number}m"}})
            try:
                (obj,) = charge(new, obj, there=there)
            except StatusError:
                assert len(pods) == 5 or taken() + number > 3000
            else:
                pods.append(new)
        elif what == "end" and pods:
            pods.pop(number % len(pods))
        else:
            obj = next((change.object for change in resource_quotas.reconcile([obj], there, NOW)), obj)  # type: ignore[assignment]
        assert len(pods) <= 5
        assert taken() <= 3000


# --- the kind ---------------------------------------------------------------------------------------------------------

WRONG = [
    ({"hard": {"cpus": "1"}}, "spec.hard[cpus]", "must be a standard resource for quota"),
    ({"hard": {"pods": "-1"}}, "spec.hard[pods]", "must be greater than or equal to 0"),
    ({"hard": {"pods": "1500m"}}, "spec.hard[pods]", "must be an integer"),
    ({"hard": {"cpu": "much"}}, "spec.hard[cpu]", "is not a quantity"),
    ({"scopes": ["Some"]}, "spec.scopes", "unsupported scope"),
    ({"scopes": ["BestEffort"], "hard": {"cpu": "1"}}, "spec.scopes", "unsupported scope applied to resource"),
    ({"scopes": ["VolumeAttributesClass"], "hard": {"pods": "1"}}, "spec.scopes", "unsupported scope applied"),
    ({"scopes": ["BestEffort", "NotBestEffort"]}, "spec.scopes", "conflicting scopes"),
    ({"scopeSelector": {"matchExpressions": [{"scopeName": "Terminating", "operator": "In", "values": ["a"]}]}},
     "spec.scopeSelector.matchExpressions.operator", "must be 'Exist' only operator"),
    ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]}},
     "spec.scopeSelector.matchExpressions.values", "must be at least one value"),
    ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Like"}]}},
     "spec.scopeSelector.matchExpressions.operator", "not a valid selector operator"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "path", "why"), WRONG)
def test_invalid_quota_is_rejected(spec: dict[str, Any], path: str, why: str) -> None:
    document = {"metadata": {"name": "q", "namespace": "red"}, "spec": spec}
    _, problems, _ = decode(ResourceQuota, document, RESOURCE_QUOTAS.rules)
    assert any(problem.path == path and why in problem.detail for problem in problems), problems


def test_quota_scopes_are_immutable_and_table_shows_usage() -> None:
    old, new = quota({"pods": "1"}), quota({"pods": "1"}, scopes=["Terminating"])
    assert [problem.path for problem in RESOURCE_QUOTAS.rules.validate_update(old, new)] == ["spec.scopes"]
    obj = quota({"pods": "5", "limits.cpu": "2", "cpu": "1000m"}, {"pods": "1", "limits.cpu": "500m", "cpu": "0"})
    assert RESOURCE_QUOTAS.cells(obj, NOW)[1:3] == ("cpu: 0/1, pods: 1/5", "limits.cpu: 500m/2")
