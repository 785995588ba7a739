"""Conversion between served and stored versions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.core.endpoints import Endpoint, EndpointConditions, EndpointSlice, SlicePort
from api.core.events import Event, EventSeries, EventSource
from api.core.pod import Container, EnvVar, Pod, PodSpec, PodStatus
from api.meta.selectors import LabelSelector
from api.meta.types import Condition, ObjectReference
from api.validation.registry import decode
from master.registry.conversion import convert_event, convert_record
from master.resources import BUILTIN
from master.resources.autoscaling import HORIZONTAL_POD_AUTOSCALERS_V1 as V1
from master.resources.autoscaling import METRICS_ANNOTATION as METRICS_NOTE
from master.resources.autoscaling import (
    HorizontalPodAutoscaler,
    HorizontalPodAutoscalerBehavior,
    HorizontalPodAutoscalerSpec,
    HorizontalPodAutoscalerStatus,
    MetricSpec,
    MetricStatus,
    MetricTarget,
    PodsMetricSource,
    ResourceMetricSource,
    cpu_utilization_metric,
)
from master.resources.cron_jobs import CRON_JOBS_V1BETA1, CronJob, CronJobSpec
from master.resources.disruption_budgets import EVERY_POD as ALL_PODS
from master.resources.disruption_budgets import (
    POD_DISRUPTION_BUDGETS_V1BETA1,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
)
from master.resources.events import CORE_FIELD_NAMES, EVENTS_V1
from master.resources.pods import POD_ADDRESSES
from master.resources.resource import AnyResource
from master.resources.scheme import BY_KIND, STORED
from master.resources.services import ENDPOINT_SLICES_V1BETA1
from master.storage.interface import Record, with_revision
from master.storage.interface import WatchEvent as Happened
from tests.testbed.apiserver.changes import key_of
from tests.unit.master.examples import meta

OTHERS = [resource for resource in BUILTIN if resource.stored_as is not None]
TEXT = st.text(max_size=3)
TIMES = st.none() | st.just("2026-01-01T00:00:00.000000Z")
ABOUT = st.builds(ObjectReference, kind=TEXT, name=TEXT, uid=TEXT)
EVENTS = st.builds(
    Event,
    metadata=st.just(meta("e", namespace="red")),
    involved_object=ABOUT,
    related=st.none() | ABOUT,
    source=st.builds(EventSource, component=TEXT, host=TEXT),
    series=st.none() | st.builds(EventSeries, count=st.integers(0, 9), last_observed_time=TIMES),
    count=st.integers(0, 9),
    first_timestamp=TIMES,
    last_timestamp=TIMES,
    event_time=TIMES,
    **dict.fromkeys(("reason", "message", "type", "action", "reporting_component", "reporting_instance"), TEXT),
)


def test_event_fields_map_to_the_other_version() -> None:
    base = {"api_version", "kind", "metadata"}
    assert set(Event.__struct_fields__) - base == set(CORE_FIELD_NAMES.values())
    assert set(EVENTS_V1.type.__struct_fields__) - base == set(CORE_FIELD_NAMES)


@given(EVENTS)
def test_event_round_trips_through_the_other_version(event: Event) -> None:
    assert EVENTS_V1.to_stored(EVENTS_V1.from_stored(event)) == event


ABOUT_NODE = {"involvedObject": {"kind": "Node", "name": "n"}}
EVENT = {"eventTime": "2026-01-01T00:00:00.000000Z", "reportingComponent": "example.org/c", "reportingInstance": "c-1",
        "action": "Binding", "reason": "Bound"} | ABOUT_NODE  # fmt: skip
EVENTS_OF_THE_CORE = [
    ("default", ABOUT_NODE, []),
    ("kube-system", ABOUT_NODE, ["involvedObject.namespace"]),
    ("kube-system", EVENT, []),
    ("red", EVENT, ["involvedObject.namespace"]),
    ("default", {**EVENT, "action": ""}, ["action"]),
    ("default", {**EVENT, "reportingComponent": "a b"}, ["reportingComponent"]),
    ("default", {**EVENT, "reportingInstance": "a" * 129}, ["reportingInstance"]),
    ("default", {**EVENT, "message": "a" * 1025}, ["message"]),
]


@pytest.mark.parametrize(("namespace", "content", "paths"), EVENTS_OF_THE_CORE)
def test_core_event_with_event_time_is_a_new_style_event(namespace: str, content: Any, paths: list[str]) -> None:
    document = {**content, "metadata": {"name": "e", "namespace": namespace}}
    _, problems, _ = decode(Event, document)
    assert [problem.path for problem in problems] == paths


AMOUNT = st.just("3")
TARGETS = st.builds(MetricTarget, type=TEXT, average_value=AMOUNT) | st.integers(1, 99).map(
    lambda percent: MetricTarget(type="Utilization", average_utilization=percent)
)
METRICS = st.one_of(
    st.integers(1, 99).map(cpu_utilization_metric),
    st.builds(
        MetricSpec, type=st.just("Resource"), resource=st.builds(ResourceMetricSource, name=TEXT, target=TARGETS)
    ),
    st.builds(MetricSpec, type=st.just("Pods"), pods=st.builds(PodsMetricSource, target=TARGETS)),
)
SCALERS = st.builds(
    HorizontalPodAutoscaler,
    metadata=st.just(meta("h", namespace="red", annotations={"mine": "kept"})),
    spec=st.builds(
        HorizontalPodAutoscalerSpec,
        min_replicas=st.none() | st.integers(1, 3),
        max_replicas=st.integers(0, 9),
        metrics=st.lists(METRICS, max_size=3).map(tuple),
        behavior=st.none() | st.builds(HorizontalPodAutoscalerBehavior),
    ),
    status=st.builds(
        HorizontalPodAutoscalerStatus,
        current_replicas=st.integers(0, 3),
        conditions=st.lists(st.builds(Condition, type=TEXT, status=TEXT), max_size=2).map(tuple),
        current_metrics=st.lists(st.builds(MetricStatus, type=TEXT), max_size=2).map(tuple),
    ),
)


@given(SCALERS)
def test_autoscaler_round_trips_through_the_other_version(autoscaler: HorizontalPodAutoscaler) -> None:
    assert V1.to_stored(V1.from_stored(autoscaler)) == autoscaler


def test_cpu_autoscaler_converts_without_annotations() -> None:
    plain = V1.from_stored(
        HorizontalPodAutoscaler(spec=HorizontalPodAutoscalerSpec(max_replicas=3, metrics=(cpu_utilization_metric(70),)))
    )
    assert plain.spec.target_cpu_utilization_percentage == 70
    assert plain.metadata.annotations == {}
    other = msgspec.structs.replace(plain.spec, target_cpu_utilization_percentage=80)
    assert V1.to_stored(msgspec.structs.replace(plain, spec=other)).spec.metrics == (cpu_utilization_metric(80),)


NODE_NAMES = st.none() | st.sampled_from(["n1", "n2"])
SLICES = st.builds(
    EndpointSlice,
    metadata=st.just(meta("s", namespace="red")),
    address_type=st.just("IPv4"),
    endpoints=st.lists(
        st.builds(
            Endpoint,
            addresses=st.just(("10.1.0.2",)),
            conditions=st.builds(EndpointConditions, ready=st.none() | st.booleans()),
            node_name=NODE_NAMES,
            zone=NODE_NAMES,
            deprecated_topology=st.dictionaries(st.sampled_from(["rack", "row"]), TEXT, max_size=2),
        ),
        max_size=2,
    ).map(tuple),
    ports=st.lists(st.builds(SlicePort, port=st.integers(1, 9), name=TEXT), max_size=2).map(tuple),
)


@given(SLICES)
def test_endpoint_slice_round_trips_through_the_other_version(endpoint_slice: EndpointSlice) -> None:
    assert ENDPOINT_SLICES_V1BETA1.to_stored(ENDPOINT_SLICES_V1BETA1.from_stored(endpoint_slice)) == endpoint_slice


def test_endpoint_node_converts_to_topology_in_v1beta1() -> None:
    rows = (Endpoint(addresses=("10.1.0.2",), node_name="n1", zone="z"),)
    older = ENDPOINT_SLICES_V1BETA1.from_stored(EndpointSlice(address_type="IPv4", endpoints=rows))
    assert older.endpoints[0].topology == {"kubernetes.io/hostname": "n1", "topology.kubernetes.io/zone": "z"}


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        (None, None),
        (LabelSelector(), ALL_PODS),
        (LabelSelector(match_labels={"a": "b"}), LabelSelector(match_labels={"a": "b"})),
    ],
)
def test_disruption_budget_selector_is_equal_in_both_versions(
    newer: LabelSelector | None, older: LabelSelector | None
) -> None:
    budget = PodDisruptionBudget(metadata=meta("b"), spec=PodDisruptionBudgetSpec(selector=newer, min_available=1))
    seen_as = POD_DISRUPTION_BUDGETS_V1BETA1.from_stored(budget)
    assert seen_as.spec.selector == older
    assert POD_DISRUPTION_BUDGETS_V1BETA1.to_stored(seen_as) == budget


def test_empty_v1beta1_budget_selector_matches_no_pods() -> None:
    spec = PodDisruptionBudgetSpec(selector=LabelSelector())
    empty = POD_DISRUPTION_BUDGETS_V1BETA1.type(metadata=meta("b"), spec=spec)
    assert POD_DISRUPTION_BUDGETS_V1BETA1.to_stored(empty).spec.selector is None


def test_cron_job_round_trips_through_the_other_version() -> None:
    cron_job = CronJob(metadata=meta("c", namespace="red"), spec=CronJobSpec(schedule="* * * * *", suspend=True))
    assert CRON_JOBS_V1BETA1.to_stored(CRON_JOBS_V1BETA1.from_stored(cron_job)) == cron_job
    document = {"metadata": {"name": "c", "namespace": "red"}, "spec": {"schedule": "every day"}}
    _, problems, _ = decode(CRON_JOBS_V1BETA1.type, document, CRON_JOBS_V1BETA1.rules)
    assert "spec.schedule" in {problem.path for problem in problems}


WRONG = [
    ({"spec": {"maxReplicas": 2, "targetCPUUtilizationPercentage": 0}}, "spec.targetCPUUtilizationPercentage"),
    ({"spec": {"maxReplicas": 0}}, "spec.maxReplicas"),
    ({"spec": {"maxReplicas": 2}, "metadata": {"annotations": {METRICS_NOTE: "["}}},
     f"metadata.annotations[{METRICS_NOTE}]"),
    ({"spec": {"maxReplicas": 2}, "metadata": {"annotations": {METRICS_NOTE: '[{"type": "A"}]'}}},
     f"metadata.annotations[{METRICS_NOTE}]"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "path"), WRONG)
def test_invalid_v1_autoscaler_is_rejected_by_path(content: Any, path: str) -> None:
    spec = {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, **content["spec"]}
    document = {"metadata": {"name": "h", **content.get("metadata", {})}, "spec": spec}
    _, problems, _ = decode(V1.type, document, V1.rules)
    assert [problem.path for problem in problems] == [path]


def test_autoscaler_status_is_not_taken_from_annotations() -> None:
    horizontal_pod_autoscaler_status = HorizontalPodAutoscalerStatus(
        conditions=(Condition(type="AbleToScale", status="True"),)
    )
    old = V1.from_stored(HorizontalPodAutoscaler(status=horizontal_pod_autoscaler_status))
    horizontal_pod_autoscaler_v1 = V1.prepare_for_create(old)
    assert V1.to_stored(horizontal_pod_autoscaler_v1).status == HorizontalPodAutoscalerStatus()
    assert (
        V1.to_stored(V1.prepare_for_update(horizontal_pod_autoscaler_v1, old)).status
        == horizontal_pod_autoscaler_status
    )


@pytest.mark.parametrize("resource", OTHERS, ids=lambda resource: f"{resource.plural}.{resource.group}")
def test_served_versions_belong_to_a_stored_kind_of_the_same_scope(resource: AnyResource) -> None:
    stored = BY_KIND[resource.stored_kind]
    assert stored in STORED
    assert stored.namespaced == resource.namespaced
    assert (resource.type.API_VERSION, resource.kind) != (stored.type.API_VERSION, stored.kind)
    assert resource.to_stored(resource.type()) == stored.type()


def test_pod_address_contains_only_owner_and_address() -> None:
    secret = Container(name="c", image="i", env=(EnvVar(name="PASSWORD", value="hidden"),))
    pod = Pod(
        metadata=meta("p", namespace="red", annotations={"note": "hidden"}, labels={"app": "hidden"}),
        spec=PodSpec(containers=(secret,)),
        status=PodStatus(phase="Running", pod_ip="10.128.0.5", message="hidden"),
    )
    converted = msgspec.json.encode(POD_ADDRESSES.from_stored(pod))
    assert b"10.128.0.5" in converted
    assert b"hidden" not in converted


def record(event: Event, revision: int) -> Record:
    stored = with_revision(event, revision)
    return Record(key_of(stored), revision, msgspec.json.encode(stored), Event, stored)


def test_converted_watch_event_has_kind_name_and_revision() -> None:
    about = ObjectReference(name="web")
    event = Event(metadata=meta("e", namespace="red"), involved_object=about, message="hello", count=1)
    before, after = record(event, 3), record(msgspec.structs.replace(event, count=2), 4)
    converted = convert_event(EVENTS_V1, Happened("MODIFIED", after, before))
    assert msgspec.json.decode(converted.record.data) == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": msgspec.to_builtins(after.object.metadata),
        "regarding": {"name": "web"},
        "note": "hello",
        "deprecatedSource": {},
        "deprecatedCount": 2,
    }
    assert (converted.type, converted.record.revision, converted.record.key) == ("MODIFIED", 4, after.key)
    assert converted.previous is not None
    assert converted.previous.object.deprecated_count == 1
    assert convert_record(BY_KIND["Event"], after) is after
