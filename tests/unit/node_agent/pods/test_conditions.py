"""Conditions and readiness gates of pods."""

from __future__ import annotations

from dataclasses import replace as changed

import pytest
from msgspec.structs import replace

from api.core.pod import Pod, PodStatus
from api.meta.types import Condition
from api.validation.registry import check
from node_agent.pods.status import StatusInputs, compute_pod_status
from node_agent.probes.state import ProbeResults
from node_agent.runtime.lifecycle_state import LifecycleState
from tests.unit.node_agent.examples import NOW, make_container, make_pod, make_runtime_pod, with_status

GATED = make_pod(spec="  readinessGates: [{conditionType: example.com/lb}, {conditionType: example.com/dns}]")
WEB = make_pod()


def make_inputs(**other: object) -> StatusInputs:
    return StatusInputs(node_address="10.245.2.3", address="10.128.0.2", now=NOW, started_at=NOW, **other)  # type: ignore[arg-type]


def with_conditions(pod: Pod, *conditions: Condition) -> Pod:
    return with_status(pod, PodStatus(conditions=conditions))


def condition_of(status: PodStatus, kind: str) -> tuple[str, str, str]:
    condition = next(condition for condition in status.conditions if condition.type == kind)
    return condition.status, condition.reason, condition.message


GATES = [
    (
        (),
        'corresponding condition of pod readiness gate "example.com/lb" does not exist., '
        'corresponding condition of pod readiness gate "example.com/dns" does not exist.',
    ),
    (
        (Condition(type="example.com/lb", status="True"), Condition(type="example.com/dns", status="False")),
        'the status of pod readiness gate "example.com/dns" is not "True", but False',
    ),
]


@pytest.mark.parametrize(("conditions", "message"), GATES)
def test_pod_is_not_ready_before_its_readiness_gates(conditions: tuple[Condition, ...], message: str) -> None:
    status = compute_pod_status(
        with_conditions(GATED, *conditions), make_runtime_pod(make_container(GATED)), make_inputs()
    )
    assert condition_of(status, "ContainersReady") == ("True", "", "")
    assert condition_of(status, "Ready") == ("False", "ReadinessGatesNotReady", message)


def test_pod_with_true_readiness_gates_is_ready_with_its_containers() -> None:
    open_gates = tuple(Condition(type=f"example.com/{name}", status="True") for name in ("lb", "dns"))
    pod = with_conditions(GATED, *open_gates)
    assert condition_of(compute_pod_status(pod, make_runtime_pod(make_container(GATED)), make_inputs()), "Ready") == (
        "True",
        "",
        "",
    )
    down = compute_pod_status(pod, make_runtime_pod(make_container(GATED, state="exited", code=1)), make_inputs())
    assert condition_of(down, "Ready")[1] == "ContainersNotReady"
    assert down.conditions[-2:] == open_gates, "what others say stays"


def test_readiness_gate_names_a_condition_type() -> None:
    wrong = replace(
        WEB,
        spec=replace(GATED.spec, readiness_gates=(replace(GATED.spec.readiness_gates[0], condition_type="no way"),)),
    )
    assert [problem.path for problem in check(wrong)] == ["spec.readinessGates[0].conditionType"]


def test_conditions_have_the_observed_generation() -> None:
    newer = replace(WEB, metadata=replace(WEB.metadata, generation=4))
    status = compute_pod_status(newer, make_runtime_pod(make_container(newer)), make_inputs())
    assert {condition.observed_generation for condition in status.conditions} == {4}
    assert status.observed_generation == 4


def test_container_status_names_a_pullable_image_when_known() -> None:
    container = changed(make_container(WEB), image_id="sha256:aa")
    public = changed(container, digest="docker.io/library/toolbox@sha256:bb")
    assert (
        compute_pod_status(WEB, make_runtime_pod(container), make_inputs()).container_statuses[0].image_id
        == "docker://sha256:aa"
    )
    (status,) = compute_pod_status(WEB, make_runtime_pod(public), make_inputs()).container_statuses
    assert status.image_id == "docker-pullable://docker.io/library/toolbox@sha256:bb"
    assert status.container_id == "docker://main-0"


# --- sidecars ---------------------------------------------------------------------------------------------------------

SIDECAR = make_pod(
    spec="""\
  initContainers:
  - {name: migrate, image: toolbox}
  - name: proxy
    image: toolbox
    restartPolicy: Always
    startupProbe: {tcpSocket: {port: 1}}
    readinessProbe: {tcpSocket: {port: 1}}
"""
)
"""A pod with an init container and a sidecar that has probes."""


@pytest.mark.parametrize("migrate_exists", [True, False])
def test_pod_is_ready_only_with_its_sidecars(migrate_exists: bool) -> None:
    """A regular init container does not count, even if it was removed after it has succeeded."""
    migrate = (make_container(SIDECAR, "migrate", state="exited"),) if migrate_exists else ()
    runtime_pod = make_runtime_pod(*migrate, make_container(SIDECAR, "proxy"), make_container(SIDECAR))

    def status_with(ready: bool) -> PodStatus:
        state = LifecycleState(probe_results={"proxy-0": ProbeResults(started=True, ready=ready)})
        return compute_pod_status(SIDECAR, runtime_pod, make_inputs(state=state))

    unready = ("False", "ContainersNotReady", "containers with unready status: [proxy]")
    for condition_type in ("ContainersReady", "Ready"):
        assert condition_of(status_with(False), condition_type) == unready
        assert condition_of(status_with(True), condition_type) == ("True", "", "")
    assert condition_of(status_with(False), "Initialized") == ("True", "", "")


def test_exited_sidecar_makes_its_pod_unready_but_not_uninitialized() -> None:
    runtime_pod = make_runtime_pod(make_container(SIDECAR), make_container(SIDECAR, "proxy", state="exited"))
    status = compute_pod_status(SIDECAR, runtime_pod, make_inputs())
    assert condition_of(status, "Ready")[::2] == ("False", "containers with unready status: [proxy]")
    assert condition_of(status, "Initialized")[0] == "True"


@pytest.mark.parametrize(
    ("probe_results", "expected"),
    [
        (
            ProbeResults(started=False, ready=False),
            ("False", "ContainersNotInitialized", "containers with incomplete status: [migrate proxy]"),
        ),
        (
            ProbeResults(started=True, ready=False),
            ("False", "ContainersNotInitialized", "containers with incomplete status: [migrate]"),
        ),
    ],
)
def test_initialized_needs_started_sidecars_not_ready_ones(
    probe_results: ProbeResults, expected: tuple[str, str, str]
) -> None:
    runtime_pod = make_runtime_pod(make_container(SIDECAR, "migrate"), make_container(SIDECAR, "proxy"))
    state = LifecycleState(probe_results={"proxy-0": probe_results})
    status = compute_pod_status(SIDECAR, runtime_pod, make_inputs(state=state))
    assert condition_of(status, "Initialized") == expected
