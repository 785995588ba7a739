"""Paths of a pod's files on the host, and the facts about the host that container configurations need. Pure."""

from __future__ import annotations

from dataclasses import dataclass

LOG_SUFFIX = ".log"


def pod_log_dir_name(namespace: str, name: str, uid: str) -> str:
    """Return the name of a pod's log directory."""
    return f"{namespace}_{name}_{uid}"


@dataclass(frozen=True, slots=True)
class HostInfo:
    """Facts about the host, and settings of the node, that container configurations depend on.

    `pods_dir`: directory of the pods' directories. `memory`: in bytes. `min_oom_score`: lowest OOM score that this
    process may set. `node_address`: address of the node. `resolv_conf`: path of the host's own file. `pod_logs_dir`:
    directory of log links. `seccomp_default`: containers without a seccomp profile get Docker's. `cpu_cfs_quota`: CPU
    limits are enforced. What the Node object reports is in HostFacts.
    """

    pods_dir: str
    memory: int
    min_oom_score: int
    cpus: int = 1
    node_address: str = ""
    pause_image: str = ""
    cluster_domain: str = "cluster.local"
    cluster_dns: tuple[str, ...] = ()
    resolv_conf: str = "/etc/resolv.conf"
    pod_logs_dir: str = "/var/log/pods"
    seccomp_default: bool = False
    cpu_cfs_quota: bool = True

    @property
    def allocatable(self) -> dict[str, str]:
        """The quantities that a container without limits may use."""
        return {"cpu": str(self.cpus), "memory": str(self.memory)}


def pod_dir(host: HostInfo, uid: str) -> str:
    """Return the path of a pod's directory on the host."""
    return f"{host.pods_dir}/{uid}"


def etc_hosts_path(host: HostInfo, uid: str) -> str:
    """Return the path of a pod's /etc/hosts on the host."""
    return f"{pod_dir(host, uid)}/etc-hosts"


def resolv_conf_path(host: HostInfo, uid: str) -> str:
    """Return the path of a pod's /etc/resolv.conf on the host."""
    return f"{pod_dir(host, uid)}/resolv.conf"


def termination_messages_dir(host: HostInfo, uid: str) -> str:
    """Return the path of the directory on the host with the termination messages of a pod's containers."""
    return f"{pod_dir(host, uid)}/containers"


def termination_message_path(host: HostInfo, uid: str, container: str, restarts: int) -> str:
    """Return the path of a container's termination message on the host. `restarts` is the restart count."""
    return f"{termination_messages_dir(host, uid)}/{container}/{restarts:08x}"
