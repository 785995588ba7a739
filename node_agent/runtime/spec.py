"""Converts a pod to the configuration of its containers: names, labels, mounts, resources. Pure.

Names and labels are dockershim's, so that tools written for dockershim find the containers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from posixpath import normpath

import msgspec

from api.core.pod import Container, Pod
from api.meta import quantity
from api.validation.static_pods import is_critical_pod
from node_agent.cgroups.hierarchy import MIN_SHARES, cpu_quota, cpu_shares
from node_agent.host import (
    LOG_SUFFIX,
    HostInfo,
    etc_hosts_path,
    pod_dir,
    pod_log_dir_name,
    resolv_conf_path,
    termination_message_path,
)
from node_agent.network.dns import pod_domain, sandbox_hostname
from node_agent.runtime.container import (
    ANNOTATION,
    ATTEMPT,
    CONTAINER_NAME,
    CONTAINER_TYPE,
    CRASHES,
    GRACE,
    HASH,
    LOG_PATH,
    MESSAGE_PATH,
    MESSAGE_POLICY,
    POD_NAME,
    POD_NAMESPACE,
    POD_UID,
    PORTS,
    PRE_STOP,
    RESERVED_LABELS,
    RESTARTS,
    SANDBOX_ID,
    SANDBOX_TYPE,
    TYPE,
    DockerResources,
    pre_stop_label,
    stop_signal,
)
from node_agent.runtime.environment import expand
from node_agent.runtime.security import SecurityOptions, sandbox_security, sysctls
from node_agent.volumes.paths import binds

HOSTS_PATH, RESOLV_CONF_PATH = "/etc/hosts", "/etc/resolv.conf"
NODE_CRITICAL = "system-node-critical"


@dataclass(frozen=True, slots=True)
class ContainerConfig:
    """The configuration of a container to create.

    `network`, `ipc`, `pid` and `uts` are Docker modes. `memory` is in bytes, `cpu_quota` in µs per 100 ms. With the
    network `none` the container has a network namespace with only a loopback interface, in which Docker changes
    nothing. Without a `stop_signal` the one of the image applies.
    """

    name: str
    image: str
    labels: Mapping[str, str]
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    working_dir: str = ""
    environment: tuple[str, ...] = ()
    binds: tuple[str, ...] = ()
    hostname: str = ""
    domain: str = ""
    network: str = "none"
    ipc: str = "shareable"
    pid: str = ""
    uts: str = ""
    cpu_shares: int = MIN_SHARES
    cpu_quota: int = 0
    memory: int = 0
    oom_score_adj: int = 0
    tty: bool = False
    stdin: bool = False
    stdin_once: bool = False
    security: SecurityOptions = field(default_factory=SecurityOptions)
    sysctls: tuple[tuple[str, str], ...] = ()
    runtime: str = ""
    cgroup_parent: str = ""
    stop_signal: str = ""


def _pod_labels(pod: Pod) -> dict[str, str]:
    return {
        POD_NAME: pod.metadata.name,
        POD_NAMESPACE: pod.metadata.namespace,
        POD_UID: pod.metadata.uid,
    }


def _docker_name(container: str, pod: Pod, attempt: int) -> str:
    meta = pod.metadata
    return f"k8s_{container}_{meta.name}_{meta.namespace}_{meta.uid}_{attempt}"


def sandbox_config(pod: Pod, image: str, attempt: int, host: HostInfo) -> ContainerConfig:
    """Return the configuration of the sandbox, which holds the pod's namespaces. Raises Refused."""
    annotations = {f"{ANNOTATION}{key}": value for key, value in pod.metadata.annotations.items()}
    pod_labels = {
        key: value for key, value in (pod.metadata.labels | annotations).items() if key not in RESERVED_LABELS
    }
    agent_labels = {
        TYPE: SANDBOX_TYPE,
        CONTAINER_NAME: "POD",
        ATTEMPT: str(attempt),
        GRACE: str(pod.spec.termination_grace_period_seconds or 0),
    }
    return ContainerConfig(
        name=_docker_name("POD", pod, attempt),
        image=image,
        labels={**pod_labels, **_pod_labels(pod), **agent_labels},
        hostname=sandbox_hostname(pod, host.cluster_domain),
        domain=pod_domain(pod, host.cluster_domain),
        network="host" if pod.spec.host_network else "none",
        ipc="host" if pod.spec.host_ipc else "shareable",
        pid="host" if pod.spec.host_pid else "",
        uts="host" if pod.spec.host_network else "",
        oom_score_adj=max(-998, host.min_oom_score),
        security=sandbox_security(pod),
        sysctls=sysctls(pod),
        runtime=pod.spec.runtime_class_name or "",
    )


@dataclass(frozen=True, slots=True)
class ContainerInputs:
    """The inputs of a container's configuration that differ between its starts.

    `image` and `sandbox_id` are IDs. `restarts`: restart count. `crashes`: consecutive crashes before this start.
    `target_id`: container whose processes the container sees, empty for none.
    """

    image: str
    sandbox_id: str
    restarts: int = 0
    crashes: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    security: SecurityOptions = field(default_factory=SecurityOptions)
    target_id: str = ""


def container_config(pod: Pod, container: Container, inputs: ContainerInputs, host: HostInfo) -> ContainerConfig:
    """Return the configuration of one container of a pod."""
    resources = docker_resources(container, host.cpu_cfs_quota)
    command = tuple(expand(text, inputs.env) for text in container.command)
    args = tuple(expand(text, inputs.env) for text in container.args)
    return ContainerConfig(
        name=_docker_name(container.name, pod, inputs.restarts),
        image=inputs.image,
        labels=_labels(pod, container, inputs, host),
        entrypoint=command or None,
        command=args or (() if command else None),
        working_dir=container.working_dir,
        environment=tuple(f"{name}={value}" for name, value in inputs.env.items()),
        binds=_binds(pod, container, host, inputs.restarts),
        network=f"container:{inputs.sandbox_id}",
        ipc="host" if pod.spec.host_ipc else f"container:{inputs.sandbox_id}",
        pid=_pid_mode(pod, inputs),
        uts="host" if pod.spec.host_network else "",
        cpu_shares=resources.cpu_shares,
        cpu_quota=resources.cpu_quota,
        memory=resources.memory,
        oom_score_adj=max(oom_score(pod, container, host.memory), host.min_oom_score),
        tty=container.tty,
        stdin=container.stdin,
        stdin_once=container.stdin_once,
        security=inputs.security,
        runtime=pod.spec.runtime_class_name or "",
        stop_signal=stop_signal(container),
    )


def docker_resources(container: Container, cpu_cfs_quota: bool) -> DockerResources:
    """Return the resources of a container for Docker. Without `cpu_cfs_quota`, CPU limits are not enforced."""
    limits, requests = container.resources.limits, container.resources.requests
    return DockerResources(
        cpu_shares(quantity.to_milli(requests.get("cpu", 0))),
        cpu_quota(quantity.to_milli(limits.get("cpu", 0))) if cpu_cfs_quota else 0,
        quantity.to_int(limits["memory"]) if "memory" in limits else 0,
    )


def _labels(pod: Pod, container: Container, inputs: ContainerInputs, host: HostInfo) -> dict[str, str]:
    """Return the labels of a container.

    Each label that the agent reads back is set, if need be to an empty text: Docker adds the labels of the image that
    are missing, and the image is a user's. Its preStop hook would make the agent send requests to any host.
    """
    log_dir = pod_log_dir_name(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
    container_labels = {
        TYPE: CONTAINER_TYPE,
        CONTAINER_NAME: container.name,
        SANDBOX_ID: inputs.sandbox_id,
        HASH: container_hash(container),
        RESTARTS: str(inputs.restarts),
        CRASHES: str(inputs.crashes),
        GRACE: str(pod.spec.termination_grace_period_seconds or 0),
        LOG_PATH: f"{host.pod_logs_dir}/{log_dir}/{container.name}/{inputs.restarts}{LOG_SUFFIX}",
        MESSAGE_PATH: container.termination_message_path,
        MESSAGE_POLICY: container.termination_message_policy,
    }
    ports = msgspec.json.encode(container.ports).decode() if container.ports else ""
    return {**_pod_labels(pod), **container_labels, PORTS: ports, PRE_STOP: pre_stop_label(container)}


def _pid_mode(pod: Pod, inputs: ContainerInputs) -> str:
    if pod.spec.host_pid:
        return "host"
    container_id = inputs.sandbox_id if pod.spec.share_process_namespace else inputs.target_id
    return f"container:{container_id}" if container_id else ""


def container_hash(container: Container) -> str:
    """Return a hash that changes when the container must be created again: with its image."""
    return sha256(f"{container.name}\0{container.image}".encode()).hexdigest()[:16]


def is_node_critical(pod: Pod) -> bool:
    """Return whether the node cannot work without this pod."""
    return is_critical_pod(pod) and pod.spec.priority_class_name == NODE_CRITICAL


def oom_score(pod: Pod, container: Container, memory: int) -> int:
    """Return the OOM score. The kernel kills the container with the highest score first. `memory`: the host's bytes."""
    if pod.status.qos_class == "Guaranteed" or is_node_critical(pod):
        return -997
    if pod.status.qos_class == "BestEffort":
        return 1000
    requested = quantity.to_int(container.resources.requests.get("memory", 0))
    return min(max(1000 - 1000 * requested // max(memory, 1), 3), 999)


def _binds(pod: Pod, container: Container, host: HostInfo, restarts: int) -> tuple[str, ...]:
    uid = pod.metadata.uid
    managed_files = {container.termination_message_path: termination_message_path(host, uid, container.name, restarts)}
    managed_files |= {HOSTS_PATH: etc_hosts_path(host, uid), RESOLV_CONF_PATH: resolv_conf_path(host, uid)}
    mounted_paths = {normpath(mount.mount_path) for mount in container.volume_mounts}
    managed_binds = (
        f"{source}:{path}" for path, source in managed_files.items() if path and normpath(path) not in mounted_paths
    )
    return (*binds(pod, container, pod_dir(host, uid)), *managed_binds)
