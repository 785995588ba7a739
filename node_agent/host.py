"""Paths of a pod's files on the host, and the facts about the host that container configurations need. Pure."""

from __future__ import annotations

from dataclasses import dataclass

LOG_SUFFIX = ".log"


def pod_log_dir_name(namespace: str, name: str, uid: str) -> str:
    """The name of the directory of a pod's logs."""
    return f"{namespace}_{name}_{uid}"


@dataclass(frozen=True, slots=True)
class HostInfo:
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


def pod_dir(host: HostInfo, uid: str) -> str:
    """The directory of a pod on the host."""
    return f"{host.pods_dir}/{uid}"


def etc_hosts_path(host: HostInfo, uid: str) -> str:
    """The /etc/hosts of a pod on the host."""
    return f"{pod_dir(host, uid)}/etc-hosts"


def resolv_conf_path(host: HostInfo, uid: str) -> str:
    """The /etc/resolv.conf of a pod on the host."""
    return f"{pod_dir(host, uid)}/resolv.conf"


def termination_message_path(host: HostInfo, uid: str, container: str, restarts: int) -> str:
    """Where a container, at the start of this number, leaves its last words on the host."""
    return f"{pod_dir(host, uid)}/containers/{container}/{restarts:08x}"
