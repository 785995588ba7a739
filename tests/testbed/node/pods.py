"""Pods on a node without a pod network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.testbed.node.single_node import NODE, SingleNode
from tests.testbed.wait import wait_until

SLEEP = "exec tail -f /dev/null"


class NodePods:
    """Reads and writes the pods of the project `default`."""

    def __init__(self, node: SingleNode) -> None:
        self.node = node

    def apply(self, *pods: str) -> None:
        self.node.client.apply("\n".join(pods))

    def delete(self, *names: str, wait: bool = True) -> None:
        self.node.kubectl("delete", "pods", *names, "--timeout=60s" if wait else "--wait=false")

    def status(self, pod: str) -> dict[str, Any]:
        return self.node.status(pod)

    def statuses(self, pod: str, kind: str = "containerStatuses") -> dict[str, dict[str, Any]]:
        """Return the statuses of a pod's containers by name."""
        return {status["name"]: status for status in self.status(pod).get(kind, [])}

    def first_status(self, pod: str) -> dict[str, Any]:
        """Return the status of a pod's first container, with an empty state if there is none."""
        return next(iter(self.statuses(pod).values()), {"state": {}})

    def waits(self, pod: str, reason: str, container: str = "") -> str:
        """Wait until a container waits for this reason, and return the message."""

        def message() -> str:
            rows = self.statuses(pod)
            status = rows.get(container, {"state": {}}) if container else self.first_status(pod)
            waiting = status["state"].get("waiting", {})
            return str(waiting.get("message", "") or " ") if waiting.get("reason") == reason else ""

        return wait_until(message, f"{pod} waits: {reason}")

    def until_ready(self, *pods: str) -> None:
        for pod in pods:
            wait_until(lambda pod=pod: self.node.is_ready(pod), f"{pod} is ready")  # type: ignore[misc]

    def until_phase(self, phase: str, *pods: str) -> None:
        for pod in pods:
            wait_until(lambda pod=pod: self.status(pod).get("phase") == phase, f"{pod} is {phase}")  # type: ignore[misc]

    def until_events(self, pod: str, *expected: tuple[str, str, str]) -> None:
        """Wait for events of a pod: (type, reason, beginning of the message)."""

        def is_told(event: tuple[str, str, str]) -> bool:
            actual = self.events(pod)
            return any((kind, why) == event[:2] and words.startswith(event[2]) for kind, why, words, _ in actual)

        for event in expected:
            wait_until(lambda event=event: is_told(event), f"{event} is told of {pod}")  # type: ignore[misc]

    def events(self, pod: str) -> list[tuple[str, str, str, str]]:
        """Return the events of a pod: type, reason, message, part of the pod."""
        path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{pod}"
        return [
            (event["type"], event["reason"], event["message"], event["involvedObject"].get("fieldPath", ""))
            for event in self.node.read(path)["items"]
        ]

    def uid(self, pod: str) -> str:
        """Return the UID of a pod, which must exist."""
        return str(self.node.read_pod(pod)["metadata"]["uid"])

    def exists(self, pod: str) -> bool:
        """Return whether a pod exists."""
        return bool(self.node.read_pod(pod))

    def inside(self, pod: str, command: str, container: str = "") -> str:
        """Run a line of shell in a container and return its output."""
        status = self.statuses(pod)[container] if container else self.first_status(pod)
        return self.node.docker("exec", status["containerID"].removeprefix("docker://"), "sh", "-c", command)

    @contextmanager
    def only(self) -> Iterator[None]:
        """Delete all pods after the block, and wait until nothing is left of them."""
        yield
        self.delete("--all")
        wait_until(lambda: not any(self.node.traces().values()), "nothing is left of any pod")


def runtime_class(name: str) -> str:
    """Return the manifest of a RuntimeClass whose handler has its name."""
    return f"---\napiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {{name: {name}}}\nhandler: {name}\n"


def pod(name: str, containers: str, spec: str = "", grace: int = 1) -> str:
    """Return the manifest of a pod. `containers` and `spec` are YAML; the lines of `containers` are not indented."""
    rows = "".join(f"  {line}\n" for line in containers.strip("\n").splitlines())
    more = "".join(f"  {line}\n" for line in spec.strip("\n").splitlines())
    return f"""\
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec:
  nodeName: {NODE}
  terminationGracePeriodSeconds: {grace}
{more}  containers:
{rows}"""


def main(command: str = SLEEP, more: str = "", name: str = "main") -> str:
    """Return the YAML of a container that runs a line of shell."""
    rest = "".join(f"\n  {line}" for line in more.strip("\n").splitlines())
    shell = json.dumps(["sh", "-c", command])
    return f"- name: {name}\n  image: podlane/toolbox\n  imagePullPolicy: Never\n  command: {shell}{rest}\n"
