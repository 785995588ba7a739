"""Resource requests and limits of a pod as a whole."""

from __future__ import annotations

import pytest

from api.core.pod import Container, PodSpec, ResourceRequirements
from api.core.resource_requests import cpu_limit, cpu_request, pod_limit, pod_request, qos_class


def needs(cpu: str, *, sidecar: bool = False, limit: bool = False) -> Container:
    amounts: dict[str, str | int | float] = {"cpu": cpu} if cpu else {}
    resources = ResourceRequirements(limits=amounts) if limit else ResourceRequirements(requests=amounts)
    return Container(name="c", image="i", resources=resources, restart_policy="Always" if sidecar else None)


@pytest.mark.parametrize(
    ("init", "own", "wanted"),
    [
        ([], ["100m", "200m"], 300),
        ([needs("500m")], ["100m", "200m"], 500),
        ([needs("250m")], ["100m", "200m"], 300),
        ([needs("100m", sidecar=True)], ["100m", "200m"], 400),
        ([needs("500m"), needs("100m", sidecar=True)], ["100m"], 500),
        ([needs("100m", sidecar=True), needs("500m")], ["100m"], 600),
        ([needs("300m", sidecar=True), needs("500m"), needs("400m", sidecar=True)], ["50m"], 800),
    ],
)
def test_pod_request_includes_init_containers_and_sidecars(init: list[Container], own: list[str], wanted: int) -> None:
    spec = PodSpec(init_containers=tuple(init), containers=tuple(map(needs, own)))
    assert pod_request(spec, cpu_request) == wanted


def test_pod_limit_exists_only_when_every_container_has_one() -> None:
    container, two = needs("100m", limit=True), needs("200m", limit=True)
    assert pod_limit(PodSpec(containers=(container, two)), cpu_limit) == 300
    assert pod_limit(PodSpec(containers=(container, needs(""))), cpu_limit) == 0
    assert pod_limit(PodSpec(init_containers=(needs(""),), containers=(container,)), cpu_limit) == 0


def test_pod_limit_includes_an_init_container_beside_an_earlier_sidecar() -> None:
    sidecar, init = needs("300m", sidecar=True, limit=True), needs("500m", limit=True)
    spec = PodSpec(init_containers=(sidecar, init), containers=(needs("100m", limit=True),))
    assert pod_limit(spec, cpu_limit) == 800


def test_limit_without_a_request_is_the_request() -> None:
    assert cpu_request(needs("100m", limit=True)) == 100


def test_init_containers_count_for_the_qos_class() -> None:
    full = Container(resources=ResourceRequirements(limits={"cpu": 1, "memory": 1}, requests={"cpu": 1, "memory": 1}))
    assert qos_class([full]) == "Guaranteed"
    assert qos_class([full, needs("")]) == "Burstable"
    assert qos_class([needs("")]) == "BestEffort"


@pytest.mark.parametrize(
    ("limits", "requests", "wanted"),
    [
        ({"ephemeral-storage": "1Gi"}, {"ephemeral-storage": "1Gi"}, "BestEffort"),
        ({}, {"cpu": "0", "memory": 0}, "BestEffort"),
        ({}, {"memory": "1"}, "Burstable"),
        ({"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}, {"cpu": "1000m", "memory": "1024Mi"}, "Guaranteed"),
        ({"cpu": "1", "memory": "1Gi"}, {"cpu": "1", "memory": "1Mi"}, "Burstable"),
        ({"cpu": "0", "memory": "1Gi"}, {"cpu": "0", "memory": "1Gi"}, "Burstable"),
    ],
)
def test_qos_class_depends_on_cpu_and_memory_only(
    limits: dict[str, str | int | float], requests: dict[str, str | int | float], wanted: str
) -> None:
    resources = ResourceRequirements(limits=limits, requests=requests)
    assert qos_class([Container(name="main", resources=resources)]) == wanted
