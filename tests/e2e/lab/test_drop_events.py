"""Events on pods and services whose packets are dropped: in a lab, with packets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.testbed.lab.cluster import Cluster
from tests.testbed.lab.manifests import namespace, pod
from tests.testbed.wait import wait_until

CONNECT = """
import socket, sys, time
while True:
    for target in sys.argv[1:]:
        connection = socket.socket()
        connection.setblocking(False)
        try:
            connection.connect((target.partition(":")[0], int(target.partition(":")[2] or 80)))
        except BlockingIOError:
            pass
        time.sleep(0.2)
        connection.close()
"""


@contextmanager
def connecting(cluster: Cluster, pod: tuple[str, str], *targets: str) -> Iterator[None]:
    """Try connections from a pod to these addresses (port 80, or ADDRESS:PORT), again and again, in this context."""
    command = ("nsenter", "-t", str(cluster.pid(*pod)), "-n", sys.executable, "-c", CONNECT, *targets)
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def events_about(cluster: Cluster, target: str) -> list[dict[str, Any]]:
    """Return the events about dropped packets to an address."""
    events: list[dict[str, Any]] = cluster.client.get("/api/v1/events")["items"]
    return [event for event in events if event["reason"] == "PacketsDropped" and f" {target} " in event["message"]]


def messages_on(cluster: Cluster, kind: str, project: str, name: str) -> set[str]:
    """Return the messages about dropped packets on a pod or service."""
    events: list[dict[str, Any]] = cluster.client.get(f"/api/v1/namespaces/{project}/events")["items"]
    return {
        event["message"]
        for event in events
        if event["reason"] == "PacketsDropped"
        and (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == (kind, name)
    }


def of_red_1(events: list[dict[str, Any]]) -> list[str]:
    about = ({**event["involvedObject"], "message": event["message"]} for event in events)
    return [each["message"] for each in about if (each["namespace"], each["name"]) == ("red", "red-1")]


def test_pod_whose_packets_are_dropped_gets_an_event_and_no_other(cluster: Cluster) -> None:
    """Positive control: connections that pass, at the same time, make none. Nor does a kill of the daemon a second."""
    node = cluster.node_of("red", "red-1")
    assert cluster.node_of("blue", "blue-1") == cluster.node_of("default", "default-1") == node
    foreign, foreign_service = cluster.address("blue", "blue-1"), service_address(cluster, "blue")
    passing = (
        cluster.address("default", "default-1"),
        service_address(cluster, "red"),
        cluster.address("red", "red-2"),
    )
    with connecting(cluster, ("red", "red-1"), foreign, *passing):
        wait_until(lambda: of_red_1(events_about(cluster, foreign)), "the pod has an event")
        os.kill(int(cluster.nodes[node].root.joinpath("sdn.pid").read_text()), signal.SIGKILL)
        with connecting(cluster, ("red", "red-1"), foreign_service):
            wait_until(lambda: events_about(cluster, foreign_service), "the restarted daemon writes an event")
    assert of_red_1(events_about(cluster, foreign)) == [
        f"packets to {foreign} are dropped: nothing that this project may reach is there. An administrator sees the "
        f"reason and what would change it by: podlane why red/red-1 {foreign}"
    ]
    for target in passing:
        assert not of_red_1(events_about(cluster, target)), target
    assert [event["metadata"]["namespace"] for event in events_about(cluster, foreign_service)] == ["red"]
    described = cluster.kubectl("-n", "red", "describe", "pod", "red-1").stdout
    assert foreign_service in described
    assert foreign_service not in cluster.kubectl("-n", "blue", "describe", "pod", "blue-1").stdout


ISOLATED = (
    "are dropped, because projects are isolated. An administrator lets another project in by: "
    "podlane network join PROJECT --to drops-b"
)

SERVICE = """---
apiVersion: v1
kind: Service
metadata: {{name: demo, namespace: {0}}}
spec: {{selector: {{app: none}}, ports: [{{port: 80}}]}}
"""


PROJECTS = ("drops-a", "drops-b")


@pytest.fixture
def two_projects(cluster: Cluster) -> Iterator[Cluster]:
    """Provide drops-a with a client and, on another node, a pod; there drops-b has a pod, too. Both have a service."""
    pods = (("drops-a", "client", "node-1"), ("drops-a", "reached", "node-2"), ("drops-b", "refused", "node-2"))
    cluster.apply("".join(map(namespace, PROJECTS)))
    manifests = (pod(name, project, node, grace=0) for project, name, node in pods)
    cluster.apply("".join((*manifests, *map(SERVICE.format, PROJECTS))))
    for project, name, _ in pods:
        cluster.wait_running(project, name)
    yield cluster
    cluster.kubectl("delete", "namespace", *PROJECTS)


def test_receiver_on_another_node_and_services_get_events(two_projects: Cluster) -> None:
    """Positive control: a pod and a service that are reached at the same time have no event."""
    cluster = two_projects
    foreign, own = cluster.address("drops-b", "refused"), service_address(cluster, "drops-a")
    targets = (foreign, f"{own}:81", service_address(cluster, "drops-b"))
    reached = (cluster.address("drops-a", "reached"), service_address(cluster, "default"))
    refused, services = ("Pod", "drops-b", "refused"), [("Service", project, "demo") for project in PROJECTS]
    with connecting(cluster, ("drops-a", "client"), *targets, *reached):
        for about in (refused, *services):
            wait_until(lambda about=about: messages_on(cluster, *about), f"{about} has an event")  # type: ignore[misc]
    assert messages_on(cluster, *refused) == {f"packets from a pod of another project {ISOLATED}"}
    assert [messages_on(cluster, *service) for service in services] == [
        {
            "packets to port 81/tcp of this service are dropped: it has no such port. "
            "To add a port: kubectl edit service -n drops-a demo"
        },
        {f"packets from a pod of another project to this service {ISOLATED}"},
    ]
    assert not messages_on(cluster, "Pod", "drops-a", "reached")
    assert not messages_on(cluster, "Service", "default", "demo")
    on_client = messages_on(cluster, "Pod", "drops-a", "client")
    assert not any(target in message for message in on_client for target in (foreign, *reached))
    assert any(f"{own} port 81/tcp, the service drops-a/demo, are dropped" in message for message in on_client)
    described = cluster.kubectl("-n", "drops-b", "describe", "pod", "refused").stdout
    assert "packets from a pod of another project" in described
    assert cluster.address("drops-a", "client") not in described


def service_address(cluster: Cluster, project: str) -> str:
    return str(cluster.client.get(f"/api/v1/namespaces/{project}/services/demo")["spec"]["clusterIP"])
