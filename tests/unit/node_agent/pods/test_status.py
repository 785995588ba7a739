"""The status of a container: termination, mounts, resources and user."""

from __future__ import annotations

from dataclasses import replace

import pytest

from api.core.pod import ContainerUser, LinuxContainerUser
from node_agent.docker.process import process_user
from node_agent.pods.status import StatusInputs, compute_pod_status
from node_agent.runtime.container import group_containers
from tests.unit.node_agent.examples import NOW, make_container, make_pod, make_runtime_pod, make_sandbox, with_status

WEB = make_pod()
ONCE = make_pod(spec="  restartPolicy: Never")


def facts(**other: object) -> StatusInputs:
    return StatusInputs(node_address="10.245.2.3", address="10.128.0.2", now=NOW, started_at=NOW, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "reason", "exit_code"),
    [(127, "ContainerCannotRun", 127), (128, "StartError", 128), (0, "StartError", 128)],
)
def test_unstartable_container_that_may_not_restart_is_terminated(code: int, reason: str, exit_code: int) -> None:
    dead = make_container(ONCE, state="created", code=code, error="no")
    failures = {"main": ("RunContainerError", "Docker: no")}
    (status,) = compute_pod_status(ONCE, make_runtime_pod(dead), facts(container_failures=failures)).container_statuses
    assert status.state.terminated is not None
    assert (status.state.terminated.reason, status.state.terminated.exit_code) == (reason, exit_code)
    assert status.state.terminated.started_at == status.state.terminated.finished_at


def test_container_removed_and_recreated_at_once_is_reported() -> None:
    known_pod = with_status(WEB, compute_pod_status(WEB, make_runtime_pod(make_container(WEB)), facts()))
    (status,) = compute_pod_status(
        known_pod, make_runtime_pod(make_container(WEB, restarts=1)), facts()
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
    (before,) = compute_pod_status(RICH, group_containers([make_sandbox()]), facts()).container_statuses
    assert [(status.mount_path, status.read_only, status.recursive_read_only) for status in before.volume_mounts] == [
        ("/v", False, None),
        ("/w", True, "Disabled"),
    ]
    assert (before.resources, before.allocated_resources, before.user) == (None, {}, None)
    (status,) = compute_pod_status(RICH, make_runtime_pod(make_container(RICH)), facts()).container_statuses
    assert status.resources is not None
    assert status.resources.limits == {"memory": "8Mi"}
    assert status.allocated_resources == status.resources.requests == {"cpu": "1", "memory": "8Mi"}


def test_container_status_has_the_initial_user() -> None:
    first = replace(make_container(WEB), user=(1000, 3000, (4000,)))
    status = compute_pod_status(WEB, make_runtime_pod(first), facts())
    expected = ContainerUser(linux=LinuxContainerUser(uid=1000, gid=3000, supplemental_groups=(4000,)))
    assert status.container_statuses[0].user == expected
    for later in (replace(first, user=(0, 0, ())), replace(first, user=None, state="exited")):
        (status_after,) = compute_pod_status(
            with_status(WEB, status), make_runtime_pod(later), facts()
        ).container_statuses
        assert status_after.user == expected
    other = replace(make_container(WEB, restarts=1), user=(0, 0, ()))
    (status_after,) = compute_pod_status(with_status(WEB, status), make_runtime_pod(other), facts()).container_statuses
    assert status_after.user == ContainerUser(linux=LinuxContainerUser(uid=0, gid=0))


def test_container_status_of_an_ended_process_has_no_user() -> None:
    assert process_user(1) is not None
    assert process_user(1 << 30) is None
