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
    """Return a container that sleeps, unless `fields` has another command."""
    return {"name": name, "image": "podlane/toolbox", "imagePullPolicy": "IfNotPresent", "command": SLEEP} | fields


def pod(name: str, *containers: dict[str, Any], meta: dict[str, Any] | None = None, **spec: Any) -> str:
    """Return the manifest of a pod on the node. Without containers it gets one that sleeps."""
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"} | (meta or {}),
        "spec": {"nodeName": NODE, "terminationGracePeriodSeconds": 0, "containers": containers or [container()]}
        | spec,
    }
    return f"---\n{json.dumps(document)}\n"


def unrestricted(name: str, *containers: dict[str, Any], **spec: Any) -> str:
    """Return the manifest of a pod to which the security context constraints add nothing."""
    return pod(name, *containers, meta={"annotations": {"openshift.io/required-scc": "privileged"}}, **spec)


def inspect_container(node: SingleNode, name: str, container: str = "main") -> dict[str, Any]:
    """Return what Docker reports of a pod's newest container of that name."""
    labels = (f"io.kubernetes.pod.name={name}", f"io.kubernetes.container.name={container}")
    actual = node.docker("ps", "-aq", "--no-trunc", *(f"--filter=label={label}" for label in labels)).split()
    assert actual, f"{name} has no container {container}"
    answer: dict[str, Any] = json.loads(node.docker("inspect", actual[0]))[0]
    return answer


def exec_output(node: SingleNode, name: str, *words: str, container: str = "main") -> str:
    """Run a program in a container of a pod and return its output."""
    return node.docker("exec", inspect_container(node, name, container)["Id"], *words)


def exec_fails(node: SingleNode, name: str, *words: str, container: str = "main") -> bool:
    """Run a program in a container of a pod and return whether it fails."""
    command = ["docker", "-H", f"unix://{node.root}/docker/docker.sock", "exec"]
    identity = inspect_container(node, name, container)["Id"]
    return subprocess.run([*command, identity, *words], capture_output=True, check=False).returncode != 0


def container_status(node: SingleNode, name: str, container: str = "main") -> dict[str, Any]:
    """Return the status of a pod's container, empty if there is none."""
    status = node.status(name)
    rows = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
    actual: dict[str, Any] = next(
        (status_of_container for status_of_container in rows if status_of_container["name"] == container), {}
    )
    return actual


def wait_running(node: SingleNode, *names: str, container: str = "main") -> None:
    """Wait until the container of each pod runs."""
    for name in names:
        look = partial(container_status, node, name, container)
        wait_until(lambda look=look: "running" in look().get("state", {}), f"{name} runs")  # type: ignore[misc]


def wait_waiting(node: SingleNode, name: str, reason: str, container: str = "main") -> str:
    """Wait until a container waits for this reason, and return the message."""

    def message() -> str:
        waiting = container_status(node, name, container).get("state", {}).get("waiting", {})
        return str(waiting.get("message", "")) if waiting.get("reason") == reason else ""

    return wait_until(message, f"{name} waits with {reason}")


def wait_for_event(node: SingleNode, name: str, reason: str) -> str:
    """Wait for events of a pod with this reason, and return their messages, a line each."""
    path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{name}%2Creason%3D{reason}"

    def messages() -> str:
        return "\n".join(event["message"] for event in node.read(path)["items"])

    return wait_until(messages, f"event {reason} of {name}")


def uid_of(node: SingleNode, name: str) -> str:
    """Return the UID of a pod, which must exist."""
    return str(node.read_pod(name)["metadata"]["uid"])


def pod_dir(node: SingleNode, name: str) -> Path:
    """Return the directory of a pod on the host."""
    return node.state / "pods" / uid_of(node, name)
