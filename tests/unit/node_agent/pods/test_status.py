"""The status of a pod and of its containers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from api.core.pod import ContainerState, ContainerUser, LinuxContainerUser, Pod, PodStatus
from api.meta.types import Condition
from node_agent.docker.process import process_user
from node_agent.pods.status import StatusInputs, compute_pod_status, merge_status
from node_agent.runtime.actions import compute_pod_actions
from node_agent.runtime.container import group_containers
from tests.unit.node_agent.examples import NOW, make_container, make_pod, make_runtime_pod, make_sandbox, with_status

WEB = make_pod()
ONCE = make_pod(spec="  restartPolicy: Never")


def inputs(**other: object) -> StatusInputs:
    return StatusInputs(node_address="10.245.2.3", address="10.128.0.2", now=NOW, started_at=NOW, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "reason", "exit_code"),
    [(127, "ContainerCannotRun", 127), (128, "StartError", 128), (0, "StartError", 128)],
)
def test_unstartable_container_that_may_not_restart_is_terminated(code: int, reason: str, exit_code: int) -> None:
    dead = make_container(ONCE, state="created", code=code, error="no")
    failures = {"main": ("RunContainerError", "Docker: no")}
    (status,) = compute_pod_status(ONCE, make_runtime_pod(dead), inputs(container_failures=failures)).container_statuses
    assert status.state.terminated is not None
    assert (status.state.terminated.reason, status.state.terminated.exit_code) == (reason, exit_code)
    assert status.state.terminated.started_at == status.state.terminated.finished_at


def test_container_removed_and_recreated_at_once_is_reported() -> None:
    known_pod = with_status(WEB, compute_pod_status(WEB, make_runtime_pod(make_container(WEB)), inputs()))
    (status,) = compute_pod_status(
        known_pod, make_runtime_pod(make_container(WEB, restarts=1)), inputs()
    ).container_statuses
    assert status.last_state.terminated is not None
    assert (status.last_state.terminated.reason, status.last_state.terminated.container_id) == (
        "ContainerStatusUnknown",
        "docker://main-0",
    )
    assert status.restart_count == 1


RICH = make_pod("""\
[{name: main, image: toolbox, resources: {requests: {cpu: "1"}, limits: {memory: 8Mi}},
  volumeMounts: [{name: v, mountPath: /v}, {name: v, mountPath: /w, readOnly: true}]}]
  volumes: [{name: v, emptyDir: {}}]""")


def test_container_status_has_mounts_at_once_and_resources_once_created() -> None:
    (before,) = compute_pod_status(RICH, group_containers([make_sandbox()]), inputs()).container_statuses
    assert [(status.mount_path, status.read_only, status.recursive_read_only) for status in before.volume_mounts] == [
        ("/v", False, None),
        ("/w", True, "Disabled"),
    ]
    assert (before.resources, before.allocated_resources, before.user) == (None, {}, None)
    (status,) = compute_pod_status(RICH, make_runtime_pod(make_container(RICH)), inputs()).container_statuses
    assert status.resources is not None
    assert status.resources.limits == {"memory": "8Mi"}
    assert status.allocated_resources == status.resources.requests == {"cpu": "1", "memory": "8Mi"}


def test_container_status_has_the_initial_user() -> None:
    first = replace(make_container(WEB), user=(1000, 3000, (4000,)))
    status = compute_pod_status(WEB, make_runtime_pod(first), inputs())
    expected = ContainerUser(linux=LinuxContainerUser(uid=1000, gid=3000, supplemental_groups=(4000,)))
    assert status.container_statuses[0].user == expected
    for later in (replace(first, user=(0, 0, ())), replace(first, user=None, state="exited")):
        (status_after,) = compute_pod_status(
            with_status(WEB, status), make_runtime_pod(later), inputs()
        ).container_statuses
        assert status_after.user == expected
    other = replace(make_container(WEB, restarts=1), user=(0, 0, ()))
    (status_after,) = compute_pod_status(with_status(WEB, status), make_runtime_pod(other), inputs()).container_statuses
    assert status_after.user == ContainerUser(linux=LinuxContainerUser(uid=0, gid=0))


def test_container_status_of_an_ended_process_has_no_user() -> None:
    assert process_user(1) is not None
    assert process_user(1 << 30) is None


def test_running_pod_is_ready() -> None:
    status = compute_pod_status(WEB, make_runtime_pod(make_container(WEB)), inputs())
    assert (status.phase, status.pod_ip, status.host_ip) == ("Running", "10.128.0.2", "10.245.2.3")
    assert {condition.type: condition.status for condition in status.conditions} == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": "True",
        "ContainersReady": "True",
        "PodScheduled": "True",
    }


def test_condition_transition_time_changes_only_with_its_status() -> None:
    first = compute_pod_status(WEB, make_runtime_pod(make_container(WEB)), inputs())
    known_pod = with_status(WEB, first)
    later = replace(inputs(), now=NOW + timedelta(seconds=60))
    assert compute_pod_status(known_pod, make_runtime_pod(make_container(WEB)), later) == first
    broken = compute_pod_status(
        known_pod, make_runtime_pod(make_container(WEB, state="exited", code=1, ended=0)), later
    )
    changed_conditions = {
        condition.type for condition in broken.conditions if condition.last_transition_time == "2026-01-31T12:01:00Z"
    }
    assert changed_conditions == {"Ready", "ContainersReady"}


def test_crash_loop_is_reported_with_its_back_off() -> None:
    dead = make_container(WEB, state="exited", code=3, restarts=2, crashes=2)
    (status,) = compute_pod_status(WEB, make_runtime_pod(dead), inputs()).container_statuses
    assert status.restart_count == 2
    assert status.state.waiting is not None
    assert status.state.waiting.reason == "CrashLoopBackOff"
    assert (
        status.state.waiting.message == f"back-off 20s restarting failed container=main pod=web_red({WEB.metadata.uid})"
    )
    assert status.last_state.terminated is not None
    assert status.last_state.terminated.exit_code == 3


@pytest.mark.parametrize(("codes", "phase"), [((0, 0), "Succeeded"), ((0, 1), "Failed")])
def test_completed_pod_has_a_final_phase(codes: tuple[int, int], phase: str) -> None:
    pod = make_pod("[{name: main, image: a}, {name: side, image: b}]", "  restartPolicy: Never")
    main, side = (
        make_container(pod, name, state="exited", code=code) for name, code in zip(("main", "side"), codes, strict=True)
    )
    status = compute_pod_status(pod, make_runtime_pod(main, side), inputs())
    assert status.phase == phase
    assert {condition.reason for condition in status.conditions if condition.type == "Ready"} == {
        f"Pod{'Completed' if phase == 'Succeeded' else 'Failed'}"
    }
    assert compute_pod_status(with_status(pod, status), group_containers([]), inputs()).phase == phase, (
        "a final phase stays"
    )


def test_unstartable_container_reports_why() -> None:
    dead = make_container(WEB, state="created", code=127, error="exec: no such file")
    failures = {"main": ("RunContainerError", "Docker: exec: no such file")}
    (status,) = compute_pod_status(WEB, make_runtime_pod(dead), inputs(container_failures=failures)).container_statuses
    assert status.state.waiting is not None
    assert (status.state.waiting.reason, status.state.waiting.message) == failures["main"]
    assert not status.ready


def test_last_state_of_removed_containers_is_kept() -> None:
    finished = compute_pod_status(
        WEB, make_runtime_pod(make_container(WEB, state="exited", code=7)), inputs(terminating=True)
    )
    after = compute_pod_status(with_status(WEB, finished), group_containers([]), inputs(terminating=True))
    assert (after.phase, after.container_statuses) == ("Failed", finished.container_statuses)


def test_oom_kill_is_reported() -> None:
    pod = ONCE
    dead = replace(make_container(pod, state="exited", code=137), oom_killed=True)
    (status,) = compute_pod_status(pod, make_runtime_pod(dead), inputs()).container_statuses
    assert status.state.terminated is not None
    assert status.state.terminated.reason == "OOMKilled"


def test_pod_without_a_sandbox_waits_and_is_not_ready() -> None:
    status = compute_pod_status(
        WEB,
        group_containers([]),
        replace(inputs(), address="", sandbox_failure=("FailedCreatePodSandBox", "no room")),
    )
    assert (status.phase, status.reason, status.message) == ("Pending", "FailedCreatePodSandBox", "no room")
    assert not any(
        condition.status == "True" for condition in status.conditions if condition.type in {"Ready", "ContainersReady"}
    )


def test_status_fields_of_others_are_kept() -> None:
    own_status = compute_pod_status(WEB, make_runtime_pod(make_container(WEB)), inputs())
    gate = Condition(type="example.com/gate", status="True")
    other_status = PodStatus(phase="Failed", conditions=(gate, *own_status.conditions), nominated_node_name="node-9")
    status = merge_status(own_status, other_status)
    assert status.conditions == (*own_status.conditions, gate)
    assert (status.phase, status.nominated_node_name) == ("Running", "node-9")
    assert merge_status(own_status, status) == status


def test_merge_status_keeps_fields_written_by_others() -> None:
    own_status = compute_pod_status(WEB, make_runtime_pod(make_container(WEB)), inputs())
    other_status = msgspec.structs.replace(own_status, resize="Proposed", resource_claim_statuses=[{"name": "gpu"}])
    assert merge_status(own_status, other_status) == other_status


# --- containers that somebody removed ---------------------------------------------------------------------------------


def pod_with_lost_containers(restarts: int = 0) -> Pod:
    """Return a pod whose status has a container that no longer exists."""
    return with_status(WEB, compute_pod_status(WEB, make_runtime_pod(make_container(WEB, restarts=restarts)), inputs()))


def test_removed_container_is_reported_and_counted_as_restarted() -> None:
    pod = pod_with_lost_containers(restarts=2)
    status = compute_pod_status(pod, group_containers([make_sandbox()]), inputs())
    (status_of_container,) = status.container_statuses
    assert status.phase == "Running"
    assert status_of_container.state.waiting is not None
    assert status_of_container.last_state.terminated is not None
    assert (status_of_container.last_state.terminated.reason, status_of_container.last_state.terminated.exit_code) == (
        "ContainerStatusUnknown",
        137,
    )
    assert status_of_container.last_state.terminated.container_id == "docker://main-2"
    for known_pod in (pod, with_status(pod, status)):
        assert [
            start.restarts for start in compute_pod_actions(known_pod, group_containers([make_sandbox()]), NOW).start
        ] == [3]
    again = compute_pod_status(with_status(pod, status), make_runtime_pod(make_container(pod, restarts=3)), inputs())
    assert again.container_statuses[0].restart_count == 3
    assert again.container_statuses[0].last_state == status_of_container.last_state


def test_never_started_container_has_restart_count_zero() -> None:
    pending = compute_pod_status(WEB, group_containers([make_sandbox()]), inputs())
    assert [
        start.restarts
        for start in compute_pod_actions(with_status(WEB, pending), group_containers([make_sandbox()]), NOW).start
    ] == [0]
    assert pending.container_statuses[0].last_state == ContainerState()


def test_removed_container_of_a_terminating_pod_is_reported_terminated() -> None:
    status = compute_pod_status(pod_with_lost_containers(), group_containers([]), inputs(terminating=True))
    (status_of_container,) = status.container_statuses
    assert status.phase == "Failed"
    assert status_of_container.state.running is None
    assert status_of_container.state.terminated is not None
    assert status_of_container.state.terminated.reason == "ContainerStatusUnknown"
    assert (status_of_container.ready, status_of_container.started) == (False, False)
    assert compute_pod_status(with_status(WEB, status), group_containers([]), inputs(terminating=True)) == status
