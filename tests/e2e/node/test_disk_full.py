"""A full disk: running pods continue, failures are reported, and free space alone resumes everything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.node.consistency import nothing_left, wait_until_consistent
from tests.testbed.node.disturbed_node import (
    AGENT,
    OBJECTS,
    DisturbedNode,
    full_pod,
    pod,
    pod_phases,
    restart_count,
    running_containers,
    small_filesystem,
)
from tests.testbed.wait import wait_until

NO_SPACE = "no space left on device"


class SmallNode(DisturbedNode):
    """A node whose agent's state and Docker's root are on separate small filesystems."""

    def __enter__(self) -> SmallNode:
        small_filesystem(self.docker_data, "64m")
        small_filesystem(self.state, "4m")
        super().__enter__()
        return self


@pytest.fixture(scope="module")
def host() -> Iterator[SmallNode]:
    with SmallNode() as node:
        node.apply(OBJECTS)
        # No pod is evicted, because the test is about pods that stay.
        node.begin("--eviction-hard=memory.available<1Mi", "--image-gc-high-threshold-percent=100")
        yield node


@pytest.fixture
def node(host: SmallNode) -> Iterator[SmallNode]:
    yield host
    host.kubectl("delete", "pods", "--all", "--timeout=60s")
    nothing_left(host)


def fill(directory: Path) -> Path:
    """Create a file that takes all space, to the last byte."""
    ballast = directory / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(b" ")
    return ballast


def events(node: DisturbedNode, name: str) -> str:
    """Return the events of a pod."""
    about = f"--field-selector=involvedObject.name={name}"
    return node.kubectl("get", "events", about, "-o", "jsonpath={.items[*].message}").lower()


@pytest.mark.parametrize("disk", ["agent", "docker"])
def test_full_disk_disturbs_no_running_pod_and_new_pods_start_once_there_is_space(node: SmallNode, disk: str) -> None:
    node.apply(full_pod(node, "old"), pod(node, "plain"))
    wait_until_consistent(node)
    before = running_containers(node)
    ballast = fill(node.state if disk == "agent" else node.docker_data)
    node.apply(full_pod(node, "new"), pod(node, "newer"))
    node.docker("kill", node.status("plain")["containerStatuses"][0]["containerID"].removeprefix("docker://"))
    wait_until(lambda: NO_SPACE in node.log(AGENT).lower(), "the log says what is wrong")
    wait_until(lambda: all(NO_SPACE in events(node, name) for name in ("new", "newer")), "events say what is wrong")
    assert node.node_condition("Ready") == "True"
    assert before.items() - running_containers(node).items() <= before.items()
    assert len(before.items() - running_containers(node).items()) <= 1
    assert pod_phases(node) <= {"Running", "Pending"}
    ballast.unlink()
    wait_until_consistent(node)
    assert restart_count(node, "old") == 0
    assert restart_count(node, "plain") >= 1
