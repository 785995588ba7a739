"""Inspects a pod of a SingleNode: its containers in Docker, its files on the host, its status and events."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from tests.testbed.node.single_node import NODE, SingleNode
from tests.testbed.wait import wait_until

SANDBOX = "POD"
SLEEP = ["tail", "-f", "/dev/null"]


def container(name: str = "main", **fields: Any) -> dict[str, Any]:
    """A container that sleeps, unless its fields say otherwise."""
    return {"name": name, "image": "podlane/toolbox", "imagePullPolicy": "IfNotPresent", "command": SLEEP} | fields


def pod(name: str, *containers: dict[str, Any], meta: dict[str, Any] | None = None, **spec: Any) -> str:
    """A document with a pod of the node; with one sleeping container if none are given."""
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"} | (meta or {}),
        "spec": {"nodeName": NODE, "terminationGracePeriodSeconds": 0, "containers": containers or [container()]}
        | spec,
    }
    return f"---\n{json.dumps(document)}\n"


def inspect_container(node: SingleNode, name: str, container: str = "main") -> dict[str, Any]:
    """The newest container of that name of a pod, as Docker inspects it."""
    labels = (f"io.kubernetes.pod.name={name}", f"io.kubernetes.container.name={container}")
    actual = node.docker("ps", "-aq", "--no-trunc", *(f"--filter=label={label}" for label in labels)).split()
    assert actual, f"{name} has no container {container}"
    answer: dict[str, Any] = json.loads(node.docker("inspect", actual[0]))[0]
    return answer


def exec_output(node: SingleNode, name: str, *words: str, container: str = "main") -> str:
    """What a program says that is run in a container of a pod."""
    return node.docker("exec", inspect_container(node, name, container)["Id"], *words)


def exec_fails(node: SingleNode, name: str, *words: str, container: str = "main") -> bool:
    """Whether a program that is run in a container of a pod fails."""
    command = ["docker", "-H", f"unix://{node.root}/docker/docker.sock", "exec"]
    identity = inspect_container(node, name, container)["Id"]
    return subprocess.run([*command, identity, *words], capture_output=True, check=False).returncode != 0


def container_status(node: SingleNode, name: str, container: str = "main") -> dict[str, Any]:
    """What the pod's status tells of a container; empty while it tells nothing."""
    status = node.status(name)
    rows = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
    actual: dict[str, Any] = next((row for row in rows if row["name"] == container), {})
    return actual


def wait_running(node: SingleNode, *names: str, container: str = "main") -> None:
    """Until the container of each of the pods runs."""
    for name in names:
        look = partial(container_status, node, name, container)
        wait_until(lambda look=look: "running" in look().get("state", {}), f"{name} runs")  # type: ignore[misc]


def wait_waiting(node: SingleNode, name: str, reason: str, container: str = "main") -> str:
    """Until a container waits for this reason; with which message."""

    def message() -> str:
        waiting = container_status(node, name, container).get("state", {}).get("waiting", {})
        return str(waiting.get("message", "")) if waiting.get("reason") == reason else ""

    return wait_until(message, f"{name} waits with {reason}")


def wait_for_event(node: SingleNode, name: str, reason: str) -> str:
    """Until an event of a pod has this reason; its message."""
    path = "{range .items[*]}{.message}{'\\n'}{end}"
    selector = f"--field-selector=involvedObject.name={name},reason={reason}"
    ask = partial(node.kubectl, "get", "events", selector, "-o", f"jsonpath={path}")
    return wait_until(lambda: ask().strip(), f"{reason} is told of {name}")


def uid_of(node: SingleNode, name: str) -> str:
    """The UID of a pod."""
    return node.kubectl("get", "pod", name, "-o", "jsonpath={.metadata.uid}")


def pod_dir(node: SingleNode, name: str) -> Path:
    """The directory of a pod on the host."""
    return node.state / "pods" / uid_of(node, name)
