"""Pod → what to ask of Docker: sandbox and containers with their names, labels and limits. Pure.

Names and labels are dockershim's, so that tools written for it find our containers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from posixpath import normpath

import msgspec

from api import quantity
from api.objects import Container, Pod
from api.static_pods import is_static
from node_agent import log_links, stopping
from node_agent import observed as label
from node_agent.environment import expand
from node_agent.naming import domain, kernel_name
from node_agent.security import Rights, sandbox_rights, sysctls
from node_agent.volume_paths import binds

CPU_PERIOD, LEAST_QUOTA = 100_000, 1_000
HOSTS, RESOLVER = "/etc/hosts", "/etc/resolv.conf"
LEAST_SHARES, MOST_SHARES = 2, 262_144
NODE_CRITICAL, SYSTEM_PRIORITY = "system-node-critical", 2_000_000_000


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container to create.

    `network`, `ipc`, `pid` and `uts` are Docker modes, memory is in bytes, CPU quota in µs per 100 ms. With the network
    `none` it has a namespace with loopback alone, in which Docker does nothing. Without a
    `stop_signal` its image's holds.
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
    cpu_shares: int = LEAST_SHARES
    cpu_quota: int = 0
    memory: int = 0
    oom_score_adj: int = 0
    tty: bool = False
    stdin: bool = False
    stdin_once: bool = False
    rights: Rights = field(default_factory=Rights)
    sysctls: tuple[tuple[str, str], ...] = ()
    runtime: str = ""
    cgroup_parent: str = ""
    stop_signal: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """What the host adds: where pods have their directories, its memory in bytes, its lowest OOM score, its cores.

    `cluster_dns` are the nameservers of the cluster, `resolv_conf` is the host's own file, `pod_logs_dir` where links
    lead to logs. `seccomp_default`: who says nothing of seccomp has Docker's profile. `cpu_cfs_quota`: limits of CPU
    hold back.
    """

    pods_dir: str
    memory: int
    least_oom_score: int
    cpus: int = 1
    cluster_domain: str = "cluster.local"
    cluster_dns: tuple[str, ...] = ()
    resolv_conf: str = "/etc/resolv.conf"
    pod_logs_dir: str = "/var/log/pods"
    seccomp_default: bool = False
    cpu_cfs_quota: bool = True

    @property
    def allocatable(self) -> dict[str, str]:
        """What a container without a limit may use, as quantities."""
        return {"cpu": str(self.cpus), "memory": str(self.memory)}


@dataclass(frozen=True, slots=True)
class LogLimits:
    """A container's log begins a new file at so many bytes; so many files are kept."""

    bytes: int
    files: int


def pod_dir(host: Host, uid: str) -> str:
    """The directory of a pod on the host."""
    return f"{host.pods_dir}/{uid}"


def hosts_file(host: Host, uid: str) -> str:
    """The /etc/hosts of a pod on the host."""
    return f"{pod_dir(host, uid)}/etc-hosts"


def resolver_file(host: Host, uid: str) -> str:
    """The /etc/resolv.conf of a pod on the host."""
    return f"{pod_dir(host, uid)}/resolv.conf"


def message_file(host: Host, uid: str, container: str, restarts: int) -> str:
    """Where a container, at the start of this number, leaves its last words on the host."""
    return f"{pod_dir(host, uid)}/containers/{container}/{restarts:08x}"


def _pod_labels(pod: Pod) -> dict[str, str]:
    return {
        label.POD_NAME: pod.metadata.name,
        label.POD_NAMESPACE: pod.metadata.namespace,
        label.POD_UID: pod.metadata.uid,
    }


def _docker_name(container: str, pod: Pod, attempt: int) -> str:
    meta = pod.metadata
    return f"k8s_{container}_{meta.name}_{meta.namespace}_{meta.uid}_{attempt}"


def sandbox_spec(pod: Pod, image: str, attempt: int, host: Host) -> ContainerSpec:
    """The container that holds the pod's namespaces; its network is made by the sdn daemon. Raises Refused."""
    annotations = {f"annotation.{key}": value for key, value in pod.metadata.annotations.items()}
    theirs = {key: value for key, value in (pod.metadata.labels | annotations).items() if key not in label.OURS}
    own = {
        label.TYPE: label.SANDBOX_TYPE,
        label.CONTAINER_NAME: "POD",
        label.ATTEMPT: str(attempt),
        label.GRACE: str(pod.spec.termination_grace_period_seconds or 0),
    }
    return ContainerSpec(
        name=_docker_name("POD", pod, attempt),
        image=image,
        labels={**theirs, **_pod_labels(pod), **own},
        hostname=kernel_name(pod, host.cluster_domain),
        domain=domain(pod, host.cluster_domain),
        network="host" if pod.spec.host_network else "none",
        ipc="host" if pod.spec.host_ipc else "shareable",
        pid="host" if pod.spec.host_pid else "",
        uts="host" if pod.spec.host_network else "",
        oom_score_adj=max(-998, host.least_oom_score),
        rights=sandbox_rights(pod),
        sysctls=sysctls(pod),
        runtime=pod.spec.runtime_class_name or "",
    )


def container_spec(
    pod: Pod,
    container: Container,
    image: str,
    sandbox: str,
    restarts: int,
    crashes: int,
    host: Host,
    rights: Rights,
    known: Mapping[str, str],
    pid: str = "",
) -> ContainerSpec:
    """One container of a pod, inside the namespaces of its sandbox (`sandbox` and `image` are ids).

    `known` is its environment; `pid` is another container whose processes it sees.
    """
    limits, requests = container.resources.limits, container.resources.requests
    command = tuple(expand(word, known) for word in container.command)
    args = tuple(expand(word, known) for word in container.args)
    return ContainerSpec(
        name=_docker_name(container.name, pod, restarts),
        image=image,
        labels=_labels(pod, container, sandbox, restarts, crashes, host),
        entrypoint=command or None,
        command=args or (() if command else None),
        working_dir=container.working_dir,
        environment=tuple(f"{name}={value}" for name, value in known.items()),
        binds=_binds(pod, container, host, restarts),
        network=f"container:{sandbox}",
        ipc="host" if pod.spec.host_ipc else f"container:{sandbox}",
        pid=_pid_mode(pod, sandbox, pid),
        uts="host" if pod.spec.host_network else "",
        cpu_shares=cpu_shares(quantity.milli(requests.get("cpu", 0))),
        cpu_quota=cpu_quota(quantity.milli(limits.get("cpu", 0))) if host.cpu_cfs_quota else 0,
        memory=quantity.whole(limits["memory"]) if "memory" in limits else 0,
        oom_score_adj=max(oom_score(pod, container, host.memory), host.least_oom_score),
        tty=container.tty,
        stdin=container.stdin,
        stdin_once=container.stdin_once,
        rights=rights,
        runtime=pod.spec.runtime_class_name or "",
        stop_signal=stopping.signal_of(container),
    )


def _labels(pod: Pod, container: Container, sandbox: str, restarts: int, crashes: int, host: Host) -> dict[str, str]:
    folder = log_links.pod_folder(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
    own = {
        label.TYPE: label.CONTAINER_TYPE,
        label.CONTAINER_NAME: container.name,
        label.SANDBOX_ID: sandbox,
        label.HASH: spec_hash(container),
        label.RESTARTS: str(restarts),
        label.CRASHES: str(crashes),
        label.GRACE: str(pod.spec.termination_grace_period_seconds or 0),
        label.LOG_PATH: f"{host.pod_logs_dir}/{folder}/{container.name}/{restarts}{log_links.SUFFIX}",
        label.MESSAGE_PATH: container.termination_message_path,
        label.MESSAGE_POLICY: container.termination_message_policy,
    }
    ports = {label.PORTS: msgspec.json.encode(container.ports).decode()} if container.ports else {}
    return {**_pod_labels(pod), **own, **ports, **stopping.labels(container)}


def _pid_mode(pod: Pod, sandbox: str, looks_into: str) -> str:
    if pod.spec.host_pid:
        return "host"
    other = sandbox if pod.spec.share_process_namespace else looks_into
    return f"container:{other}" if other else ""


def spec_hash(container: Container) -> str:
    """Changes when the container has to be made anew: with its image."""
    return sha256(f"{container.name}\0{container.image}".encode()).hexdigest()[:16]


def cpu_shares(milli: int) -> int:
    """Docker's CPU weight for a request in thousandths of a core."""
    return min(max(milli * 1024 // 1000, LEAST_SHARES), MOST_SHARES)


def cpu_quota(milli: int) -> int:
    """The µs of each 100 ms that a limit in thousandths of a core allows; 0 is no limit."""
    return max(milli * CPU_PERIOD // 1000, LEAST_QUOTA) if milli else 0


def is_node_critical(pod: Pod) -> bool:
    """Whether the node is of no use without this pod."""
    critical = is_static(pod) or (pod.spec.priority or 0) >= SYSTEM_PRIORITY
    return critical and pod.spec.priority_class_name == NODE_CRITICAL


def oom_score(pod: Pod, container: Container, memory: int) -> int:
    """How early the kernel may take this container when memory runs out; `memory` is the host's, in bytes."""
    if pod.status.qos_class == "Guaranteed" or is_node_critical(pod):
        return -997
    if pod.status.qos_class == "BestEffort":
        return 1000
    wish = quantity.whole(container.resources.requests.get("memory", 0))
    return min(max(1000 - 1000 * wish // max(memory, 1), 3), 999)


def _binds(pod: Pod, container: Container, host: Host, restarts: int) -> tuple[str, ...]:
    uid = pod.metadata.uid
    ours = {container.termination_message_path: message_file(host, uid, container.name, restarts)}
    ours |= {HOSTS: hosts_file(host, uid), RESOLVER: resolver_file(host, uid)}
    taken = {normpath(mount.mount_path) for mount in container.volume_mounts}
    managed = (f"{source}:{path}" for path, source in ours.items() if path and normpath(path) not in taken)
    return (*binds(pod, container, pod_dir(host, uid)), *managed)
