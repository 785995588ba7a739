"""Pods and containers for the tests of the node agent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from api.codec import manifest
from api.core.pod import Pod, PodStatus
from api.core.resource_requests import all_containers
from api.validation.registry import default
from node_agent.node.node_status import HostFacts
from node_agent.runtime import container as label
from node_agent.runtime.container import RuntimeContainer, RuntimePod, group_containers
from node_agent.runtime.spec import container_hash

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
UID = "0b7c"
SANDBOX = "5a" * 32


def make_pod(containers: str = "[{name: main, image: toolbox}]", spec: str = "", meta: str = "") -> Pod:
    """Return a pod of the project red on node-1. The arguments are YAML."""
    text = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: web, namespace: red, uid: {UID}{meta}}}
spec:
  nodeName: node-1
  containers: {containers}
{spec}
"""
    (document,) = manifest.parse_manifest(text)
    assert isinstance(document.obj, Pod), document.errors
    return default(document.obj)


def make_sandbox(attempt: int = 0, state: str = "running", identity: str = SANDBOX) -> RuntimeContainer:
    """Return a sandbox of that pod."""
    labels = {label.TYPE: label.SANDBOX_TYPE, label.CONTAINER_NAME: "POD", label.ATTEMPT: str(attempt)}
    return RuntimeContainer(id=identity, labels=labels | {label.POD_UID: UID}, state=state, pid=7, created_at=NOW)


def make_container(
    of: Pod,
    name: str = "main",
    *,
    state: str = "running",
    code: int = 0,
    restarts: int = 0,
    crashes: int = 0,
    ended: float = 0.0,
    ran: float = 1.0,
    error: str = "",
    inside: str = SANDBOX,
) -> RuntimeContainer:
    """Return a container of that pod, which exited `ended` seconds ago and had run for `ran` seconds."""
    container = next(container for container in all_containers(of) if container.name == name)
    labels = {
        label.TYPE: label.CONTAINER_TYPE,
        label.CONTAINER_NAME: name,
        label.POD_UID: UID,
        label.SANDBOX_ID: inside,
        label.HASH: container_hash(container),
        label.RESTARTS: str(restarts),
        label.CRASHES: str(crashes),
    }
    end = NOW - timedelta(seconds=ended) if state == "exited" else None
    begin = (end or NOW) - timedelta(seconds=ran)
    return RuntimeContainer(
        id=f"{name}-{restarts}",
        labels=labels,
        state=state,
        exit_code=code,
        error=error,
        created_at=begin,
        started_at=None if state == "created" else begin,
        finished_at=end,
    )


def make_runtime_pod(*containers: RuntimeContainer, sandbox: RuntimeContainer | None = None) -> RuntimePod:
    """Return the containers of the pod, in a running sandbox unless another sandbox is given."""
    return group_containers([sandbox or make_sandbox(), *containers])


def with_status(of: Pod, status: PodStatus) -> Pod:
    """Return the pod with this status."""
    return replace(of, status=status)


HOST_FACTS = HostFacts(
    cpus=4,
    memory=8 << 30,
    disk=100 << 30,
    machine_id="m",
    system_uuid="s",
    boot_id="b",
    kernel="6.1",
    os_image="Debian",
    architecture="amd64",
    docker_version="20.10.24",
    agent_version="0.1.0",
    huge_pages={"2Mi": 1 << 30, "1Gi": 0},
)
